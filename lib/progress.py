"""Progress bars for long work."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tqdm.auto import tqdm

#: Set to 1 by the book's build: what is computed goes on a page, with no kernel and nobody waiting.
STATIC = "EXPLORE_STATIC"


def static() -> bool:
    """Whether outputs are made for a page without a kernel."""
    return os.environ.get(STATIC) == "1"


def progress(items: Iterable, unit: str = "steps") -> tqdm:
    """Iterate over ``items`` with a bar that appears if it takes longer than two seconds, and goes when done.

    While the book is built there is no bar.

    >>> sum(progress([1, 2, 3]))
    6
    """
    return tqdm(items, unit=f" {unit}", delay=2, leave=False, disable=static())
