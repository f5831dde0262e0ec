"""The consumers of `specialize`: the body that loaded for itself, with waits in place of loads and slots given back.

RELEASE  a slot is given back after the Await that completes the last product reading it, or after a fence where it was read
         into registers
TURNS    `turn[i]` is warpgroup i's: complete when i syncs and the one before it has arrived.  The last one gives the
         first turn away
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilec.ir.build import add, compare, mod, sub
from tilec.ir.expr import Expr, Int, Read, Var
from tilec.ir.nodes import (
    Arrive,
    Await,
    Bar,
    Barrier,
    Cluster,
    Compute,
    Fence,
    For,
    If,
    Load,
    Mma,
    Role,
    Seek,
    Slot,
    Stmt,
    Sync,
    Wait,
)
from tilec.passes.rings import Position, Ring
from tilec.passes.searches import Searches
from tilec.passes.work import Work


@dataclass
class Consumer:
    """`held`: the stage of each ring that was last waited for; `flying`: rings read by each product in flight, oldest first."""

    role: Role
    rings: dict[str, Ring]  # by register tile
    work: Work
    turn: Barrier | None
    shared_queries: bool
    position: Position
    searches: Searches | None = None
    held: dict[str, Expr] = field(default_factory=dict)
    flying: list[tuple[str, ...]] = field(default_factory=list)

    def body(self) -> tuple[Stmt, ...]:
        """All that a consumer does."""
        return self.around((*self.block(self.role.body), *self.work.received()))

    def around(self, tile: tuple[Stmt, ...], entry: tuple[Stmt, ...] = ()) -> tuple[Stmt, ...]:
        """A tile for every one of the work; `entry` comes before the first."""
        first: tuple[Stmt, ...] = ()
        if self.turn is not None:
            first = (If(compare("==", self.me, self.role.count - 1), (Arrive(Bar(self.turn.name, Int(0))),)),)
        return self.work.around(tile, first, entry=entry)

    @property
    def me(self) -> Var:
        assert self.role.var is not None
        return Var(self.role.var)

    def block(self, body: tuple[Stmt, ...], after: tuple[Stmt, ...] = ()) -> tuple[Stmt, ...]:
        """One block; `after` follows it."""
        out: list[Stmt] = []
        led = False
        for n, s in enumerate(body):
            rest = (*body[n + 1 :], *after)
            match s:
                case Load() if s.dst.buffer in self.rings:
                    ring = self.rings[s.dst.buffer]
                    out += self.own(ring) if ring.own else self.take(ring)
                    led |= ring == self.position.leader
                case Seek() if self.searches is not None and self.searches.among(s):
                    out += self.searches.received(self.work.number) if self.searches.last(s) else ()
                case Mma():
                    out.append(self.product(s))
                case Await():
                    out += (s, *self.completed(s, rest))
                case Compute() if s.during:
                    out.append(replace(s, during=self.block(s.during, rest)))
                case For():
                    out.append(replace(s, body=self.turns(self.inner(s.body))))
                case If():
                    out.append(self.branch(s))
                case Cluster():
                    out.append(replace(s, body=self.block(s.body)))
                    if s.kind == "keys" and not _peeled(s.body):
                        out += self.queries_done()
                case _:
                    out.append(s)
        if led:
            out.append(self.position.step(self.rings.values()))
        return tuple(out)

    def inner(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """A block that may run any number of times."""
        before = self.position.state()
        out = self.block(body)
        self.position.stays(before)
        return out

    def branch(self, s: If) -> If:
        then, orelse = self.inner(s.then), self.inner(s.orelse)
        done = self.queries_done()
        if done and _peeled((s,)):
            then = tuple(
                x for y in then for x in ((*done, y) if isinstance(y, Cluster) and y.kind == "epilogue" else (y,))
            )
            orelse = (*orelse, *done)
        return If(s.cond, self.work.counted(s, then), orelse)

    def take(self, ring: Ring) -> list[Stmt]:
        number = self.position.take(ring)
        self.held[ring.tile.name] = ring.stage(number)
        return [ring.wait_full(number)] if ring.follows is None else []

    def own(self, ring: Ring) -> list[Stmt]:
        """This instance's slot, read into registers unless the products read it."""
        stage, uses = ring.mine(self.me, self.work.number)
        out: list[Stmt] = [Wait(Bar(ring.full.name, stage), mod(uses, 2))]
        self.held[ring.tile.name] = stage
        if not self.shared_queries:
            taken = Compute(Slot(ring.tile.name), Read(ring.buffer.name, stage))
            out += [taken, Fence("async_proxy"), ring.release(stage)]
        return out

    def queries_done(self) -> tuple[Stmt, ...]:
        """Slots of this instance that products read."""
        held = (r for r in self.rings.values() if r.own and self.shared_queries)
        return tuple(r.release(r.mine(self.me, self.work.number)[0]) for r in held)

    def product(self, s: Mma) -> Mma:
        def operand(x: Slot) -> Slot:
            ring = self.rings.get(x.buffer)
            return x if ring is None or (ring.own and not self.shared_queries) else ring.slot(self.held[x.buffer])

        read = (x.buffer for x in (s.a, s.b) if x.buffer in self.rings and not self.rings[x.buffer].own)
        self.flying.append(tuple(read))
        return replace(s, a=operand(s.a), b=operand(s.b))

    def completed(self, s: Await, rest: tuple[Stmt, ...]) -> list[Stmt]:
        """Rule RELEASE."""
        cut = max(0, len(self.flying) - s.pending)
        done, self.flying = self.flying[:cut], self.flying[cut:]
        still = (
            {r.follows for r in self.rings.values()}
            | {name for names in self.flying for name in names}
            | _read_again(rest)
        )
        freed = dict.fromkeys(name for names in done for name in names if name not in still)
        return [self.rings[name].release(self.held[name]) for name in freed]

    def turns(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Rule TURNS, around the products that a step issues before it awaits one."""
        issued = [n for n, s in enumerate(body) if isinstance(s, Mma)]
        if self.turn is None or not issued:
            return body
        end = next(n for n, s in enumerate(body) if isinstance(s, Await) or (isinstance(s, Compute) and s.during))
        first, last = issued[0], max(n for n in issued if n < end)
        count = self.role.count
        following = sub(1, self.me) if count == 2 else mod(add(self.me, 1), count)
        mine, theirs = Sync(Bar(self.turn.name, self.me)), Arrive(Bar(self.turn.name, following))
        return (*body[:first], mine, *body[first : last + 1], theirs, *body[last + 1 :])


def _peeled(body: tuple[Stmt, ...]) -> bool:
    """Whether these statements end in an epilogue under a condition."""
    return any(isinstance(s, If) and any(isinstance(x, Cluster) and x.kind == "epilogue" for x in s.then) for s in body)


def _read_again(rest: tuple[Stmt, ...]) -> set[str]:
    """Tiles that products read before they are loaded anew."""
    fresh: set[str] = set()
    found: set[str] = set()
    for s in rest:
        if isinstance(s, Load):
            fresh.add(s.dst.buffer)
        elif isinstance(s, Mma):
            found |= {x.buffer for x in (s.a, s.b)} - fresh
    return found
