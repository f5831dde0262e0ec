"""Breaks long generated lines as a formatter would: a call at its commas, the rest in parentheses at its loosest operators."""

from __future__ import annotations

import re

WIDTH = 110
INDENT = "    "
OPEN, CLOSE = "([{", ")]}"
COMPARISONS = (" == ", " != ", " <= ", " >= ", " < ", " > ")
OPERATORS = (COMPARISONS, (" | ",), (" & ",), (" + ", " - "), (" * ", " / "))  # loosest first


def assignment(target: str, text: str, depth: int) -> list[str]:
    """`target = text` over as many lines as it needs."""
    head = f"{INDENT * depth}{target} = "
    if len(head) + len(text) <= WIDTH:
        return [head + text]
    return _broken(head, text, depth, "")


def statement(text: str, depth: int) -> list[str]:
    """An expression statement over as many lines as it needs."""
    head = INDENT * depth
    return [head + text] if len(head) + len(text) <= WIDTH else _broken(head, text, depth, "")


def _broken(head: str, text: str, depth: int, tail: str) -> list[str]:
    """`text` after `head` and before `tail`, broken once, and its parts again if they are still too long."""
    opening = text.find("(")
    if opening > 0 and _matching(text, opening) == len(text) - 1 and text[:opening].replace(".", "").isidentifier():
        arguments = _split(text[opening + 1 : -1], (", ",))
        lines = [f"{head}{text[: opening + 1]}"]
        for _, argument in arguments:
            lines += _argument(argument, depth + 1)
        return [*lines, f"{INDENT * depth})" + tail]
    group = re.match(r"~?\(", text)
    if group is not None:  # one operand in parentheses: `~(…)`, `(…)[:, None]`
        close = _matching(text, group.end() - 1)
        if re.fullmatch(r"(\[[^\[\]]*\])?", text[close + 1 :]):
            inner = _terms(text[group.end() : close], depth)
            return [f"{head}{group[0]}", *inner, f"{INDENT * depth}){text[close + 1 :]}{tail}"]
    if any(len(_split(text, operators)) > 1 for operators in OPERATORS):
        return [f"{head}(", *_terms(text, depth), f"{INDENT * depth}){tail}"]
    return [head + text + tail]


def _argument(text: str, depth: int) -> list[str]:
    """An argument of a broken call: a sum needs no parentheses there."""
    sum_of_terms = _split(text, OPERATORS[3])
    if len(INDENT * depth) + len(text) < WIDTH or len(sum_of_terms) == 1 or "=" in sum_of_terms[0][1]:
        return _part(text, depth, ",")
    lines = _terms(text, depth - 1)
    return [*lines[:-1], lines[-1] + ","]


def _terms(text: str, depth: int) -> list[str]:
    """`text` one level deeper, a line for each operand of its loosest operators."""
    for operators in OPERATORS:
        terms = _split(text, operators)
        if len(terms) > 1:
            return [x for o, term in terms for x in _part(term, depth + 1, "", f"{o.strip()} " if o else "")]
    return _part(text, depth + 1, "")


def _part(text: str, depth: int, tail: str, operator: str = "") -> list[str]:
    head = INDENT * depth + operator
    if len(head) + len(text) + len(tail) <= WIDTH:
        return [head + text + tail]
    name, equals, value = text.partition("=")
    if equals and name.isidentifier():
        return _broken(f"{head}{name}=", value, depth, tail)
    return _broken(head, text, depth, tail)


def _matching(text: str, opening: int) -> int:
    """Where the bracket at `opening` closes."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] in OPEN) - (text[i] in CLOSE)
        if depth == 0:
            return i
    return -1


def _split(text: str, separators: tuple[str, ...]) -> list[tuple[str, str]]:
    """(separator before, part) of `text` at separators outside brackets."""
    parts, before, start, depth, i = [], "", 0, 0, 0
    while i < len(text):
        depth += (text[i] in OPEN) - (text[i] in CLOSE)
        found = next((s for s in separators if depth == 0 and i > start and text.startswith(s, i)), None)
        if found is None:
            i += 1
            continue
        parts.append((before, text[start:i]))
        before, i = found, i + len(found)
        start = i
    return [*parts, (before, text[start:])]
