"""map_blocks: in which order the blocks take the tiles.

Contract.  In: a program whose cluster `map` is the linear one of `lower_attention`.  Out: the same tiles, each exactly once, for
every value of the extents, in the order asked for; `grid.order` and `grid.numbers` name it and the cluster spells it out
(`block_order` has the formulas).  Order changes which tiles run together, so caches and the tail of the grid, never a result.

    linear          row tiles of one head after the other: its keys and values stay in L2
    block_first     the first row tile of every head, then the second of every head, …
    longest_first   for masks whose rows see more keys the later they come (causal): the last row tile of every head first, so
                    that the tail of the grid is made of short tiles (Graham 1969, LPT).  By sections of heads whose keys
                    and values about fit in part of the L2 together, and no more than have `fill` tiles, or of as many
                    as `window` says.  All are of one size but the last: long tiles of a small last section would be
                    the tail (simulated, 32 heads of 4096 rows by sevens end 10 % later than by eights)
    xcd             blocks go to chiplets round robin (AMD); the map gives each chiplet one run of consecutive tiles, or, with
                    `chunk`, that many heads at a time: heads of its own, in either case.  Under longest_first a chunk is a
                    section, and `span` widens chunks where heads have few row tiles, so that tails stay short
    fold            a block takes the p-th row tile from the end and then the p-th: causal blocks are equally long
    persistent      as many blocks as the machine has units; block i takes tiles i, i + units, …

xcd and persistent combine with the order inside; fold with xcd, and with linear and block_first, whose rows are then pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tilec.ir.build import add, cdiv, compare, floordiv, maximum, minimum, mod, mul, sub, where
from tilec.ir.expr import Expr, Int, Var
from tilec.ir.nodes import Cluster, Let, Program, Stmt, While, rewrite
from tilec.passes.block_order import (
    Coords,
    FreeNames,
    Sizes,
    chunk_sections,
    chunks,
    head_by_head,
    product,
    runs,
    sections,
)

# Half of an H200's 60 MB L2: with a quarter of it short tiles lose 6-8 %, with more than the whole 12 %.
# Measured there by sweeping the section over 8, 16, 32 and 128 MB.
SECTION_SHARE = 2

Order = Literal["linear", "block_first", "longest_first"]


@dataclass(frozen=True)
class BlockMap:
    """`order` of the tiles; `xcds` > 1 gives each chiplet tiles of its own; `units`: persistent blocks, None for one per tile.

    `chunk`: heads that a chiplet takes at a time, None for one run of tiles each; with `span`, the least multiple of them of
    which all chiplets together have so many tiles.  `window`: heads of a section of longest_first; None for a chunk, where
    there are chunks, else for as many as `l2` holds, and on chiplets, whose L2 is smaller, one.  `fold`: two row tiles a block.

    `bytes_per_key`: of K and V of one key head together, and `sharing`: how many consecutive heads read the same one; with
    `l2` bytes of cache they size the sections of longest_first, and with `fill`: a section has about so many tiles at the most.
    Its first tiles read its keys and values from memory and the others from the cache, so where the former are more than run at
    once, memory is waited for and then idle.  With `fill` more sizes are weighed for the last section, which takes divisions:
    it is for targets whose host computes what a call's sizes decide."""

    order: Order = "linear"
    xcds: int = 1
    units: int | None = None
    l2: int = 0
    bytes_per_key: int = 1
    sharing: int = 1
    keys: Expr = Int(1)  # noqa: RUF009  (interned)
    fill: int | None = None
    chunk: int | None = None
    window: int | None = None
    span: int | None = None
    fold: bool = False

    def __post_init__(self) -> None:
        if self.fold and (self.units is not None or self.order == "longest_first"):
            raise ValueError("folded rows are equally long: they are neither persistent nor longest first")
        if self.chunk is not None and self.xcds == 1:
            raise ValueError("chunks are a chiplet's, and there is one")
        if self.span is not None and (self.chunk is None or self.window is not None or self.order != "longest_first"):
            raise ValueError("a span is one of sections that are chunks")
        if any(n is not None and n < 1 for n in (self.chunk, self.window, self.span)):
            raise ValueError(
                f"a chunk of {self.chunk} and a window of {self.window} heads, a span of {self.span} tiles"
            )

    @property
    def name(self) -> str:
        """What `grid.order` says."""
        parts = [self.order, "fold" if self.fold else "", f"xcd{self.xcds}" if self.xcds > 1 else ""]
        return "_".join(p for p in (*parts, "persistent" if self.units is not None else "") if p)

    @property
    def numbers(self) -> tuple[tuple[str, int | str], ...]:
        """What `grid.numbers` says."""
        some = (("chunk", self.chunk), ("window", self.window), ("span", self.span))
        return tuple((n, v) for n, v in some if v is not None)


def map_blocks(program: Program, block_map: BlockMap) -> Program:
    """The program with that block map.  Raises ValueError if its map was already chosen."""
    if program.grid.order != "linear":
        raise ValueError(f"the block map is already {program.grid.order}")
    role, grid = program.roles[0], replace(program.grid, order=block_map.name, numbers=block_map.numbers)
    names = FreeNames(program)
    loop_tile = names("tile")
    tile = floordiv(Var("cta"), grid.cluster) if block_map.units is None else loop_tile

    def body_with(lets: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        def rule(s: Stmt) -> tuple[Stmt, ...] | None:
            return (Cluster("map", lets),) if isinstance(s, Cluster) and s.kind == "map" else None

        return rewrite(role.body, rule)

    if block_map.fold:
        body, tiles = _folded(grid.coords, tile, block_map, names, body_with)
        grid = replace(grid, ctas=mul(grid.cluster, tiles))
    else:
        body = body_with(coordinates(grid.coords, tile, block_map, names))
    if block_map.units is not None:
        grid = replace(grid, ctas=minimum(block_map.units, grid.tiles))
        ctas = names("ctas")
        loop = While(compare("<", tile, grid.tiles), (*body, Let(loop_tile.name, add(tile, ctas))))
        body = (Let(ctas.name, grid.ctas), Let(loop_tile.name, Var("cta")), loop)
    return program.with_(grid=grid, roles=(replace(role, body=body),))


def coordinates(coords: Coords, tile: Expr, m: BlockMap, names: FreeNames) -> tuple[Stmt, ...]:
    """Lines from the number of the block's tile to its coordinates, whose first counts rows."""
    last_first = m.order == "longest_first"
    if last_first and m.chunk is not None and m.window is None:
        return chunk_sections(coords, tile, m.xcds, _chunk(m, m.chunk, coords[0][1]), last_first, names)
    lets: list[Stmt] = []
    number = tile
    if m.xcds > 1 and m.chunk is not None:
        lets, number = chunks(tile, product(coords), m.xcds, mul(m.chunk, coords[0][1]), names)
    elif m.xcds > 1:
        lets, number = runs(tile, product(coords), m.xcds, names)
    if m.order == "block_first":
        return (*lets, *sections(coords, number, None, last_first, names))
    section = _section(m, coords[0][1], names) if last_first else None
    if section is not None:
        return (*lets, *sections(coords, number, section, last_first, names))
    return (*lets, *head_by_head(coords, number, last_first, names))


def _chunk(m: BlockMap, chunk: int, row_tiles: Expr) -> Expr:
    """Heads of a chunk."""
    return Int(chunk) if m.span is None else mul(chunk, cdiv(m.span, mul(m.xcds * chunk, row_tiles)))


def _section(m: BlockMap, row_tiles: Expr, names: FreeNames) -> Sizes | None:
    """Heads of a section, of the number of all heads; None for one."""
    window = m.window
    if window is not None:
        return None if window == 1 else lambda heads: ((), minimum(heads, window))
    budget = m.l2 // SECTION_SHARE * m.sharing // m.bytes_per_key  # in keys
    if m.xcds > 1 or budget == 0:  # a chiplet walks its heads one by one: its own L2 holds one
        return None
    fit, count = names("fit"), names("count")
    cached = floordiv(budget, maximum(1, m.keys))
    most = cached if m.fill is None else minimum(cached, floordiv(m.fill, maximum(1, row_tiles)))

    def alike(heads: Expr) -> tuple[tuple[Stmt, ...], Expr]:
        rounded = floordiv(add(mul(2, heads), fit), mul(2, fit))
        lets = (
            Let(fit.name, maximum(1, most)),
            Let(count.name, maximum(1, rounded)),
        )
        if m.fill is None:
            return lets, cdiv(heads, count)
        some = [cdiv(heads, n) for n in (count, maximum(1, sub(count, 1)), add(count, 1))]
        sizes = [names(f"size_{n}") for n in range(len(some))]
        return (*lets, *(Let(s.name, x) for s, x in zip(sizes, some, strict=True))), _fullest(heads, sizes, fit)

    return alike


def _fullest(heads: Expr, sizes: list[Var], fit: Var) -> Expr:
    """The size whose last section lacks the fewest heads, of these the first, and none that is half as large again as `fit`: what
    it lacks, its place and what it is as digits of one number, of which the least is taken."""
    base = add(heads, 1)
    most = add(fit, cdiv(fit, 2))
    lacks = [add(sub(mul(cdiv(heads, maximum(1, s)), s), heads), mul(heads, maximum(0, sub(s, most)))) for s in sizes]
    ranks = [add(mul(lack, len(sizes)), n) for n, lack in enumerate(lacks)]
    return mod(minimum(*(add(mul(rank, base), s) for rank, s in zip(ranks, sizes, strict=True))), base)


def _folded(
    coords: Coords,
    tile: Expr,
    m: BlockMap,
    names: FreeNames,
    body_with: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]],
) -> tuple[tuple[Stmt, ...], Expr]:
    """The body for both row tiles of a pair, the later first, and the number of pairs.  A middle row tile is its own pair."""
    (rows, row_tiles), rest = coords[0], coords[1:]
    pair, step, steps, tiles = names(f"{rows}_pair"), names("step"), names("steps"), names(f"{rows}_all")
    paired: Coords = ((pair.name, cdiv(row_tiles, 2)), *rest)
    row = where(compare("==", step, 0), sub(sub(tiles, 1), pair), pair)
    once = body_with((Let(rows, row),))
    lets: tuple[Stmt, ...] = (
        *coordinates(paired, tile, m, names),
        Let(tiles.name, row_tiles),
        Let(steps.name, where(compare("==", add(mul(pair, 2), 1), tiles), 1, 2)),
    )
    loop = While(compare("<", step, steps), (*once, Let(step.name, add(step, 1))))
    return (Cluster("map", lets), Let(step.name, Int(0)), loop), product(paired)
