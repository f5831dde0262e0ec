"""Rows that are positions of several heads: an index `Q[…, r // G, …, h + r % G, …]`, r counting rows along one axis.

From a row that is a multiple of 64 on, 64 rows are a box: of G heads and 64 / G positions where G divides 64, of 64 heads of one
position where 64 divides G.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.expr import Expr, Int, Iota, Op, walk


@dataclass(frozen=True)
class Groups:
    """`position` and `head`: which dimensions they are; `row` counts rows, `size` heads at each position."""

    position: int
    head: int
    row: Expr
    size: int

    def box(self, rows: int) -> tuple[int, int]:
        """(heads, positions) of a box of so many rows."""
        heads = min(self.size, rows)
        return heads, rows // heads


def groups_of(index: tuple[Expr, ...]) -> Groups | None:
    """The groups of a tile, or None where its rows are those of one head."""
    for position, i in enumerate(index):
        match i:
            case Op("//", (row, Int(size))) if any(isinstance(x, Iota) for x in walk(row)):
                part = Op("%", (row, Int(size)))
                for head, x in enumerate(index):
                    if head != position and (x is part or (isinstance(x, Op) and x.name == "+" and x.args[1] is part)):
                        return Groups(position, head, row, size)
    return None
