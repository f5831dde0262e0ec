"""What could have stood where a token could not, in a user's words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilec.dsl.grammar import parser

_SHOWN = 6
_OPERATORS = {"OR", "AND", "COMPARE", "PLUS", "MINUS", "TIMES", "POWER"}
_OPERANDS = {"INT", "REAL", "INF", "BOOLEAN", "NAME", "LPAR", "NOT", "MINUS"}
_NAMED = {"NAME": "a name", "INT": "an integer", "REAL": "a number", "FACT": "a fact"}


def expected(accepts: Iterable[str]) -> str:
    """`expected …` for a set of terminals: signs and words first, at most six, the many of an expression as one."""
    left = {t for t in accepts if t != "$END"}
    tail: list[str] = []
    if left >= _OPERATORS - {"MINUS"}:
        left -= _OPERATORS | {"LPAR", "LSQB"}  # a bracket after a name continues it: too much to say
        tail.append("an operator")
    if left >= _OPERANDS - {"NOT", "MINUS"}:
        left -= _OPERANDS
        tail.append("an expression")
    shown = sorted(w for t in left for w in ([_NAMED[t]] if t in _NAMED else [f"`{x}`" for x in spelled(t)]))
    more = [*shown[:_SHOWN], *tail]
    return (
        f"expected {', '.join(more[:-1])}{' or ' if more[:-1] else ''}{more[-1]}" if more else "expected nothing more"
    )


def spelled(terminal: str) -> list[str]:
    """The words or signs that a terminal matches; none for names and numbers."""
    found = next((t for t in parser().terminals if t.name == terminal), None)
    if found is None or terminal in ("NAME", "INT", "REAL"):
        return []
    pattern = found.pattern.value
    return re.findall(r"[a-z_0-9]+|[^\w()|\\?:]+", pattern.replace(r"\b", "")) or [pattern]
