"""Colours that mean something, the same in every chapter; each but AREA is a place in the cycle of ``lib.book``."""

from __future__ import annotations

#: How a pair of tokens ends.
TOGETHER, OPPOSITE = "C0", "C1"
#: A formula or a limit; and what layers or samples gave beside it.
THEORY, MEASURED = "C0", "C1"
#: The regularisers of :mod:`lib.smoothmax`.
COLOUR_OF = {"shannon": "C0", "tsallis": "C1", "gini": "C2"}
#: What lies behind lines and points: bars, histograms, windows. A pale THEORY.
AREA = "#cfe3f1"
