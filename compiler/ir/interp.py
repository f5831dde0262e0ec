"""Runs a tile program on NumPy arrays, and checks on the way that nothing in it depends on luck.

Role instances are coroutines; a seeded scheduler interleaves them, and decides when asynchronous operations complete.  Races
are found with vector clocks (`ir.clocks`), so one run finds what some other interleaving would have broken; seeds and orders
vary what control flow sees.  CTAs run together if the program claims tiles from a counter, else one cluster after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tilec.ir.errors import CallError, Deadlock, Endless, ExecutionError, Undefined
from tilec.ir.execute import Blocked, Executable, Extents, Steps, compile_program, run_block
from tilec.ir.machine import Cta, Instance, make_tiles
from tilec.ir.memory import Tensor
from tilec.ir.nodes import Arrive, Await, Claim, Copy, Load, Mma, Move, Program, Send, Sync, Wait, walk
from tilec.ir.print import show_stmt
from tilec.ir.scalars import call_scalars

LIMIT = 2_000_000  # scheduler steps before a run counts as endless


@dataclass(frozen=True)
class Order:
    """How the scheduler chooses.  `completions`: when a Copy signals, `early` at once, `late` only when no instance can go
    on, or at a random moment.  `starve`: roles (`producer`), instances (`consumer[1]`) or CTAs of a cluster (`rank 1`) that run
    only when no other can."""

    completions: Literal["random", "early", "late"] = "random"
    starve: tuple[str, ...] = ()


def adversaries(p: Program) -> tuple[Order, ...]:
    """Orders that drive a program to its extremes: completions early and late; each role, its first instance and each CTA of a
    cluster starved."""
    victims: list[tuple[str, ...]] = [()]
    for r in p.roles:
        victims += [(r.name,), (f"{r.name}[0]",)] if r.count > 1 else [(r.name,)]
    if p.grid.cluster > 1:
        victims += [(f"rank {n}",) for n in range(p.grid.cluster)]
    return tuple(Order(c, v) for c in ("early", "late") for v in victims)


def run(
    p: Program,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    extents: Mapping[str, int],
    *,
    seed: int = 0,
    schedule: Order = Order(),
) -> None:
    """Runs `p` and writes its `out` tensors in place.

    `tensors` by name, of the declared shapes: floats as float32 or the dtype itself (`ml_dtypes`), other kinds as integers or
    bool; counters may be left out.  `extents`: the program's runtime scalars.
    Raises CallError for arguments that do not fit, else what `ir.errors` lists; each names the statement and the instance.
    """
    exe = compile_program(p)
    if missing := [n for n in p.extents if n not in extents]:
        raise CallError(f"{p.name}: no value for {', '.join(missing)}")
    scalars = call_scalars(p, {n: int(extents[n]) for n in p.extents})
    with np.errstate(all="ignore"):
        state = _State(exe, scalars, _bind(exe, tensors, scalars), random.Random(seed), schedule)
        together = any(isinstance(s, Claim) for r in p.roles for s in walk(r.body))
        count, size = exe.ctas(Extents(scalars), None), p.grid.cluster
        if count % size:
            raise CallError(f"{p.name}: {count} CTAs are no clusters of {size}")
        for number in range(0, count, count if together and count else size):
            state.run_ctas(range(number, count if together else number + size))


def _bind(exe: Executable, tensors: Mapping[str, Any], scalars: dict[str, int]) -> dict[str, Tensor]:
    frame, out = Extents(scalars), {}
    for t in exe.program.tensors:
        if t.mode == "counter":
            continue
        if t.name not in tensors:
            raise CallError(f"{exe.program.name}: tensor {t.name} is missing")
        dims = tuple(d(frame, None) for d in exe.dims[t.name])
        out[t.name] = Tensor(t.name, t.mode, t.dtype, dims, tensors[t.name], exe.program.target)
    return out


def is_alone(p: Program) -> bool:
    """Whether each CTA is one thread of control that starts nothing asynchronous and meets no barrier."""
    return sum(r.count for r in p.roles) == 1 and not any(
        isinstance(s, Copy | Send | Await | Wait | Arrive | Sync | Claim)
        or (isinstance(s, Load | Mma | Move) and s.queue is not None)
        for s in walk(p.roles[0].body)
    )


@dataclass
class _Task:
    instance: Instance
    steps: Steps
    blocked: Blocked | None = None

    @property
    def ready(self) -> bool:
        return self.blocked is None or self.blocked.ready()


@dataclass
class _State:
    """One run."""

    exe: Executable
    scalars: dict[str, int]
    tensors: dict[str, Tensor]
    rng: random.Random
    order: Order
    counters: dict[str, int] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self.shares = not is_alone(self.exe.program)
        self.labels = tuple(
            f"{r.name}[{i}]" if r.count > 1 else r.name for r in self.exe.program.roles for i in range(r.count)
        )

    def claim(self, counter: str) -> int:
        ctas = self.exe.ctas(Extents(self.scalars), None)
        value = self.counters.setdefault(counter, ctas // self.exe.program.grid.cluster)
        self.counters[counter] = value + 1
        return int(value)

    def writer(self, uid: int) -> str:
        """The instance that stores as `uid`."""
        number, i = divmod(uid - 1, len(self.labels))
        return f"{self.labels[i]} of cta {number}"

    def start(self, number: int) -> list[_Task]:
        """The tasks of one CTA."""
        p = self.exe.program
        shared = make_tiles(p.buffers, self.exe.shared, p.target)
        cta = Cta(number, shared, p.barriers, self.order.completions == "early")
        tasks: list[_Task] = []
        rank = {} if p.grid.rank is None else {p.grid.rank: number % p.grid.cluster}
        where = "".join(f" of rank {n}" for n in rank.values())
        for role, block, private in self.exe.roles:
            for i in range(role.count):
                tiles = make_tiles(role.buffers, private, p.target, shared)
                scalars = {**self.scalars, **rank, "cta": number}
                if role.var is not None:
                    scalars[role.var] = i
                label, uid = self.labels[len(tasks)], number * len(self.labels) + len(tasks) + 1
                f = Instance(label + where, uid, cta, tiles, self.tensors, scalars, self)
                cta.instances.append(f)
                tasks.append(_Task(f, run_block(f, block)))
        return tasks

    def run_ctas(self, numbers: range) -> None:
        """Runs these CTAs to their ends, interleaved."""
        tasks = [t for n in numbers for t in self.start(n)]
        if not self.shares:
            for task in tasks:
                self.advance(task, None)
            return
        alive, ctas = list(tasks), list(dict.fromkeys(t.instance.cta for t in tasks))
        size = self.exe.program.grid.cluster
        for n, cta in enumerate(ctas):
            cta.cluster = tuple(ctas[n // size * size :][:size])
        while alive:
            self.choose(alive, ctas)
            if any(t.steps is _DONE for t in alive):
                alive = [t for t in alive if t.steps is not _DONE]
        for cta in ctas:
            for flight in cta.flights:
                flight.land()
            cta.finish()

    def choose(self, alive: list[_Task], ctas: list[Cta]) -> None:
        """Lets one instance run a few steps, or one copy complete."""
        ready = [t for t in alive if t.ready]
        favoured = [t for t in ready if not self.starved(t)]
        flights = [c for c in ctas if c.flights]
        late = self.order.completions == "late"
        if favoured and (late or not flights or self.rng.random() < 0.7):
            self.advance(self.rng.choice(favoured), self.rng.choice((1, 1, 2, 4, 16)))
        elif flights:
            cta = self.rng.choice(flights)
            flight = cta.flights.pop(self.rng.randrange(len(cta.flights)))
            try:
                flight.land()
            except ExecutionError as e:
                raise type(e)(f"{e}\n  in {show_stmt(flight.stmt)}\n  cta {cta.number}") from None
        elif ready:
            self.advance(self.rng.choice(ready), 1)
        else:
            raise Deadlock("\n".join(["no instance can go on", *(_waiting(t) for t in alive)]))

    def starved(self, t: _Task) -> bool:
        label = t.instance.label
        return any(
            label == s or label.startswith((f"{s}[", f"{s} of ")) or label.endswith(f" of {s}")
            for s in self.order.starve
        )

    def advance(self, task: _Task, steps: int | None) -> None:
        """Runs a task until it blocks, ends, or has passed `steps` scheduling points."""
        f = task.instance
        task.blocked = None
        self.steps += 1
        if self.steps > LIMIT:
            raise Endless(f"{f.label} is still running after {LIMIT} steps")
        try:
            for n, event in enumerate(task.steps, 1):
                if event is not None and not event.ready():
                    task.blocked = event
                    return
                if n == steps:
                    return
        except (ExecutionError, ZeroDivisionError) as e:
            kind = type(e) if isinstance(e, ExecutionError) else Undefined
            where = "" if f.stmt is None else f"\n  in {show_stmt(f.stmt)}"
            raise kind(f"{e}{where}\n  of {f.label}, cta {f.cta.number}") from None
        task.steps = _DONE


def _waiting(t: _Task) -> str:
    f = t.instance
    at = "" if f.stmt is None else show_stmt(f.stmt)
    return f"  {f.label} of cta {f.cta.number} waits at: {at} ({t.blocked.why() if t.blocked else 'ready'})"


def _nothing() -> Iterator[Blocked | None]:
    yield from ()


_DONE: Steps = _nothing()
