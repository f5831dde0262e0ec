"""The statements that compute one tile of output rows: reads of memory, scores, the two textbook loops, the finish.

Used by `lower_attention` alone.  Names in the program: positions `q`, `k` (as the spec calls them), `Q_tile` for a tile of
tensor Q, `scores`, `weights`, `row_max`, `row_sum`, `acc`; a name the spec already uses gets a trailing underscore.
"""

from __future__ import annotations

from tilec.ir import storage
from tilec.ir.attention import Attention, Dtype, Tensor
from tilec.ir.build import add, all_of, call, cdiv, compare, mul, sub, where
from tilec.ir.expr import (
    NEG_INFINITY,
    ONE,
    ZERO,
    Expr,
    Fetch,
    Float,
    Int,
    Iota,
    Read,
    Reduce,
    Var,
    children,
    free_vars,
    substitute,
    transform,
)
from tilec.ir.nodes import Axis, Buffer, Cluster, Compute, For, Let, Load, Mma, Proof, Slot, Stmt, Store
from tilec.passes.names import local


class TileBody:
    """Builds the body for one Attention; `tiles` maps each tile axis to its constant."""

    def __init__(self, attn: Attention, tiles: dict[str, Var]) -> None:
        self.attn = attn
        self.axes = {name: Axis(name, size) for name, size in tiles.items()}
        self.buffers: dict[str, Buffer] = {}
        self.tile_of: dict[str, str] = {}  # a query, key or value tensor -> the buffer of its tile
        self.pages: dict[Expr, Expr] = {}  # a look-up in a block table -> the tile of pages
        self.held: dict[Expr, Expr] = {}  # a read of memory -> the scalar or tile that holds it
        q, k = attn.q, attn.k
        self.q_tile, self.k_tile = self._buffer(q, "i32", q), self._buffer(k, "i32", k)
        self.scores = self._buffer("scores", "f32", q, k)
        self.row_max = self._buffer("row_max", "f32", q)
        self.row_sum = self._buffer("row_sum", "f32", q)
        self.acc = self._buffer("acc", "f32", q, attn.feature)
        self.weights = self._buffer("weights", "f32", q, k)
        self.seeds = (Var(local(attn, "seed")), Var(local(attn, "offset")))
        self.rounded = self._buffer("rounded", attn.tensor(attn.value).dtype, q, k)

    def _buffer(self, name: str, dtype: Dtype, *axes: str) -> str:
        attn = self.attn
        taken = {i.name for i in attn.indices} - {attn.q, attn.k}
        while name in taken or name in self.buffers:
            name += "_"
        self.buffers[name] = Buffer(name, "register", dtype, tuple(self.axes[a] for a in axes))
        return name

    # ------------------------------------------------------------------------------------------ the tile

    def statements(self, first: Var, last: Var) -> tuple[Stmt, ...]:
        """Everything after the rows' positions are known."""
        attn = self.attn
        prepare = [*self._scalars(), *self._row_tiles()]
        scores = self._score_statements()
        j = Var(local(attn, "j"))
        position = Compute(Slot(self.k_tile), add(mul(j, self.axes[attn.k].size), Iota(attn.k)))
        keys, names = attn.index(attn.k).extent, (attn.q, attn.k)
        size = self.axes[attn.k].size
        tiles = cdiv(keys, size)
        proof = Proof(attn.mask, (first, last), "all", 0, "every key tile, masked per element", keys, size, names)

        def loop(*body: Stmt) -> For:
            return For(j.name, ZERO, tiles, (position, *body), proof)

        maximum = call("max", Read(self.row_max), Reduce("max", attn.k, Read(self.scores)))
        return (
            *prepare,
            Compute(Slot(self.row_max), NEG_INFINITY),
            Cluster("row_max", (loop(*scores, Compute(Slot(self.row_max), maximum)),)),
            Compute(Slot(self.row_sum), Float(0.0)),
            Compute(Slot(self.acc), Float(0.0)),
            Cluster("weights", (loop(*scores, *self._weight_statements()),)),
            Cluster("finish", self._finish()),
        )

    def _score_statements(self) -> tuple[Stmt, ...]:
        """scores = the scaled product, through the score lines, -inf where the mask is false or the key does not exist."""
        attn = self.attn
        out: list[Stmt] = []
        product = self._products(out)
        lines = (mul(attn.scale, product), *attn.scores)
        keys = [e for line in (*lines, attn.mask) for e in self._fetches(line) if attn.k in free_vars(e)]
        out += self._loads(dict.fromkeys(keys))
        for line in lines:
            out.append(Compute(Slot(self.scores), self._tile_value(line)))
        live = all_of(self._tile_value(attn.mask), self._exists(attn.k))
        out.append(Compute(Slot(self.scores), where(live, Read(self.scores), NEG_INFINITY)))
        return tuple(out)

    def _products(self, out: list[Stmt]) -> Expr:
        """Appends the products of all pairs and gives their sum, with descale factors, over `s` (the score tile).

        Pairs with equal factors accumulate in one tile; every other pair gets a tile of its own."""
        attn = self.attn
        groups: dict[Expr, str] = {}
        for n, (query, key) in enumerate(attn.pairs):
            factor: Expr = ONE
            for t in (attn.tensor(query), attn.tensor(key)):
                if t.scaled is not None:
                    factor = mul(factor, t.scaled)
            first = factor not in groups
            if first:
                groups[factor] = self._buffer(f"{query}_product", "f32", attn.q, attn.k) if groups else self.scores
            out += self._load(attn.tensor(key), attn.contracted[n])
            a, b = Slot(self.tile_of[query]), Slot(self.tile_of[key])
            out.append(Mma(Slot(groups[factor]), a, b, accumulate=not first))
        terms = [mul(f, Var("s") if name == self.scores else Read(name)) for f, name in groups.items()]
        total = terms[0]
        for term in terms[1:]:
            total = add(total, term)
        return total

    def _weight_statements(self) -> tuple[Stmt, ...]:
        """weights = exp(scores - row_max); row_sum and acc gather them; acc sees them rounded to the value's dtype."""
        attn = self.attn
        score = Read(self.scores)
        dead = compare("==", score, NEG_INFINITY)
        weight = where(dead, Float(0.0), call("exp", sub(score, Read(self.row_max))))
        out: list[Stmt] = [
            Compute(Slot(self.weights), weight),
            Compute(Slot(self.row_sum), add(Read(self.row_sum), Reduce("sum", attn.k, Read(self.weights)))),
        ]
        if attn.dropout is not None:
            out.append(Compute(Slot(self.weights), self._dropped(attn.dropout.p)))
        out.append(Compute(Slot(self.rounded), Read(self.weights)))
        value = attn.tensor(attn.value)
        if value.name not in {key for _, key in attn.pairs}:
            out += self._load(value, attn.feature)
        out.append(Mma(Slot(self.acc), Slot(self.rounded), Slot(self.tile_of[value.name]), accumulate=True))
        return tuple(out)

    def _dropped(self, p: float) -> Expr:
        """The weights that dropout keeps, still in 0 … 1: `_finish` scales their sum up."""
        draw = call("uniform", *self.seeds, *self.attn.dropout_words, Read(self.q_tile), Read(self.k_tile))
        return where(compare(">=", draw, Float(p)), Read(self.weights), Float(0.0))

    def _finish(self) -> tuple[Stmt, ...]:
        attn = self.attn
        out: list[Stmt] = []
        if attn.sink is not None:
            top = self._buffer("top", "f32", attn.q)
            sink, row_max = self._tile_value(attn.sink), Read(self.row_max)
            shrink = call("exp", sub(row_max, Read(top)))
            grown = add(mul(Read(self.row_sum), shrink), call("exp", sub(sink, Read(top))))
            dead = compare("==", row_max, NEG_INFINITY)
            out += [
                Compute(Slot(top), call("max", row_max, sink)),
                Compute(Slot(self.acc), mul(Read(self.acc), shrink)),
                Compute(Slot(self.row_sum), where(dead, Float(0.0), grown)),
                Compute(Slot(self.row_max), where(dead, NEG_INFINITY, Read(top))),
            ]
        total = Read(self.row_sum)
        inverse = where(compare("==", total, Float(0.0)), Float(0.0), call("/", Float(1.0), total))
        if attn.dropout is not None and attn.dropout.p:
            inverse = mul(inverse, Float(1.0 / (1.0 - attn.dropout.p)))
        scaled = attn.tensor(attn.value).scaled
        if scaled is not None:
            inverse = mul(inverse, self._tile_value(scaled))
        out.append(self._store(attn.output, mul(Read(self.acc), inverse), (attn.q, attn.feature)))
        if attn.lse is not None:
            out.append(self._store(attn.lse, add(Read(self.row_max), call("log", total)), (attn.q,)))
        return tuple(out)

    # ------------------------------------------------------------------------------------------ memory

    def _exists(self, axis: str) -> Expr:
        """Position `axis` lies inside this sequence."""
        return compare("<", Read(axis), self.attn.index(axis).extent)

    def _guard(self, *axes: str) -> Expr:
        """Lanes of these axes that exist: positions inside the sequence, features inside the extent."""
        rows = (self.attn.q, self.attn.k)
        return all_of(
            *(self._exists(a) if a in rows else compare("<", Iota(a), self.attn.index(a).extent) for a in axes)
        )

    def _at(self) -> dict[Expr, Expr]:
        """Logical index -> its value in a tile: positions are tiles, features count lanes, the rest are scalars."""
        attn = self.attn
        env: dict[Expr, Expr] = {Var(attn.q): Read(self.q_tile), Var(attn.k): Read(self.k_tile)}
        for name in {*attn.contracted, attn.feature}:
            env[Var(name)] = Iota(name)
        return env

    def _load(self, tensor: Tensor, feature: str) -> list[Stmt]:
        """`T_tile` = the tile of a query, key or value tensor; before it, pages that no earlier tile of keys has looked up."""
        attn = self.attn
        row = attn.q if tensor.slot == "query" else attn.k
        if tensor.name not in self.tile_of:
            self.tile_of[tensor.name] = self._buffer(f"{tensor.name}_tile", tensor.dtype, row, feature)
        name = self.tile_of[tensor.name]
        index = storage.address(attn, tensor, self._at())
        pages = [i for i in index if isinstance(i, Fetch) and i not in self.pages]
        out: list[Stmt] = []
        for page in pages:
            table = self._buffer(f"{page.tensor}_tile", "i32", attn.k)
            self.pages[page] = Read(table)
            out.append(Load(Slot(table), page.tensor, page.index, self._guard(attn.k)))
        return [
            *out,
            Load(Slot(name), tensor.name, tuple(self.pages.get(i, i) for i in index), self._guard(row, feature)),
        ]

    def _store(self, name: str, value: Expr, axes: tuple[str, ...]) -> Store:
        tensor = self.attn.tensor(name)
        index = storage.address(self.attn, tensor, self._at())
        return Store(name, index, value, axes, self._guard(*axes))

    def _row_tiles(self) -> list[Stmt]:
        """Queries, and what scores, mask and sink read of the rows alone."""
        attn = self.attn
        out: list[Stmt] = []
        for n, (query, _) in enumerate(attn.pairs):
            out += self._load(attn.tensor(query), attn.contracted[n])
        lines = (*attn.scores, attn.mask, *((attn.sink,) if attn.sink else ()))
        rows = [e for x in lines for e in self._fetches(x) if attn.q in free_vars(e) and attn.k not in free_vars(e)]
        return out + self._loads(dict.fromkeys(rows))

    def _scalars(self) -> list[Stmt]:
        """What scores, mask, scales and sink read once for the whole tile."""
        attn = self.attn
        scaled = [t.scaled for t in attn.tensors if t.scaled is not None]
        lines = (attn.scale, *attn.scores, attn.mask, *scaled, *((attn.sink,) if attn.sink else ()))
        reads = [e for x in lines for e in self._fetches(x) if not free_vars(e) & {attn.q, attn.k}]
        out: list[Stmt] = []
        for e in dict.fromkeys(reads):
            name = self._fresh(f"{e.tensor}_value")
            self.held[e] = Var(name)
            out.append(Let(name, self._memory(e)))
        if attn.rng is not None:
            out += [Let(seed.name, Fetch(attn.rng, (Int(n),))) for n, seed in enumerate(self.seeds)]
        return out

    def _loads(self, reads: dict[Fetch, None]) -> list[Stmt]:
        """Loads of param and bias tiles, each guarded by the positions it depends on."""
        attn = self.attn
        out: list[Stmt] = []
        for e in reads:
            axes = tuple(a for a in (attn.q, attn.k) if a in free_vars(e))
            name = self._buffer(f"{e.tensor}_tile", attn.tensor(e.tensor).dtype, *axes)
            self.held[e] = Read(name)
            index = tuple(substitute(i, self._at()) for i in self._memory(e).index)
            out.append(Load(Slot(name), e.tensor, index, all_of(self._guard(*axes), self._in_table(e))))
        return out

    def _in_table(self, e: Fetch) -> Expr:
        """A computed index (`table[q - k]`) is read where the mask is true and the index lies in the table."""
        attn = self.attn
        tensor = attn.tensor(e.tensor)
        bounds = [
            all_of(compare(">=", i, 0), compare("<", i, storage.dimension(attn, dim)))
            for i, dim in zip(e.index, tensor.index, strict=True)
            if not isinstance(i, Var) and i is not dim
        ]
        if not bounds:
            return all_of()
        live = attn.mask if attn.k in free_vars(e) else all_of()
        return all_of(*(self._tile_value(x) for x in (live, *bounds)))

    def _fresh(self, name: str) -> str:
        used = {v.name for v in self.held.values() if isinstance(v, Var)} | set(self.buffers)
        while name in used:
            name += "_"
        return name

    def _fetches(self, e: Expr) -> list[Fetch]:
        """Reads of memory in `e`; a read inside another's index stays part of it."""
        if isinstance(e, Fetch):
            return [e]
        return [x for part in children(e) for x in self._fetches(part)]

    def _memory(self, e: Fetch) -> Fetch:
        """A logical read as a read of the tensor as it lies in memory."""
        done = transform(e, self._read_at)
        assert isinstance(done, Fetch)
        return done

    def _read_at(self, x: Expr) -> Expr | None:
        if not isinstance(x, Fetch) or self.attn.tensor(x.tensor).slot == "table":
            return None
        return Fetch(x.tensor, storage.read_at(self.attn, self.attn.tensor(x.tensor), x.index))

    def _tile_value(self, e: Expr) -> Expr:
        """A score, mask or scale expression over tiles: reads come from what holds them, `s` is the score tile."""
        held = substitute(e, self.held)
        return substitute(held, {**self._at(), Var("s"): Read(self.scores)})
