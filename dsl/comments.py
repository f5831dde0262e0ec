"""Comments and blank lines, attached to the statement or block that they stand by.

No literal of the language contains `#`, so a comment is `#` up to the end of its line, wherever it stands.  What lies
between two neighbours belongs to the first if it starts on the line where that one ends, else to the second.
A comment inside a statement moves in front of it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tilec.dsl.ast import Block, File, Notes, Statement

COMMENT = re.compile(r"#[^\n]*")


def attach(file: File, text: str) -> File:
    """`file` with the comments of `text` in the notes of its nodes."""
    blocks, closing = _spread(file.blocks, text, 0, len(text), blanks=False)
    return replace(file, blocks=tuple(_within(b, text) for b in blocks), closing=closing)


def _within(block: Any, text: str) -> Any:
    start, end = block.span.start, block.span.end
    body = _open_brace(text, start) + 1
    statements, closing = _spread(block.statements, text, body, end - 1, blanks=True)
    notes = replace(block.notes, before=block.notes.before + _inside(text[start:body]))
    compact = "\n" not in text[start:end]
    return replace(block, statements=statements, closing=closing, notes=notes, compact=compact)


def _spread(
    items: tuple[Any, ...], text: str, start: int, end: int, *, blanks: bool
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Gives each of `items`, which lie in start … end, its notes; what remains after the last one is returned."""
    done: list[Statement] = []
    for item in items:
        after, before = _between(text[start : item.span.start])
        if done:
            done[-1] = replace(done[-1], notes=replace(done[-1].notes, after=after))
            before = before if blanks else _unpadded(before)
        else:
            before = _unpadded(((after,) if after else ()) + before)
        inner = () if isinstance(item, Block) else _inside(text[item.span.start : item.span.end])
        done.append(replace(item, notes=Notes(before + inner)))
        start = item.span.end
    after, closing = _between(text[start:end])
    if done:
        done[-1] = replace(done[-1], notes=replace(done[-1].notes, after=after))
    else:
        closing = ((after,) if after else ()) + closing
    while closing and not closing[-1]:
        closing = closing[:-1]
    return tuple(done), closing if blanks and done else _unpadded(closing)


def _between(text: str) -> tuple[str | None, tuple[str, ...]]:
    """The comment on the first line of a gap, and the comments and blank lines (at most one in a row) after it."""
    first, *rest = text.split("\n")
    lines: list[str] = []
    for line in rest[:-1]:
        line = line.strip()
        if line or not lines or lines[-1]:
            lines.append(line)
    if rest and rest[-1].strip():  # the end of the file without a line break
        lines.append(rest[-1].strip())
    return first.strip() or None, tuple(lines)


def _inside(text: str) -> tuple[str, ...]:
    return tuple(m.group().rstrip() for m in COMMENT.finditer(text))


def _unpadded(lines: tuple[str, ...]) -> tuple[str, ...]:
    return lines[1:] if lines and not lines[0] else lines


def _open_brace(text: str, start: int) -> int:
    """The position of the block's `{`, which no comment hides."""
    blanked = COMMENT.sub(lambda m: " " * len(m.group()), text[start:])
    return start + blanked.index("{")
