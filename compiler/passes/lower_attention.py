"""lower_attention: an Attention as the textbook's tile loops.

Contract.  The result computes exactly the meaning stated in `ir.attention`, by the two-pass safe softmax: a first walk over
all key tiles finds each row's maximum, a second one the weights, their sum and the weighted values.  Every tile of the
key range is visited and masked per element; nothing is skipped, split or reordered.  A role's body reads

    cluster map         this block's tile coordinates, from `cta`
    let M, N            lengths of this sequence, for packed and padded storage
    cluster row_max     for j in all key tiles: scores; row_max = max(row_max, scores)
    cluster weights     for j in all key tiles: scores; weights = exp(scores - row_max); row_sum, acc += weights . V
    cluster finish      sink, division, stores

Later passes find the clusters by name, and inside them the buffers named as the row and key index (positions), the one
masking `where(live, scores, -inf)`, and the loads guarded by `k < N`.

Rows in memory that belong to no sequence (past a length, past the last packed offset) are not written: outputs of packed and
padded storage start out as zero, their LSE as -inf.

Requires every extent that a tile needs as a constant to be bound (`frontend.bind`).  Tile constants get small defaults, which
`choose_tiles` replaces; feature tiles start at their exact extent.
"""

from __future__ import annotations

from typing import Literal

from tilec.ir import storage
from tilec.ir.attention import Attention, Index, Tensor
from tilec.ir.build import add, cdiv, compare, floordiv, minimum, mod, mul, sub
from tilec.ir.expr import Expr, Fetch, Int, Iota, Var, substitute
from tilec.ir.nodes import Cluster, Compute, Global, Grid, If, Let, Program, Role, Seek, Slot, Stmt, map_exprs, rewrite
from tilec.passes.names import local, starts
from tilec.passes.tile_body import TileBody

DEFAULT_TILE = 64


def lower_attention(attn: Attention, target: str) -> Program:
    """The textbook program of `attn`.  Raises ValueError if the extent of a feature index is still a symbol."""
    names = Names(attn)
    body = TileBody(attn, names.tiles)
    statements = (Cluster("map", map_lets(names.coords, Var("cta"))), *_sequence(attn, names, body))
    return Program(
        name=attn.name,
        target=target,
        tile=tuple((c.name, n) for c, n in names.sizes),
        extents=storage.storage_symbols(attn),
        tensors=(*(_global(attn, t) for t in attn.tensors), *_rng(attn)),
        grid=grid_of(names.coords),
        buffers=(),
        barriers=(),
        roles=(Role("block", "block", 1, statements, buffers=tuple(body.buffers.values())),),
    )


class Names:
    """Tile constants of the axes and the tile coordinates: `m` (row tile) and one for each outer index of the output."""

    def __init__(self, attn: Attention) -> None:
        self.tiles: dict[str, Var] = {}
        self.sizes: list[tuple[Var, int]] = []
        taken = set(storage.storage_symbols(attn)) | set(attn.extents)
        for name in dict.fromkeys((attn.q, attn.k, *attn.contracted, attn.feature)):
            constant = f"T{name.upper()}"
            while constant in taken:
                constant += "_"
            extent = attn.index(name).extent
            if name in (attn.q, attn.k):
                size = DEFAULT_TILE
            elif isinstance(extent, Int):
                size = extent.value
            else:
                raise ValueError(f"{attn.name}: the extent of {name} must be a constant here, not {extent}")
            self.tiles[name] = Var(constant)
            self.sizes.append((Var(constant), size))
        self.row_tile, self.slot = local(attn, "m"), local(attn, "slot")
        self.coords = self._coords(attn)

    def _coords(self, attn: Attention) -> tuple[tuple[str, Expr], ...]:
        q = attn.index(attn.q)
        rows, size = storage.rows_symbol(q), self.tiles[attn.q]
        outer = tuple((i.name, i.extent) for i in reversed(attn.outer))
        if q.storage.kind != "packed":
            return ((self.row_tile, cdiv(rows, size)), *outer)
        # A sequence starts a tile of its own, so there may be one more tile than rows fill, for each sequence.
        batch = storage.batch_of(attn, q).name
        slots = add(floordiv(rows, size), attn.index(batch).extent)
        return ((self.slot, slots), *(c for c in outer if c[0] != batch))


def map_lets(coords: tuple[tuple[str, Expr], ...], number: Expr) -> tuple[Stmt, ...]:
    """Tile coordinates from a tile's `number`, the first varying fastest; a computed extent gets a name (`m_tiles`)."""
    out: list[Stmt] = []
    for i, (name, extent) in enumerate(coords):
        size = extent
        if not isinstance(extent, Int | Var):
            size = Var(f"{name}_tiles")
            out.append(Let(size.name, extent))
        last = i == len(coords) - 1
        out.append(Let(name, number if last else mod(number, size)))
        number = floordiv(number, size)
    return tuple(out)


def grid_of(coords: tuple[tuple[str, Expr], ...]) -> Grid:
    """One block per tile, in the order of the coordinates."""
    tiles: Expr = Int(1)
    for _, extent in coords:
        tiles = mul(tiles, extent)
    return Grid(tiles, tiles, "linear", coords)


def _global(attn: Attention, t: Tensor) -> Global:
    mode: Literal["in", "param", "out", "table"]
    match t.slot:
        case "output" | "lse":
            mode = "out"
        case "param" | "bias" | "sink":
            mode = "param"
        case "table":
            mode = "table"
        case _:
            mode = "in"
    return Global(t.name, mode, t.dtype, storage.memory_dims(attn, t))


def _rng(attn: Attention) -> tuple[Global, ...]:
    """Where dropout's seed and offset lie: in device memory, so that a captured graph reads new ones at each replay."""
    return () if attn.rng is None else (Global(attn.rng, "table", "i64", (Int(2),)),)


def _sequence(attn: Attention, names: Names, body: TileBody) -> tuple[Stmt, ...]:
    """Lengths of this tile's sequence, then the tile itself if it has rows in it."""
    q, k = attn.index(attn.q), attn.index(attn.k)
    size = names.tiles[attn.q]
    first, last = Var(f"{q.name}_first"), Var(f"{q.name}_last")
    head: list[Stmt] = list(_find_sequence(attn, q, size, names)) if q.storage.kind == "packed" else []
    begin = starts(attn)
    lengths = {i.extent.name: storage.length_of(attn, i) for i in (q, k) if isinstance(i.extent, Var)}
    dense = {i.extent.name for i in (q, k) if i.storage.kind == "dense" and isinstance(i.extent, Var)}
    head += [Let(v.name, read) for read, v in begin.items() if isinstance(v, Var)]
    head += [Let(name, substitute(n, begin)) for name, n in lengths.items() if name not in dense]
    head.append(Let(first.name, mul(Var(names.row_tile), size)))
    tile = (
        Let(last.name, sub(minimum(add(first, size), q.extent), 1)),
        Compute(Slot(q.name), add(first, Iota(q.name))),
        *_renamed(body.statements(first, last), begin),
    )
    if q.storage.kind == "dense":
        return (*head, *tile)
    return (*head, If(compare("<", first, q.extent), tile))


def _renamed(body: tuple[Stmt, ...], names: dict[Expr, Expr]) -> tuple[Stmt, ...]:
    """The statements with `names` in place of what they stand for."""
    return rewrite(body, lambda s: (map_exprs(s, lambda e: substitute(e, names)),)) if names else body


def _find_sequence(attn: Attention, q: Index, size: Expr, names: Names) -> tuple[Stmt, ...]:
    """The sequence that tile `slot` of packed rows lies in, and the tile's number there.

    Sequence b owns the slots from offsets[b] // size + b on: at least as many as it has tiles, since
    floor(x + n) - floor(x) + 1 >= ceil(n).  A slot it does not need has q_first >= M."""
    b, table = storage.batch_of(attn, q), q.storage.table or ""
    extent = attn.index(b.name).extent

    def start(i: Expr) -> Expr:
        return add(floordiv(Fetch(table, (i,)), size), i)

    found = compare(">", start(add(b, 1)), Var(names.slot))
    return (
        Seek(b.name, Int(0), sub(extent, 1), found),
        Let(names.row_tile, sub(Var(names.slot), start(b))),
    )
