"""Places in a spec: half-open character ranges with line and column, and the width text takes on a terminal."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

TAB = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` … `end` (exclusive) of a source text; `line` and `column` are 1-based, of `start`."""

    start: int
    end: int
    line: int
    column: int


def width(text: str) -> int:
    """Columns that `text` takes on a terminal: wide East Asian characters take two, combining marks none."""
    total = 0
    for ch in text:
        if ch == "\t":
            total += TAB - total % TAB
        elif unicodedata.combining(ch):
            continue
        else:
            total += 2 if unicodedata.east_asian_width(ch) in "WF" else 1
    return total


def locate(text: str, start: int, end: int) -> Span:
    """The span of characters `start` … `end`, at least one wide."""
    line = text.count("\n", 0, start) + 1
    return Span(start, max(end, start + 1), line, start - text.rfind("\n", 0, start))
