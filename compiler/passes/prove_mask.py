"""prove_mask: walk only the key tiles that the mask can keep, and mask only those it does not keep whole.

Contract.  In: the textbook program, whose key loops are unsplit.  Out: each such loop became, for every range of live keys,
up to three loops in order: `left` and `right` keep the per-element mask, `full` has neither mask nor tail guards.  Loops that
are proved never to run are left out; each loop carries the proof (`nodes.Proof`) that `ir.verify` derives again.  Live pairs
and their order of accumulation inside a tile are unchanged; results are equal up to the order of tiles.

    BOUNDS    tile numbers in closed form, defined once before the loops, from `arith.bounds` and `arith.segments`; what they
              share is named first (`bound0`, …)
    SEEK      bounds through a nondecreasing tensor are found by bisection first
    FULL      in a full tile the mask and `k < N` are true: they are replaced by `true` everywhere in the body
    RESIDUE   with (q - k) % T fixed by the mask, a tile holds rows of one residue class, r = 0 .. T - 1, and the keys of the
              matching class: q = T*i + r.  The grid gets a coordinate `r`, and bounds are those of the class

A mask outside the provable language costs speed, never an error: `unknown` lists what stayed opaque.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.arith.bounds import k_bounds
from tilec.arith.formula import Normal, normalise
from tilec.arith.residue import Residue, ResidueClass, in_class, residue_of
from tilec.arith.segments import TileSegment, tile_segments
from tilec.ir import storage
from tilec.ir.attention import Attention
from tilec.ir.build import add, all_of, cdiv, compare, mul
from tilec.ir.expr import TRUE, Expr, Fetch, Int, Iota, Op, Read, Var, children, substitute, transform, walk
from tilec.ir.nodes import (
    Cluster,
    Compute,
    For,
    If,
    Let,
    Load,
    Program,
    Proof,
    Seek,
    Segment,
    Slot,
    Stmt,
    map_exprs,
    rewrite,
)
from tilec.ir.nodes import walk as walk_statements
from tilec.passes.lower_attention import grid_of, map_lets
from tilec.passes.names import local, starts
from tilec.passes.tidy import read

SHORT = 5  # nodes of an expression that is not worth a name


@dataclass(frozen=True)
class MaskOptions:
    """`residue`: use residue order where the mask allows it.  `split`: False leaves every tile masked (`skip none`)."""

    residue: bool = True
    split: bool = True


def normal_of(attn: Attention) -> Normal:
    """The mask's normal form, with the facts that the spec declares of its params."""
    return normalise(attn.mask, q=attn.q, k=attn.k, params=facts_of(attn))


def facts_of(attn: Attention) -> Mapping[str, frozenset[str]]:
    """Declared facts by tensor."""
    return {t.name: t.facts for t in attn.tensors if t.facts}


def residue_order(attn: Attention) -> Residue | None:
    """The residue that the mask fixes, if this storage can be walked by it: dense rows and keys, a constant period."""
    dense = all(attn.index(i).storage.kind == "dense" for i in (attn.q, attn.k))
    residue = residue_of(normal_of(attn))
    return residue if residue is not None and dense and isinstance(residue.period, Int) else None


def prove_mask(program: Program, attn: Attention, options: MaskOptions = MaskOptions()) -> Program:
    """The program with its key loops trimmed and split."""
    residue = residue_order(attn) if options.residue else None
    if residue is not None:
        program = _by_class(program, attn, residue)
    if not options.split:
        return program
    role = program.roles[0]
    if any(isinstance(s, For) and s.proof is not None and s.proof.segment != "all" for s in walk_statements(role.body)):
        raise ValueError("the key loops are already split")
    splitter = _Splitter(program, attn, residue)
    return program.with_(roles=(replace(role, body=splitter.body(role.body)),))


class _Splitter:
    def __init__(self, program: Program, attn: Attention, residue: Residue | None) -> None:
        self.attn = attn
        self.size = next(a.size for b in program.roles[0].buffers for a in b.axes if a.name == attn.k)
        self.rows = (Var(f"{attn.q}_first"), Var(f"{attn.q}_last"))
        q, k = attn.index(attn.q).extent, attn.index(attn.k).extent
        normal, keys, rows = normal_of(attn), k, q
        if residue is not None:
            klass = _class(attn, residue)
            normal, rows, keys = klass.normal, klass.rows, klass.keys
        assumes = (compare("<", self.rows[1], rows), *attn.assumes)
        bounds = k_bounds(normal, *self.rows, keys, assumes, name=f"{attn.k}_edge")
        self.formula, self.keys = normal.mask, keys
        self.seeks = tuple(self._memory(s) for s in bounds.seeks)
        self.segments = tile_segments(bounds, self.size)

    def _memory(self, s: Seek) -> Seek:
        """A seek that reads tensors as they lie in memory."""

        def rule(x: Expr) -> Expr | None:
            if not isinstance(x, Fetch):
                return None
            return Fetch(x.tensor, storage.read_at(self.attn, self.attn.tensor(x.tensor), x.index))

        return Seek(s.name, s.lo, s.hi, substitute(transform(s.cond, rule), starts(self.attn)))

    def body(self, statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Bounds before the first cluster with a key loop, loops split inside."""
        out: list[Stmt] = []
        for s in statements:
            match s:
                case Cluster("row_max", loops):
                    out += [*self.seeks, *self._lets()]
                    out.append(Cluster("row_max", self._split(loops)))
                case Cluster("weights", loops):
                    out.append(Cluster("weights", self._split(loops)))
                case If(cond, then, orelse):
                    out.append(If(cond, self.body(then), orelse))
                case _:
                    out.append(s)
        return tuple(out)

    def _names(self, part: int) -> tuple[str, ...]:
        tail = "" if len(self.segments) == 1 else str(part)
        return tuple(local(self.attn, f"{n}{tail}") for n in ("first", "full", "edge", "end"))

    def _lets(self) -> list[Stmt]:
        """rule BOUNDS: the four tile numbers of each segment; a bound that is constant or equals the one before has no name."""
        out: list[Stmt] = []
        known: dict[Expr, Expr] = {}
        wanted: list[tuple[str, Expr]] = []
        for part, segment in enumerate(self.segments):
            first, full, edge, end = zip(self._names(part), self._numbers(segment), strict=True)
            wanted += [x for x in (first, end, full, edge) if not isinstance(x[1], Int)]  # `end` lies within the others
        for n, common in enumerate(_repeated([value for _, value in wanted])):
            name = local(self.attn, f"bound{n}")
            out.append(Let(name, substitute(common, known)))
            known[common] = Var(name)
        for name, value in wanted:
            if value not in known:
                out.append(Let(name, substitute(value, known)))
                known[value] = Var(name)
        self.known = known
        return out

    @staticmethod
    def _numbers(s: TileSegment) -> tuple[Expr, Expr, Expr, Expr]:
        return (s.lo, s.full_lo, s.full_hi, s.hi)

    def _split(self, loops: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in loops:
            if not (isinstance(s, For) and s.proof is not None and s.proof.segment == "all"):
                out.append(s)
                continue
            full = _full_body(s.body)
            for part, segment in enumerate(self.segments):
                numbers = [self.known.get(n, n) for n in self._numbers(segment)]
                parts: list[tuple[Segment, bool, tuple[Stmt, ...]]] = [
                    ("left", segment.left_empty, s.body),
                    ("full", segment.full_empty, full),
                    ("right", segment.right_empty, s.body),
                ]
                for n, (which, empty, body) in enumerate(parts):
                    if not empty:
                        names = (self.attn.q, self.attn.k)
                        proof = Proof(
                            self.formula, self.rows, which, part, segment.because, self.keys, self.size, names
                        )
                        out.append(For(s.var, numbers[n], numbers[n + 1], body, proof))
        return tuple(out)


def _repeated(values: list[Expr]) -> list[Expr]:
    """Sub-expressions that occur more than once, inner ones first; those that only ever occur inside a larger one of
    the same count, and short ones, stay where they are."""
    count: dict[Expr, int] = {}
    inside: dict[Expr, set[Expr]] = {}
    for value in dict.fromkeys(values):
        for e in walk(value):
            count[e] = count.get(e, 0) + 1
            for part in children(e):
                inside.setdefault(part, set()).add(e)
    whole = set(values)
    found = [
        e
        for e, n in count.items()
        if n > 1 and e not in whole and sum(1 for _ in walk(e)) > SHORT and all(count[x] < n for x in inside[e])
    ]
    return sorted(found, key=lambda e: sum(1 for _ in walk(e)))


def _full_body(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """rule FULL."""
    live: set[Expr] = set()
    for s in body:
        match s:
            case Compute(_, Op("where", (cond, _, x))) if str(x) == "-inf":
                live |= set(_conjuncts(cond))

    def true(e: Expr) -> Expr | None:
        if e in live:
            return TRUE
        match e:
            case Op("and", args):
                return all_of(*args)
            case Op("where", (cond, a, _)) if cond is TRUE:
                return a
        return None

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        new = map_exprs(s, lambda e: transform(e, true))
        if isinstance(new, Load) and new.where is TRUE:
            new = replace(new, where=None)
        match new:
            case Compute(dst, Read(name, None)) if name == dst.buffer:
                return ()
        return (new,)

    return _read_only(rewrite(body, rule))


def _read_only(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Without the loads of tiles that only the mask read."""
    used = read(body)
    return tuple(s for s in body if not (isinstance(s, Load) and s.dst.buffer not in used))


def _conjuncts(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Op("and", (a, b)):
            return (*_conjuncts(a), *_conjuncts(b))
    return (e,)


# ---------------------------------------------------------------------------------------------- residue order


def _class(attn: Attention, residue: Residue) -> ResidueClass:
    extents = (attn.index(attn.q).extent, attn.index(attn.k).extent)
    return in_class(normal_of(attn), residue, Var(local(attn, "r")), extents, facts_of(attn))


def _holds(attn: Attention, residue: Residue) -> set[Expr]:
    """Comparisons of the mask, over tiles, that residue order makes true."""
    at: dict[Expr, Expr] = {Var(n): Read(n) for n in (attn.q, attn.k)}
    found = set()
    for e in walk(attn.mask):
        if isinstance(e, Op) and e.name == "==":
            normal = normalise(e, q=attn.q, k=attn.k)
            if residue_of(normal) == residue and [len(c) for c in normal.union] == [1]:
                found.add(substitute(e, at))
    return found


def _by_class(program: Program, attn: Attention, residue: Residue) -> Program:
    """rule RESIDUE: positions, extents of the loops and the grid by class."""
    klass = _class(attn, residue)
    size = {a.name: a.size for b in program.roles[0].buffers for a in b.axes}
    first, last = Var(f"{attn.q}_first"), Var(f"{attn.q}_last")
    rows = mul(add(first, Iota(attn.q)), residue.period)
    key = mul(add(mul(Var(local(attn, "j")), size[attn.k]), Iota(attn.k)), residue.period)

    holds = _holds(attn, residue)

    def simpler(e: Expr) -> Expr | None:
        match e:
            case Op("and", args):
                return all_of(*args)
        return TRUE if e in holds else None

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        s = map_exprs(s, lambda e: transform(e, simpler))
        match s:
            case Let(name, Op("-", (Op("min", (x, _)), one))) if name == last.name:
                return (Let(name, Op("-", (Op("min", (x, klass.rows)), one))),)
            case Compute(Slot(name), _) if name == attn.q:
                return (Compute(Slot(name), add(rows, klass.row_class)),)
            case Compute(Slot(name), _) if name == attn.k:
                return (Compute(Slot(name), add(key, klass.key_class)),)
            case For() if s.proof is not None:
                proof = replace(s.proof, formula=klass.normal.mask, keys=klass.keys)
                return (replace(s, hi=cdiv(klass.keys, size[attn.k]), proof=proof),)
            case Cluster("map", _):
                return (Cluster("map", map_lets(coords, Var("cta"))),)
        return (s,)

    tile_rows = cdiv(cdiv(attn.index(attn.q).extent, residue.period), size[attn.q])
    coords = ((program.grid.coords[0][0], tile_rows), (local(attn, "r"), residue.period), *program.grid.coords[1:])
    role = program.roles[0]
    return program.with_(grid=grid_of(coords), roles=(replace(role, body=rewrite(role.body, rule)),))
