"""Rows of one residue class: an index `Q[…, i * T + r, …]`, i counting along one axis from a scalar on.

Every T-th position from r on is a dense dimension of its own, with T times the distance between neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.expr import Expr, Int, Iota, Op, Read, walk


@dataclass(frozen=True)
class Class:
    """`position`: which dimension it is; `number` counts the rows of the class, of positions `residue` modulo `period`."""

    position: int
    number: Expr
    period: int
    residue: Expr


def class_of(index: tuple[Expr, ...]) -> Class | None:
    """The class of a tile's rows, or None where they are neighbours."""
    for position, i in enumerate(index):
        match i:
            case Op("+", (Op("*", (number, Int(period))), residue)) if period > 1 and _lanes(number):
                if not any(isinstance(x, Iota | Read) for x in walk(residue)):
                    return Class(position, number, period, residue)
    return None


def _lanes(e: Expr) -> bool:
    return any(isinstance(x, Iota) for x in walk(e))
