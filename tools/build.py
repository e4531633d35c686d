"""Build the book: `make book`, or one page of it: `make page CHAPTER=tokens/two-tokens`.

Chapters are executed by the extension `_ext/book.py`, and only those that have to be. The pages themselves are always
made anew, as that takes less time than to find out which of them could stay; but for a single page, for which the
other chapters are only read, once, so that it can refer to them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the book, or one page of it.")
    parser.add_argument("--page", metavar="CHAPTER", help="a chapter as _toc.yml names it, with or without chapters/")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # in what order sets go: the same book, byte for byte
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})
    sys.path.insert(0, str(ROOT / "_ext"))
    import execute

    known = execute.documents()
    if given.page is None:
        pages, folder = known, BUILD / "html"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)
    else:
        pages, folder = [named(given.page, known, parser)], BUILD / "page" / "html"
        os.environ["BOOK_PAGE"] = pages[0]
    if build(folder, pages):
        sys.exit(1)
    print(table(pages, folder, execute))
    print(f"\nOpen in a browser: {folder / (pages[0] if given.page else 'index')}.html")


def named(chapter: str, known: list[str], parser: argparse.ArgumentParser) -> str:
    for name in (chapter, f"chapters/{chapter}"):
        if name.removesuffix(".md") in known:
            return name.removesuffix(".md")
    names = ", ".join(name.removeprefix("chapters/") for name in known)
    parser.error(f"CHAPTER must be one of {names}, got {chapter!r}")


def build(folder: Path, pages: list[str]) -> int:
    """What `jupyter-book build -W -n --keep-going` does, which cannot be told to make one page."""
    from jupyter_book.sphinx import build_sphinx

    single = len(pages) == 1
    failed = build_sphinx(
        ROOT,
        str(folder),
        noconfig=True,
        path_config=ROOT / "_config.yml",
        confoverrides={"external_toc_path": str(ROOT / "_toc.yml"), "latex_individualpages": False, "nitpicky": True},
        filenames=[str(ROOT / f"{page}.md") for page in pages] if single else None,
        warningiserror=not single,
        keep_going=True,
        quiet=True,
    )
    return bool(failed)


def table(pages: list[str], folder: Path, execute) -> str:
    """What the chapters took to execute, and what their pages weigh."""
    rows = [["chapter", "processor", "memory", "page, gzipped"]]
    for page in pages:
        kept = execute.stored(page) if execute.is_notebook(page) else None
        took = kept and [f"{sum(kept.metadata.execution.seconds):.1f} s", f"{kept.metadata.execution.megabytes:.0f} MB"]
        rows.append([page, *(took or ["", ""]), f"{weight(folder / page) / 1e3:.0f} kB"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join("  ".join(line) for line in lines)


def weight(page: Path) -> int:
    """Bytes of a page and its pictures, as a server sends them."""
    html = page.with_suffix(".html").read_bytes()
    pictures = {match[1].decode() for match in re.finditer(rb'<img [^>]*src="((?!data:)[^"]+)"', html)}
    return sum(len(gzip.compress(data)) for data in (html, *((page.parent / name).read_bytes() for name in pictures)))


if __name__ == "__main__":
    main()
