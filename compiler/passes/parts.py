"""Key loops of one walk, as the parts of a mask that they cover.

Loops of one part are contiguous (`arith.segments`): a part has tiles if its first loop begins before its last one ends.
"""

from __future__ import annotations

from tilec.ir.build import any_of, compare, where
from tilec.ir.expr import Expr
from tilec.ir.nodes import For


def parts(loops: tuple[For, ...]) -> tuple[tuple[For, ...], ...]:
    """The loops, those together that begin where the one before ends."""
    out: list[list[For]] = []
    for loop in loops:
        if out and loop.lo is out[-1][-1].hi:
            out[-1].append(loop)
        else:
            out.append([loop])
    return tuple(map(tuple, out))


def some(part: tuple[For, ...]) -> Expr:
    """Whether the part has a tile."""
    return compare("<", part[0].lo, part[-1].hi)


def extent(loops: tuple[For, ...]) -> tuple[Expr, Expr]:
    """Whether any loop has a tile, and the end of the last one that has."""
    first, *rest = parts(loops)
    end: Expr = first[-1].hi
    for part in rest:
        end = where(some(part), part[-1].hi, end)
    return any_of(some(first), *map(some, rest)), end
