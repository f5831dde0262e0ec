"""Rings of shared buffers between a role that fills them and roles that use them, and where each of them stands.

A ring has `stages` slots, a barrier `full` (one arrival: the copy's bytes) and a barrier `empty` (one arrival of every user).
Fill number i goes to slot i % stages; its user waits for `full` with parity i // stages % 2, its filler for `empty` with the
other one, so that the first pass over the slots goes through.

    COUNT   one scalar n counts steps on either side: fills of the `leader`, the ring used first.  Another ring's next fill is
            number n + lag, with a lag known at every point of the program: -1 between a step that took keys and the one that
            takes their values.  Both sides take in the same order, so their lags agree
    OWN     a tile whose address depends on the instance has a slot for each instance, filled once per tile of work; with a
            `depth` of 2, two, so that the next tile's is filled while this one's is in use
    FOLLOW  a tile that is loaded again where it was loaded before, in the same order (values that are keys), is the same slot:
            filled once, and given back after the second use.  There is a slot more, as one is held for a step
    PART    in a cluster, a tile whose address does not depend on the CTA is filled for all by all: each CTA copies its `part` of
            it to every CTA.  So a slot is full with an arrival of every CTA's copy, and may be filled by any of them when
            the users in every CTA have given it back
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.axes import constant
from tilec.ir.build import add, floordiv, mod, mul
from tilec.ir.expr import ONE, ZERO, Expr, Int, Iota, Var, free_vars, substitute
from tilec.ir.nodes import (
    Arrive,
    Bar,
    Barrier,
    Buffer,
    Copy,
    For,
    If,
    Let,
    Load,
    Mma,
    Program,
    Role,
    Slot,
    Stmt,
    Wait,
    Window,
    blocks,
    map_exprs,
    walk,
)
from tilec.passes.scope import names

FLOATS = ("bf16", "f16")
PANEL, ROWS = 64, 8  # columns and rows of shared tiles that are swizzled together


@dataclass(frozen=True)
class Ring:
    """`tile`: the register tile it stands for.  `own`, `depth`: rule OWN.  `part`: rule PART.  `follows`: rule FOLLOW, the tile
    whose slots these are."""

    tile: Buffer
    buffer: Buffer
    full: Barrier
    empty: Barrier
    own: bool
    part: Window | None = None
    depth: int = 1
    follows: str | None = None

    def stage(self, number: Expr) -> Expr:
        return mod(number, self.buffer.stages)

    def mine(self, instance: Expr, tile: Expr) -> tuple[Expr, Expr]:
        """Stage that `instance` has of tile number `tile` of the work, and how often it was used before: rule OWN."""
        instances = self.buffer.stages // self.depth
        return add(mul(instances, mod(tile, self.depth)), instance), floordiv(tile, self.depth)

    def slot(self, stage: Expr) -> Slot:
        return Slot(self.buffer.name, stage)

    def wait_full(self, number: Expr) -> Wait:
        """For fill `number`, by its user."""
        return Wait(Bar(self.full.name, self.stage(number)), mod(floordiv(number, self.buffer.stages), 2))

    def wait_empty(self, number: Expr) -> Wait:
        """For the slot of fill `number`, by its filler."""
        parity = mod(add(floordiv(number, self.buffer.stages), 1), 2)
        return Wait(Bar(self.empty.name, self.stage(number)), parity)

    def release(self, stage: Expr) -> Arrive:
        """The slot may be filled again."""
        return Arrive(Bar(self.empty.name, stage), everywhere=self.part is not None)

    def copy(self, s: Load, stage: Expr) -> Copy:
        """What this CTA copies of a fill."""
        full = Bar(self.full.name, stage)
        if self.part is None:
            return Copy(self.slot(stage), s.tensor, s.index, s.where, full)
        env: dict[Expr, Expr] = {Iota(self.part.axis): add(self.part.start, Iota(self.part.axis))}
        index, where = tuple(substitute(i, env) for i in s.index), None if s.where is None else substitute(s.where, env)
        return Copy(Slot(self.buffer.name, stage, (self.part,)), s.tensor, index, where, full, multicast=True)


@dataclass
class Position:
    """Where the rings stand at one point of the program: rule COUNT."""

    count: Var
    leader: Ring
    lags: dict[str, int] = field(default_factory=dict)

    def take(self, ring: Ring) -> Expr:
        """Number of the ring's next fill, which is passed."""
        name = ring.tile.name
        number = add(self.count, self.lags.get(name, 0))
        if ring != self.leader:
            self.lags[name] = self.lags.get(name, 0) + 1
        return number

    def step(self, rings: Iterable[Ring]) -> Let:
        """The count after a step, in which the leader was taken once."""
        for ring in rings:
            if not ring.own and ring != self.leader:
                self.lags[ring.tile.name] = self.lags.get(ring.tile.name, 0) - 1
        return Let(self.count.name, add(self.count, ONE))

    def drained(self, rings: Iterable[Ring], free: Var) -> tuple[Stmt, ...]:
        """Waits until no other CTA has slots of these rings to give back to this one: all are free for their next fill."""
        out = []
        for ring in rings:
            if ring.part is not None and ring.follows is None:
                number = add(add(self.count, self.lags.get(ring.tile.name, 0)), free)
                out.append(For(free.name, ZERO, Int(ring.buffer.stages), (ring.wait_empty(number),)))
        return tuple(out)

    def state(self) -> dict[str, int]:
        return {name: lag for name, lag in self.lags.items() if lag}

    def stays(self, before: dict[str, int]) -> None:
        """ValueError unless the lags are as `before`: those of a loop or a branch must not drift."""
        if self.state() != before:
            raise ValueError(f"rings drift apart: lags {before} become {self.state()}")


def find_rings(program: Program, role: Role, stages: int, depth: int = 1) -> tuple[Ring, ...]:
    """A ring for every loaded operand of a product, in order of first use; `depth` of those that instances own.

    ScheduleFault E0811 for an operand that is no box of its tensor or no 16-bit float."""
    tiles = {b.name: b for b in role.buffers}
    operands = {x.buffer for s in walk(role.body) if isinstance(s, Mma) for x in (s.a, s.b)}
    again = _followers(role, operands)
    moved = {s.name for s in differing(role, role.var)}
    rank = program.grid.rank
    apart = {s.name for s in differing(role, rank)} | {rank}
    taken = names(program)
    out: dict[str, Ring] = {}
    for s in walk(role.body):
        if not isinstance(s, Load) or s.dst.buffer not in operands:
            continue
        _check(s, tiles[s.dst.buffer])
        if s.dst.buffer in out:
            continue
        if s.dst.buffer in again:
            first = out[again[s.dst.buffer]]
            out[s.dst.buffer] = replace(first, tile=tiles[s.dst.buffer], follows=first.tile.name)
            continue
        own = bool(load_scalars(s) & (moved | {role.var}))
        tail = ""
        while taken & set(_called(s.tensor, tail)):
            tail += "_"
        shared, full, empty = _called(s.tensor, tail)
        taken |= {shared, full, empty}
        more = int(s.dst.buffer in again.values())
        count, users = (role.count * depth, 1) if own else (stages + more, role.count)
        tile = tiles[s.dst.buffer]
        part = None if own or rank is None or load_scalars(s) & apart else _part(program, tile)
        ctas = 1 if part is None else program.grid.cluster
        out[tile.name] = Ring(
            tile,
            replace(tile, name=shared, space="shared", stages=count),
            Barrier(full, "mbarrier", ctas, count, tx=True),
            Barrier(empty, "mbarrier", users * ctas, count),
            own,
            part,
            depth if own else 1,
        )
    return tuple(out.values())


def _followers(role: Role, operands: set[str]) -> dict[str, str]:
    """{tile: the tile loaded before from the same places}: rule FOLLOW."""
    step = Var("step")
    env = dict.fromkeys(_numbers(role), step)
    places: dict[str, set[tuple[object, ...]]] = {}
    for s in walk(role.body):
        if isinstance(s, Load) and s.dst.buffer in operands:
            index = tuple(substitute(i, env) for i in s.index)
            places.setdefault(s.dst.buffer, set()).add((s.tensor, *index))
    out: dict[str, str] = {}
    for n, (tile, at) in enumerate(places.items()):
        first = next((t for t in list(places)[:n] if len(at) == 1 and places[t] == at), None)
        if first is not None:
            out[tile] = out.get(first, first)
    return out


def _numbers(role: Role) -> set[Expr]:
    """The scalars that a tile of keys is numbered by: what key loops count, and what is set to that or the other way round."""
    found: set[Expr] = {Var(s.var) for s in walk(role.body) if isinstance(s, For) and s.proof is not None}
    lets = [(Var(s.name), s.value) for s in walk(role.body) if isinstance(s, Let) and isinstance(s.value, Var)]
    while more := {x for pair in lets for x in pair if set(pair) & found} - found:
        found |= more
    return found


def _part(program: Program, tile: Buffer) -> Window:
    """What one CTA of a cluster copies of a tile: whole panels of its columns if they come out even, else rows.

    ScheduleFault E0811 where neither do."""
    grid, constants = program.grid, dict(program.tile)
    assert grid.rank is not None
    for axis, unit in zip(reversed(tile.axes), (PANEL, ROWS), strict=True):
        size = constant(axis.size, constants)
        if size is not None and size % (unit * grid.cluster) == 0:
            return Window(axis.name, mul(size // grid.cluster, Var(grid.rank)), Int(size // grid.cluster))
    raise ScheduleFault(
        "E0811",
        f"the CTAs of a cluster of {grid.cluster} cannot share the copy of a tile of `{tile.name}`",
        note=f"each copies panels of {PANEL} columns, or rows in eights",
        hint="other tiles, or no `cluster`",
    )


def check_walks(program: Program, role: Role, rings: Iterable[Ring]) -> None:
    """ScheduleFault E0811 where CTAs of a cluster walk different keys: `rank` decides what they copy, or whether they do."""
    rank = program.grid.rank
    if rank is None:
        return
    apart = {s.name for s in differing(role, rank)} | {rank}
    shared = {r.tile.name for r in rings if r.part is not None}
    parted = not shared
    for s in walk(role.body):
        decides = free_vars(s.lo) | free_vars(s.hi) if isinstance(s, For) else frozenset()
        decides |= free_vars(s.cond) if isinstance(s, If) else frozenset()
        inner = (x for b in blocks(s) for x in walk(b))
        parted |= bool(decides & apart) and any(isinstance(x, Load) and x.dst.buffer in shared for x in inner)
    if parted:
        message = "the CTAs of a cluster would walk different keys"
        note = "a copy for all of them is one that each of them takes"
        raise ScheduleFault("E0811", message, note=note, hint="remove the `cluster` line")


def _called(tensor: str, tail: str) -> tuple[str, str, str]:
    stem = tensor.lower()
    return f"s{tensor}{tail}", f"{stem}_full{tail}", f"{stem}_empty{tail}"


def _check(s: Load, tile: Buffer) -> None:
    hint = "the portable backend takes it"
    if tile.dtype not in FLOATS:
        note = f"wgmma takes both operands of {' and '.join(FLOATS)} from shared memory as they lie in it"
        raise ScheduleFault("E0811", f"`{s.tensor}` is {tile.dtype}", note=note, hint=hint)
    if not s.box:
        note = "its positions have a stride that no class has, or are gathered"
        message = f"a tile of `{s.tensor}` is no box of the tensor, as the tensor memory accelerator copies them"
        raise ScheduleFault("E0811", message, note=note, hint=hint)


def load_scalars(s: Load) -> frozenset[str]:
    """Scalars in the address and the guard of a load."""
    return frozenset().union(*(free_vars(e) for e in (*s.index, *((s.where,) if s.where is not None else ()))))


def differing(role: Role, name: str | None) -> list[Let]:
    """Scalars that depend on the one of that name, in order."""
    differ, out = {name}, []
    for s in walk(role.body):
        if isinstance(s, Let) and free_vars(s.value) & differ:
            differ.add(s.name)
            out.append(s)
    return out


def for_instance(role: Role, s: Load, instance: Expr) -> Load:
    """A load as `instance` would issue it."""
    assert role.var is not None
    env: dict[Expr, Expr] = {Var(role.var): instance}
    for let in differing(role, role.var):
        env[Var(let.name)] = substitute(let.value, env)
    found = map_exprs(s, lambda e: substitute(e, env))
    assert isinstance(found, Load)
    return found
