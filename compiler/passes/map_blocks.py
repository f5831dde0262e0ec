"""map_blocks: in which order the blocks take the tiles.

Contract.  In: a program whose cluster `map` is the linear one of `lower_attention`.  Out: the same tiles, each exactly once, for
every value of the extents, in the order asked for; `grid.order` names it and the cluster spells it out.  Order changes
which tiles run together, so caches and the tail of the grid, never a result.

    linear          row tiles of one head after the other: its keys and values stay in L2
    longest_first   for masks whose rows see more keys the later they come (causal): the last row tile of every head first, so
                    that the tail of the grid is made of short tiles (Graham 1969, LPT).  By sections of heads whose keys
                    and values fit in part of the L2 together
    xcd             blocks go to chiplets round robin (AMD); the map gives each chiplet a run of consecutive tiles, hence
                    heads of its own: ceil and floor of tiles / chiplets, so any count works
    persistent      as many blocks as the machine has units; block i takes tiles i, i + units, …

xcd and persistent combine with the order inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilec.ir.build import add, compare, floordiv, maximum, minimum, mod, mul, sub
from tilec.ir.expr import Expr, Int, Var
from tilec.ir.nodes import Cluster, Let, Program, Stmt, While, rewrite
from tilec.passes.lower_attention import map_lets

# Half of an H200's 60 MB L2: with a quarter of it short tiles lose 6-8 %, with more than the whole 12 %.
# Measured there by sweeping the section over 8, 16, 32 and 128 MB.
SECTION_SHARE = 2


@dataclass(frozen=True)
class BlockMap:
    """`order` of the tiles; `xcds` > 1 gives each chiplet consecutive tiles; `units`: persistent blocks, None for one per tile.

    `bytes_per_key`: of K and V of one key head together, and `sharing`: how many consecutive heads read the same one; with
    `l2` bytes of cache they size the sections of longest_first."""

    order: Literal["linear", "longest_first"] = "linear"
    xcds: int = 1
    units: int | None = None
    l2: int = 0
    bytes_per_key: int = 1
    sharing: int = 1
    keys: Expr = Int(1)  # noqa: RUF009  (interned)


def map_blocks(program: Program, block_map: BlockMap) -> Program:
    """The program with that block map.  Raises ValueError if its map was already chosen."""
    if program.grid.order != "linear":
        raise ValueError(f"the block map is already {program.grid.order}")
    role = program.roles[0]
    names = _Names(program)
    loop_tile = names("tile")
    tile = floordiv(Var("cta"), program.grid.cluster) if block_map.units is None else loop_tile
    lets, number = _chiplets(tile, program.grid.tiles, block_map.xcds, names)
    coords = program.grid.coords
    if block_map.order == "longest_first":
        lets += _longest_first(coords, number, block_map, names)
    else:
        lets += map_lets(coords, number)

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        return (Cluster("map", tuple(lets)),) if isinstance(s, Cluster) and s.kind == "map" else None

    body = rewrite(role.body, rule)
    grid = replace(program.grid, order=_name(block_map))
    if block_map.units is not None:
        grid = replace(grid, ctas=minimum(block_map.units, grid.tiles))
        ctas = names("ctas")
        loop = While(compare("<", tile, grid.tiles), (*body, Let(loop_tile.name, add(tile, ctas))))
        body = (Let(ctas.name, grid.ctas), Let(loop_tile.name, Var("cta")), loop)
    return program.with_(grid=grid, roles=(replace(role, body=body),))


class _Names:
    """Scalars that no coordinate, buffer or axis of the program is called."""

    def __init__(self, program: Program) -> None:
        buffers = program.roles[0].buffers
        self.taken = {name for name, _ in program.grid.coords} | {b.name for b in buffers}
        self.taken |= {a.name for b in buffers for a in b.axes}

    def __call__(self, name: str) -> Var:
        while name in self.taken:
            name += "_"
        return Var(name)


def _name(m: BlockMap) -> str:
    parts: list[str] = [m.order]
    if m.xcds > 1:
        parts.append(f"xcd{m.xcds}")
    if m.units is not None:
        parts.append("persistent")
    return "_".join(parts)


def _chiplets(tile: Expr, tiles: Expr, xcds: int, names: _Names) -> tuple[list[Stmt], Expr]:
    """Which tile block `tile` takes when it runs on chiplet tile % xcds, and the statements that compute it."""
    if xcds == 1:
        return [], tile
    xcd, total, share, left = names("xcd"), names("total"), names("share"), names("left")
    number = names("number")
    start = add(mul(xcd, share), minimum(xcd, left))
    lets: list[Stmt] = [
        Let(xcd.name, mod(tile, xcds)),
        Let(total.name, tiles),
        Let(share.name, floordiv(total, xcds)),
        Let(left.name, mod(total, xcds)),
        Let(number.name, add(start, floordiv(tile, xcds))),
    ]
    return lets, number


def _longest_first(coords: tuple[tuple[str, Expr], ...], number: Expr, m: BlockMap, names: _Names) -> tuple[Stmt, ...]:
    """Sections of heads one after the other; in a section, row tiles from the last to the first, heads fastest."""
    (rows, row_tiles), rest = coords[0], coords[1:]
    count: Expr = Int(1)
    for _, extent in rest:
        count = mul(count, extent)
    tiles, heads, section = names(f"{rows}_tiles"), names("heads"), names("section")
    first, width, inside, head = names("section_first"), names("width"), names("inside"), names("head")
    budget = m.l2 // SECTION_SHARE * m.sharing // m.bytes_per_key  # in keys
    if m.xcds > 1 or budget == 0:  # a chiplet walks its heads one by one: its own L2 holds one
        return (
            Let(tiles.name, row_tiles),
            Let(rows, sub(sub(tiles, 1), mod(number, tiles))),
            Let(head.name, floordiv(number, tiles)),
            *(map_lets(rest, head) if rest else ()),
        )
    size = maximum(1, minimum(heads, floordiv(budget, maximum(1, m.keys))))
    return (
        Let(tiles.name, row_tiles),
        Let(heads.name, count),
        Let(section.name, size),
        Let(first.name, mul(floordiv(number, mul(tiles, section)), section)),
        Let(width.name, minimum(section, sub(heads, first))),
        Let(inside.name, mod(number, mul(tiles, section))),
        Let(rows, sub(sub(tiles, 1), floordiv(inside, width))),
        Let(head.name, add(first, mod(inside, width))),
        *(map_lets(rest, head) if rest else ()),
    )
