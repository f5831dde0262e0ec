"""Tiles that lie in pages: an index `K[t[…, p // P], …, p % P, …]`, p counting along one axis from a scalar start.

Where the start is a multiple of R = gcd(P, rows of the tile), rows i R … i R + R lie in one page: a tile is a few boxes of R
rows.  The page number may be bounded, `t[…, min(p // P, last)]`: then what lies behind the last page is that page again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.build import minimum
from tilec.ir.expr import Expr, Fetch, Int, Iota, Op, transform, walk


@dataclass(frozen=True)
class Pages:
    """`page` and `row`: which dimensions number pages and the rows in one; `position` counts rows of the sequence."""

    page: int
    row: int
    position: Expr
    size: int


def pages_of(index: tuple[Expr, ...]) -> Pages | None:
    """The pages of a tile, or None where it does not lie in any."""
    for row, i in enumerate(index):
        match i:
            case Op("%", (position, Int(size))) if any(isinstance(x, Iota) for x in walk(position)):
                number = Op("//", (position, Int(size)))
                found = [n for n, x in enumerate(index) if isinstance(x, Fetch) and number in walk(x)]
                if len(found) == 1:
                    return Pages(found[0], row, position, size)
    return None


def bounded(index: tuple[Expr, ...], pages: Pages, last: Expr) -> tuple[Expr, ...]:
    """The index with no page behind number `last`."""
    number = Op("//", (pages.position, Int(pages.size)))
    fetch = index[pages.page]
    assert isinstance(fetch, Fetch)
    look_up = Fetch(fetch.tensor, tuple(minimum(i, last) if i is number else i for i in fetch.index))
    return tuple(look_up if n == pages.page else i for n, i in enumerate(index))


def at_lane(e: Expr, axis: str, lane: Expr) -> Expr:
    """`e` in one lane along an axis."""
    return transform(e, lambda x: lane if x is Iota(axis) else None)
