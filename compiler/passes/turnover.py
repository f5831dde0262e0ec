"""The end of a tile and the beginning of the next, in a consumer of several tiles.

In order, a warpgroup awaits the last product of a tile, stores, receives the number of the next one, works out which that is
(a block map has four integer divisions), waits for its queries, and takes its first step with nothing left to multiply.

    NUMBER   the number of the next tile is received, and what costs of its scalars is computed, while the last product of this
             one runs: the block map, and what is fetched.  Others wait until registers are free
    VECTORS  values of keys that are not multiplied are loaded by the tile that uses them
    SCORES   the first scores of the next tile are issued behind the last product of this one, which is then awaited alone: they
             are made while this tile is divided by its sums and stored.  Registers of scores and queries are free by then.  A
             tile without keys has no last product, and none ahead of it
    KEPT     scalars of this tile that its end reads have copies: those of the next one have taken their place
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilec.dsl.faults import ScheduleFault
from tilec.ir.build import all_of, compare
from tilec.ir.expr import Expr, Fetch, Read, Var, free_vars, substitute, walk
from tilec.ir.nodes import Await, Cluster, Compute, For, If, Let, Load, Mma, Program, Seek, Stmt, map_exprs, rewrite
from tilec.ir.nodes import walk as statements
from tilec.passes.consumer import Consumer
from tilec.passes.rings import differing
from tilec.passes.scope import fresh

Ahead = Literal["nothing", "number", "scores"]
Rotated = tuple[tuple[Stmt, ...], tuple[Stmt, ...]]  # what comes before the first tile; each tile


@dataclass(frozen=True)
class Parts:
    """A tile of `overlap`.  Its scalars are `early` by rules NUMBER and SCORES, or `late`; `some`: whether it has keys, and
    `alike`: all tiles have, or none.  `scores` are the products of its first step, of which `softmax` is the rest; `values`
    is the last product, `awaited` before `finish`, which reads `kept`."""

    early: tuple[Stmt, ...]
    late: tuple[Stmt, ...]
    queries: tuple[Stmt, ...]
    starts: tuple[Stmt, ...]
    kept: tuple[Stmt, ...]
    some: Expr
    alike: bool
    scores: tuple[Stmt, ...]
    softmax: tuple[Stmt, ...]
    loops: tuple[Stmt, ...]
    values: tuple[Stmt, ...]
    awaited: Await
    finish: tuple[Stmt, ...]


def turned(c: Consumer, program: Program, ahead: Ahead) -> Rotated:
    """The consumer with `ahead` of the next tile before the end of one.  ScheduleFault E0811 where a CTA has one tile, where rows
    decide whether there is one, and where products are awaited one by one."""
    p = None if c.work.kind == "one" else find_parts(c, program, ahead)
    if p is None:
        raise ScheduleFault(
            "E0811",
            "the next tile cannot begin before the end of one",
            note="that takes CTAs of several tiles, all of which have rows, with overlapping products",
            hint="its number and its first scores come after the end, with `ahead` of nothing",
        )
    return _Turnover(c, p).scores() if ahead == "scores" else _Turnover(c, p).number()


def find_parts(c: Consumer, program: Program, ahead: Ahead) -> Parts | None:
    """The parts of a tile; None where it has not these."""
    body = c.role.body
    at = next((n for n, s in enumerate(body) if isinstance(s, Cluster) and s.kind == "keys"), None)
    if at is None:
        return None
    (keys,), before = (s for s in body[at : at + 1] if isinstance(s, Cluster)), body[:at]
    *lets, steps = keys.body
    scalars = (*(s for s in before if _scalar(s)), *lets)
    if not (isinstance(steps, If) and all(map(_scalar, lets))) or any(isinstance(e, Read) for e in _within(scalars)):
        return None
    prologue, *loops, epilogue = steps.then
    others = tuple(s for s in before if not _scalar(s))
    whole = isinstance(prologue, Cluster) and isinstance(epilogue, Cluster) and all(isinstance(s, For) for s in loops)
    if not whole or not all(isinstance(s, Load | Compute) for s in others):
        return None
    assert isinstance(prologue, Cluster) and isinstance(epilogue, Cluster)
    queries = tuple(s for s in others if isinstance(s, Load) and s.dst.buffer in c.rings)
    first = next(n for n, s in enumerate(prologue.body) if isinstance(s, Await))
    vectors = [s for s in prologue.body[:first] if isinstance(s, Load) and s.dst.buffer not in c.rings]
    *values, awaited = epilogue.body
    assert isinstance(awaited, Await)
    early = _early(scalars, free_vars(steps.cond) if ahead == "scores" else frozenset())
    kept, finish = _kept(program, early, body[at + 1 :])
    apart = {"cta", *(s.name for s in differing(c.role, "cta"))}
    return Parts(
        early,
        tuple(s for s in scalars if s not in early),
        queries,
        tuple(s for s in others if s not in queries),
        kept,
        steps.cond,
        not free_vars(steps.cond) & apart and not any(isinstance(s, Seek) for s in scalars),
        tuple(s for s in prologue.body[:first] if s not in vectors),
        (*vectors, *prologue.body[first + 1 :]),
        tuple(loops),
        tuple(values),
        awaited,
        finish,
    )


def _scalar(s: Stmt) -> bool:
    return isinstance(s, Let | Seek) or (isinstance(s, Cluster) and s.kind == "map")


def _within(body: tuple[Stmt, ...]) -> list[Expr]:
    """Every expression in these statements."""
    found: list[Expr] = []

    def note(e: Expr) -> Expr:
        found.extend(walk(e))
        return e

    for s in statements(body):
        map_exprs(s, note)
    return found


def _early(scalars: tuple[Stmt, ...], names: frozenset[str]) -> tuple[Stmt, ...]:
    """Those of the block map, those that fetch, those of these names, and what they follow from."""
    wanted, out = set(names), []
    for s in reversed(scalars):
        found = _within((s,))
        if not isinstance(s, Let) or s.name in wanted or any(isinstance(e, Fetch) for e in found):
            out.append(s)
            wanted |= {e.name for e in found if isinstance(e, Var)}
    return tuple(reversed(out))


def _kept(program: Program, early: tuple[Stmt, ...], finish: tuple[Stmt, ...]) -> Rotated:
    """Rule KEPT: (copies, the statements of the end with these)."""
    read = {e.name for e in _within(finish) if isinstance(e, Var)}
    names = dict.fromkeys(s.name for s in statements(early) if isinstance(s, Let | Seek) and s.name in read)
    copies = dict(zip(names, fresh(program, *(f"{n}_out" for n in names)), strict=True))
    env: dict[Expr, Expr] = {Var(n): copy for n, copy in copies.items()}
    end = rewrite(finish, lambda s: (map_exprs(s, lambda e: substitute(e, env)),))
    return tuple(Let(copy.name, Var(n)) for n, copy in copies.items()), end


@dataclass(frozen=True)
class _Turnover:
    c: Consumer
    p: Parts

    def received(self, *then: Stmt) -> tuple[Stmt, ...]:
        """Rule NUMBER; `then` is done with the scalars of a tile that there is."""
        return (*self.c.work.received(), If(self.more, (*self.p.early, *then)))

    @property
    def more(self) -> Expr:
        """Whether there is a next tile, once its number was received."""
        return compare("<", self.c.work.tile, self.c.work.count)

    def number(self) -> Rotated:
        c, p = self.c, self.p
        begin = (*p.late, *c.block(p.queries), *c.block(p.starts), *p.kept)
        before, done = c.position.state(), c.queries_done()
        prologue = Cluster("prologue", c.block((*p.scores, p.awaited, *p.softmax)))
        loops = c.block(p.loops)
        epilogue = Cluster("epilogue", (*c.block(p.values), *self.received(), *c.block((p.awaited,))))
        c.position.stays(before)
        keys = If(p.some, (prologue, *loops, *done, epilogue), (*done, *self.received()))
        return p.early, (*begin, keys, *c.block(p.finish))

    def scores(self) -> Rotated:
        """A tile begins with its first scores made, where it has keys: then rings stand as `taken`."""
        c, p = self.c, self.p
        before, done, queries = dict(c.position.lags), c.queries_done(), c.block(p.queries)
        first = Cluster("ahead", c.block((*p.scores, p.awaited)))
        taken = c.position.state()
        prologue, loops = Cluster("prologue", c.block(p.softmax)), c.block(p.loops)
        c.position.stays(taken)
        values = c.block(p.values)
        flying, lags = list(c.flying), dict(c.position.lags)
        alone = (*c.block((p.awaited,)), *c.block(p.finish))
        c.flying, c.position.lags = flying, lags
        issued = sum(isinstance(s, Mma) for s in p.scores)
        both = Cluster("ahead", c.block((*p.scores, replace(p.awaited, pending=issued), *p.finish, p.awaited)))
        c.position.stays(taken)
        c.position.lags = before
        has = self.more if p.alike else all_of(self.more, p.some)
        epilogue = Cluster("epilogue", (*values, *self.received(*queries), If(has, (both,), alone)))
        empty = (*done, *c.block(p.finish), *self.received(*queries), *(() if p.alike else (If(has, (first,)),)))
        entry = (*p.early, *queries, If(p.some, (first,)))
        return entry, (*p.late, *c.block(p.starts), *p.kept, If(p.some, (prologue, *loops, *done, epilogue), empty))
