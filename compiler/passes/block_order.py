"""From a block's number to a tile's coordinates: the formulas of the block maps, as statements.

Every formula is a permutation of 0 … count - 1 for every count, so that a map built of them takes each tile once.  `rows` is the
number of row tiles, `heads` that of everything else together (batch entries included), heads next to each other being those that
share keys.

    runs       XCD x of n takes the x-th of n runs of consecutive numbers, as equal as can be
    chunks     XCD x of n takes chunks x, x + n, … of `chunk` numbers each; what no whole cycle of n chunks holds stays as it is
               (HipKittens, arXiv 2511.08083, algorithm 1, with >= at the limit, so that it is a permutation)
    sections   `width` heads at a time, of which heads vary fastest and rows slowest (the window of the same algorithm)
    chunk_sections   chunks of whole heads that are sections as well; heads that no whole cycle holds are one section of all XCDs,
               in front of the others: a last section of few heads would begin long tiles when the grid ends

The hardware gives block i to XCD i % n (HipKittens, arXiv 2511.08083): performance rests on it, results do not.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.build import add, compare, floordiv, maximum, minimum, mod, mul, sub, where
from tilec.ir.expr import Expr, Int, Var
from tilec.ir.nodes import Let, Program, Stmt
from tilec.passes.lower_attention import map_lets

Coords = tuple[tuple[str, Expr], ...]
Names = Callable[[str], Var]
Sizes = Callable[
    [Expr], tuple[tuple[Stmt, ...], Expr]
]  # of the number of heads: what comes first, and heads of a section


class FreeNames:
    """Scalars that no coordinate, buffer or axis of the program is called."""

    def __init__(self, program: Program) -> None:
        buffers = program.roles[0].buffers
        self.taken = {name for name, _ in program.grid.coords} | {b.name for b in buffers}
        self.taken |= {a.name for b in buffers for a in b.axes}

    def __call__(self, name: str) -> Var:
        while name in self.taken:
            name += "_"
        return Var(name)


def product(coords: Coords) -> Expr:
    """Of the extents."""
    count: Expr = Int(1)
    for _, extent in coords:
        count = mul(count, extent)
    return count


def runs(tile: Expr, tiles: Expr, xcds: int, names: Names) -> tuple[list[Stmt], Expr]:
    """The number that block `tile` takes on XCD tile % xcds, and the statements that compute it."""
    xcd, total, share, left, number = (names(n) for n in ("xcd", "total", "share", "left", "number"))
    lets: list[Stmt] = [
        Let(xcd.name, mod(tile, xcds)),
        Let(total.name, tiles),
        Let(share.name, floordiv(total, xcds)),
        Let(left.name, mod(total, xcds)),
        Let(number.name, add(add(mul(xcd, share), minimum(xcd, left)), floordiv(tile, xcds))),
    ]
    return lets, number


def chunks(tile: Expr, tiles: Expr, xcds: int, chunk: Expr, names: Names) -> tuple[list[Stmt], Expr]:
    """As `runs`."""
    size, cycle, whole, turn, number = (names(n) for n in ("chunk", "cycle", "whole", "turn", "number"))
    moved = add(add(mul(floordiv(turn, size), cycle), mul(mod(tile, xcds), size)), mod(turn, size))
    lets: list[Stmt] = [
        Let(size.name, chunk),
        Let(cycle.name, mul(size, xcds)),
        Let(whole.name, mul(floordiv(tiles, cycle), cycle)),
        Let(turn.name, floordiv(tile, xcds)),
        Let(number.name, where(compare("<", tile, whole), moved, tile)),
    ]
    return lets, number


def head_by_head(coords: Coords, number: Expr, last_first: bool, names: Names) -> tuple[Stmt, ...]:
    """Row tiles of one head after the other, ascending, or from the last to the first."""
    if not last_first:
        return map_lets(coords, number)
    (rows, row_tiles), rest = coords[0], coords[1:]
    tiles, head = names(f"{rows}_tiles"), names("head")
    return (
        Let(tiles.name, row_tiles),
        Let(rows, sub(sub(tiles, 1), mod(number, tiles))),
        Let(head.name, floordiv(number, tiles)),
        *(map_lets(rest, head) if rest else ()),
    )


def sections(coords: Coords, number: Expr, size: Sizes | None, last_first: bool, names: Names) -> tuple[Stmt, ...]:
    """Sections of heads one after the other; `size` says of how many, None for all of them at once."""
    (rows, row_tiles), rest = coords[0], coords[1:]
    tiles, heads, section = names(f"{rows}_tiles"), names("heads"), names("section")
    first, width, inside, head = names("section_first"), names("width"), names("inside"), names("head")

    def row(turn: Expr) -> Expr:
        return sub(sub(tiles, 1), turn) if last_first else turn

    lets: tuple[Stmt, ...] = (Let(tiles.name, row_tiles), Let(heads.name, product(rest)))
    if size is None:
        lets = (*lets, Let(rows, row(floordiv(number, heads))), Let(head.name, mod(number, heads)))
    else:
        before, most = size(heads)
        lets = (
            *lets,
            *before,
            Let(section.name, most),
            Let(first.name, mul(floordiv(number, mul(tiles, section)), section)),
            Let(width.name, minimum(section, sub(heads, first))),
            Let(inside.name, mod(number, mul(tiles, section))),
            Let(rows, row(floordiv(inside, width))),
            Let(head.name, add(first, mod(inside, width))),
        )
    return (*lets, *(map_lets(rest, head) if rest else ()))


def chunk_sections(
    coords: Coords, tile: Expr, xcds: int, chunk: Expr, last_first: bool, names: Names
) -> tuple[Stmt, ...]:
    """Chunks of `chunk` heads, each a section of one XCD."""
    (rows, row_tiles), rest = coords[0], coords[1:]
    tiles, heads, size = names(f"{rows}_tiles"), names("heads"), names("chunk")
    whole, front, turn, inside = names("whole"), names("front"), names("turn"), names("inside")
    first, width, head = names("section_first"), names("width"), names("head")
    own = compare(">=", tile, front)  # of a chunk
    span, after = mul(size, tiles), maximum(0, sub(tile, front))
    place = add(mul(floordiv(turn, span), xcds), mod(after, xcds))
    row = floordiv(inside, width)
    return (
        Let(tiles.name, row_tiles),
        Let(heads.name, product(rest)),
        Let(size.name, chunk),
        Let(whole.name, mul(floordiv(heads, mul(size, xcds)), mul(size, xcds))),
        Let(front.name, mul(sub(heads, whole), tiles)),
        Let(turn.name, floordiv(after, xcds)),
        Let(first.name, where(own, mul(place, size), whole)),
        Let(width.name, where(own, size, sub(heads, whole))),
        Let(inside.name, where(own, mod(turn, span), tile)),
        Let(rows, sub(sub(tiles, 1), row) if last_first else row),
        Let(head.name, add(first, mod(inside, width))),
        *(map_lets(rest, head) if rest else ()),
    )
