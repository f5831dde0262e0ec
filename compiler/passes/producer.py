"""The producer of `specialize`: a consumer's body without what computes, and a copy for each load of a ring.

SLICE    loops, branches and scalars stay; clusters but `map` are opened.  Neighbouring loops that only differed in how they
         mask are one
FIRST    the first keys are requested before the queries, whose slots the tile before may still use; the next tile is
         claimed before the last values are requested
EMPTY    a tile without rows (of packed or padded storage) copies nothing, and the next one is claimed at once
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.ir.build import add, mod
from tilec.ir.expr import ZERO, Expr, Int, Op, Var
from tilec.ir.nodes import Bar, Cluster, Copy, For, If, Let, Load, Role, Seek, Stmt, Wait
from tilec.ir.nodes import walk as statements
from tilec.passes.rings import Position, Ring, for_instance
from tilec.passes.searches import Searches
from tilec.passes.tails import Tails
from tilec.passes.work import Work


@dataclass
class Producer:
    """`instance`: the variable that counts the consumers."""

    role: Role
    rings: dict[str, Ring]  # by register tile
    work: Work
    tails: Tails
    instance: Var
    position: Position
    searches: Searches | None = None

    def body(self) -> tuple[Stmt, ...]:
        """All that the producer does."""
        first = (Let(self.tails.count.name, ZERO),)
        tile = (*self.arranged(self.slice(self.role.body)), *self.work.followed())
        last = (*self.position.drained(self.rings.values(), self.instance), *self.work.drained(self.instance))
        return self.work.around(tile, first, last)

    def slice(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Rule SLICE."""
        out: list[Stmt] = []
        led = False
        for s in body:
            match s:
                case Seek() if self.searches is not None and self.searches.last(s):
                    out += (s, *self.searches.handed(self.work.number))
                case Let() | Seek():
                    out.append(s)
                case Load() if s.dst.buffer in self.rings:
                    ring = self.rings[s.dst.buffer]
                    out += self.fill_each(ring, s) if ring.own else self.fill(ring, s)
                    led |= ring == self.position.leader
                case For():
                    inner = self.inner(s.body)
                    out += [replace(s, body=inner, proof=None, stages=None)] if _copies(inner) else []
                case If():
                    then, orelse = self.inner(s.then), self.inner(s.orelse)
                    out += [If(s.cond, then, orelse)] if _copies((*then, *orelse)) else []
                case Cluster("map" | "prologue" | "epilogue"):
                    out.append(replace(s, body=self.slice(s.body)))
                case Cluster():
                    out += self.slice(s.body)
                case _:
                    ...
        if led:
            out.append(self.position.step(self.rings.values()))
        return tuple(out)

    def inner(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        before = self.position.state()
        out = self.slice(body)
        self.position.stays(before)
        return out

    def fill(self, ring: Ring, s: Load) -> list[Stmt]:
        number = self.position.take(ring)
        if ring.follows is not None:
            return []
        return [ring.wait_empty(number), *self.tails.copies(ring, s, ring.stage(number))]

    def fill_each(self, ring: Ring, s: Load) -> list[Stmt]:
        """The slots of all instances."""
        load = for_instance(self.role, s, self.instance)
        stage, uses = ring.mine(self.instance, self.work.number)
        wait = Wait(Bar(ring.empty.name, stage), mod(add(uses, 1), 2))
        copies = self.tails.copies(ring, load, stage)
        return [For(self.instance.name, ZERO, Int(self.role.count), (wait, *copies))]

    def arranged(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Rules FIRST and EMPTY.  Without a first tile no loop runs, so only the two ends need the condition."""
        rows = next((s for s in body if isinstance(s, If) and s.cond is self.work.rows), None)
        if rows is not None:
            held = If(rows.cond, self.work.counted(rows, self.arranged(rows.then)), self.work.claimed())
            return tuple(held if s is rows else s for s in body)
        found = next((s for s in body if isinstance(s, If) and any(_is(x, "prologue") for x in s.then)), None)
        if found is None:
            return (*body, *self.work.claimed())
        (prologue,), (epilogue,) = ([x for x in found.then if _is(x, kind)] for kind in ("prologue", "epilogue"))
        assert isinstance(prologue, Cluster) and isinstance(epilogue, Cluster)
        loops = merged(tuple(x for x in found.then if x not in (prologue, epilogue)))
        queries = tuple(s for s in body if isinstance(s, For) and s.var == self.instance.name)
        return (
            *(s for s in body if s is not found and s not in queries),
            If(found.cond, prologue.body),
            *queries,
            *loops,
            *self.work.claimed(),
            *((If(found.cond, epilogue.body),) if epilogue.body else ()),
        )


def _is(s: Stmt, kind: str) -> bool:
    return isinstance(s, Cluster) and s.kind == kind


def _copies(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Copy) for s in statements(body))


def merged(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Neighbouring downward loops of one body as one, where their ranges are contiguous but for a common cut.

    With a <= b <= c: [b, min(c, t)) and then [a, min(b, t)) is [a, min(c, t))."""
    out: list[Stmt] = []
    for s in body:
        above = out[-1] if out else None
        if isinstance(s, For) and isinstance(above, For) and _continues(above, s):
            out[-1] = replace(above, lo=s.lo)
        else:
            out.append(s)
    return tuple(out)


def _continues(above: For, below: For) -> bool:
    if not (above.down and below.down and above.var == below.var and above.body == below.body):
        return False
    ends = set(_least(below.hi))
    return above.lo in ends and ends - {above.lo} <= set(_least(above.hi))


def _least(e: Expr) -> tuple[Expr, ...]:
    """Of what an end is the least."""
    return e.args if isinstance(e, Op) and e.name == "min" else (e,)
