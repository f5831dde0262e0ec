"""Tiles that cross the end of their sequence, where others' rows or dead storage follow: padded, packed and paged keys.

A box ends where its tensor does, not where a sequence does, so it brings what lies behind.  Keys there give scores that the
mask replaces, query rows there are never stored: these boxes are copied as they are.  Values are multiplied with weights
of 0, and 0 * NaN is NaN, so rows that are contracted must be zero:

    PAGES    behind its last page a sequence has none, so a tile that goes on there brings that page again
    TAIL     the copy of a tile that crosses the end lands on a barrier of its own.  The producer overwrites the rows behind the
             end with zeros, makes them visible to the asynchronous proxy, and arrives for the copy.  The copy of any other
             tile signals the ring itself

Only the last tile of a sequence pays, and it is the first to be requested: the producer would wait for a free slot anyway.
Source: PTX ISA, async proxy: wgmma reads and TMA writes shared memory through it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.build import add, all_of, compare, conjuncts, floordiv, mod, sub, where
from tilec.ir.expr import Expr, Float, Int, Iota, Op, Read, Var, transform, walk
from tilec.ir.groups import Groups, groups_of
from tilec.ir.nodes import (
    Arrive,
    Bar,
    Barrier,
    Compute,
    Copy,
    Fence,
    If,
    Let,
    Load,
    Mma,
    Program,
    Role,
    Slot,
    Stmt,
    Wait,
)
from tilec.ir.nodes import walk as statements
from tilec.ir.pages import bounded, pages_of
from tilec.passes.rings import Ring
from tilec.passes.scope import fresh


@dataclass(frozen=True)
class Tails:
    """How tiles that may cross the end are copied.  `contracted`: register tiles whose rows a product sums over; `landed`: the
    barrier of rule TAIL; `count`: how often it was used."""

    program: Program
    contracted: frozenset[str]
    landed: Barrier
    count: Var

    def copies(self, ring: Ring, s: Load, stage: Expr) -> tuple[Stmt, ...]:
        """What brings the tile of `s` to a stage of its ring, and arrives on the ring's barrier once."""
        full = Bar(ring.full.name, stage)
        groups = groups_of(s.index)
        if groups is not None:
            return (Copy(ring.slot(stage), s.tensor, s.index, _grouped(self.program, s, groups), full),)
        within, end = _ends(self.program, s)
        if end is None:
            return (ring.copy(s, stage),)
        position, length = end.args
        pages = pages_of(s.index)
        index = s.index if pages is None else bounded(s.index, pages, floordiv(sub(length, 1), pages.size))
        if ring.tile.name not in self.contracted:
            return (ring.copy(replace(s, index=index, where=within), stage),)
        if ring.part is not None:
            message = f"the CTAs of a cluster do not share the copy of a tile of `{s.tensor}`"
            note = "rows behind the end of a sequence are cleared by the CTA that copied them"
            raise ScheduleFault("E0811", message, note=note, hint="remove the `cluster` line")
        size = next(a.size for a in ring.tile.axes if Iota(a.name) in walk(position))
        last = add(transform(position, _lane_zero), size)
        live = where(end, Read(ring.buffer.name, stage), Float(0.0))
        tail: tuple[Stmt, ...] = (
            Copy(ring.slot(stage), s.tensor, index, within, Bar(self.landed.name)),
            Wait(Bar(self.landed.name), mod(self.count, 2)),
            Let(self.count.name, add(self.count, 1)),
            Compute(Slot(ring.buffer.name, stage), live),
            Fence("async_proxy"),
            Arrive(full),
        )
        return (If(compare(">", last, length), tail, (Copy(ring.slot(stage), s.tensor, s.index, within, full),)),)

    def used(self, body: tuple[Stmt, ...]) -> bool:
        """Whether a copy of `body` lands on the barrier of rule TAIL."""
        signals = (s.signal for s in statements(body) if isinstance(s, Copy) and s.signal is not None)
        return any(bar.name == self.landed.name for bar in signals)


def find_tails(program: Program, role: Role, rings: tuple[Ring, ...]) -> Tails:
    """The plan for `role`, with names that are free in the program."""
    rows = {ring.tile.name: ring.tile.axes[0].name for ring in rings}
    axes = {b.name: {a.name for a in b.axes} for b in role.buffers}
    summed = {
        s.b.buffer
        for s in statements(role.body)
        if isinstance(s, Mma) and s.b.buffer in rows and rows[s.b.buffer] not in axes[s.dst.buffer]
    }
    summed |= {r.follows for r in rings if r.tile.name in summed and r.follows is not None}
    landed, count = fresh(program, "landed", "tails")
    return Tails(program, frozenset(summed), Barrier(landed.name, "mbarrier", 1, tx=True), count)


def _ends(program: Program, s: Load) -> tuple[Expr | None, Op | None]:
    """(guard of what the tensor has, guard that says "inside the sequence" where that is tighter)."""
    pages, dims = pages_of(s.index), program.tensor(s.tensor).dims
    row = next(n for n, i in enumerate(s.index[:-1]) if any(isinstance(x, Iota) for x in walk(i)))
    within = all_of() if pages is not None else compare("<", s.index[row], dims[row])
    lane = next(x for x in walk(s.index[row]) if isinstance(x, Iota))
    guards = conjuncts(s.where)
    ends = [g for g in guards if lane in walk(g) and g is not within]
    if not ends:
        return s.where, None
    (end,) = ends
    assert isinstance(end, Op) and end.name == "<"
    return all_of(*(within if g is end else g for g in guards)), end


def _grouped(program: Program, s: Load, groups: Groups) -> Expr:
    """Guard of what the tensor has of rows that are positions of several heads."""
    dims = program.tensor(s.tensor).dims
    features = [g for g in conjuncts(s.where) if s.index[-1] in walk(g)]
    return all_of(*(compare("<", s.index[n], dims[n]) for n in (groups.position, groups.head)), *features)


def _lane_zero(e: Expr) -> Expr | None:
    match e:
        case Op("+", (x, Int(0))):
            return x
        case Iota():
            return Int(0)
    return None
