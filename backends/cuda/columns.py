"""Comparisons of integers with the column of a tile on one side, as `column_of(e) <= limit`: the column is a constant of each
register and the limit a number per row, so that an element costs one comparison.

    SCALE   of a column that counts every c-th position, c * column <= x is column <= x // c
    MERGE   tests that stand beside another one, or of scaled columns, have one limit on either side: the least, the greatest
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilec.ir.build import conjuncts
from tilec.ir.expr import Expr, Int, Op, walk

MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
Show = Callable[[Expr, int], str]  # text of an expression, in parentheses if it binds weaker than that


@dataclass(frozen=True)
class Limit:
    """`column symbol text`, `text` a sum unless `scaled`."""

    symbol: str
    text: str
    scaled: bool = False


def limit_of(name: str, a: Expr, b: Expr, column: Expr, show: Show) -> Limit | None:
    """A comparison of integers as a limit of the column less the thread's first (`col0`).  None for other comparisons."""
    terms = _terms(a, 1, column) + _terms(b, -1, column)  # a - b
    mine = [count for count, x in terms if x is column]
    rest = [(count, x) for count, x in terms if x is not column]
    if len(mine) != 1 or any(column in walk(x) for _, x in rest):
        return None
    scale, sign = abs(mine[0]), 1 if mine[0] > 0 else -1
    if scale > 1 and name in ("==", "!="):
        return None
    moved: list[tuple[int, Expr | None]] = [(-count * sign, x) for count, x in rest]
    moved.append((-scale, None))
    symbol = name if sign > 0 else MIRRORED.get(name, name)
    text = ""
    for count, x in sorted(moved, key=lambda m: m[0] < 0):  # stable: added terms first
        term = "col0" if x is None else show(x, 6)
        if abs(count) > 1:
            term = f"{abs(count)} * {term}"
        text += (" + " if count > 0 else " - ") + term if text else term if count > 0 else f"-{term}"
    if scale == 1:
        return Limit(symbol, text)
    if symbol in ("<", ">="):  # column < x / c, rounded up
        text = f"{text} + {scale - 1}"
    return Limit(symbol, f"floor_div({text}, {scale})", scaled=True)


def limits_of(e: Expr, compared: Callable[[Expr], Limit | None]) -> tuple[list[Limit], list[Expr]] | None:
    """The limits that a conjunction puts on the column, by rule MERGE, and its other tests; None where they are left alone."""
    parts = conjuncts(e)
    found = {n: limit for n, part in enumerate(parts) if (limit := compared(part)) is not None}
    others = [part for n, part in enumerate(parts) if n not in found]
    sides = {"min": ("<", "<="), "max": (">", ">=")}
    merged = [limit for limit in found.values() if limit.symbol in ("==", "!=")]
    for side, symbols in sides.items():
        some = [limit for limit in found.values() if limit.symbol in symbols]
        if len(some) < 2:
            merged += some
            continue
        if not others and not any(limit.scaled for limit in some):
            return None
        step = {"<": " - 1", ">": " + 1"}
        text = some[0].text + step.get(some[0].symbol, "")
        for limit in some[1:]:
            text = f"{side}({text}, {limit.text}{step.get(limit.symbol, '')})"
        merged.append(Limit(symbols[1], text))
    return (merged, others) if len(merged) < len(found) else None


def _terms(e: Expr, count: int, column: Expr) -> list[tuple[int, Expr]]:
    """A sum as terms with the times that each counts; products with a number are taken apart where the column is in them."""
    match e:
        case Op("+", (x, y)):
            return _terms(x, count, column) + _terms(y, count, column)
        case Op("-", (x, y)):
            return _terms(x, count, column) + _terms(y, -count, column)
        case Op("neg", (x,)):
            return _terms(x, -count, column)
        case Op("*", (x, Int(n))) if n > 0 and column in walk(x):
            return _terms(x, n * count, column)
        case _:
            return [(count, e)]
