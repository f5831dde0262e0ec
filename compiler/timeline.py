"""When the roles of one block do what, by the costs of `tilec.costs`: an event simulation of the lowered program.

Every instance of every role runs its statements in order and is delayed by barriers, queues and shared resources exactly as the
program says; only durations are a model.  Products and copies run on their own resource while their instance goes on.

    matrix, memory            first come, first served, one operation at a time
    vector and special units  shared by the instances in pieces of `PIECE` clocks

The block with number 0 is shown, in the order of its own tiles, until one instance has done `steps` steps over keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import Any

from tilec.arith.evaluate import evaluate
from tilec.costs import HANDOFF, LATENCY, Costs
from tilec.ir import nodes
from tilec.ir.axes import buffer_lanes
from tilec.ir.expr import Expr, Int, Read, transform
from tilec.ir.nodes import Program, Role, Stmt
from tilec.ir.print import show_stmt
from tilec.ir.scalars import call_scalars
from tilec.targets import Target

PIECE = 64
MOST_EVENTS = 200_000
Steps = Iterator["float | Gate"]


@dataclass(frozen=True)
class Span:
    """What a lane did from `start` to `end`, in clocks.  `kind`: product, copy, compute, wait."""

    lane: str
    kind: str
    label: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """`lanes` in the order in which they are drawn.  `marks`: when each key step of the first instance with products began."""

    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    marks: tuple[float, ...]
    end: float

    @property
    def period(self) -> float | None:
        """Clocks of one key step, over the later half of the steps."""
        tail = self.marks[len(self.marks) // 2 :]
        return (tail[-1] - tail[0]) / (len(tail) - 1) if len(tail) > 1 else None

    def busy(self, lane: str, start: float = 0.0) -> float:
        """Part of the time from `start` on that the lane was not idle or waiting."""
        total = sum(min(s.end, self.end) - max(s.start, start) for s in self.spans if _works(s, lane, start, self.end))
        return total / (self.end - start) if self.end > start else 0.0


def _works(s: Span, lane: str, start: float, end: float) -> bool:
    return s.lane == lane and s.kind != "wait" and s.end > start and s.start < end


@dataclass
class Gate:
    """One barrier of an array: `number` of completed phases, and who waits for what."""

    arrivals: int
    number: int = 0
    came: int = 0
    waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = field(default_factory=list)
    wanted: Callable[[], bool] = lambda: True

    def arrive(self) -> None:
        self.came += 1
        if self.came == self.arrivals:
            self.number, self.came = self.number + 1, 0
            ready = [w for w in self.waiting if w[0]()]
            self.waiting = [w for w in self.waiting if w not in ready]
            for _, go in ready:
                go()


def timeline(program: Program, target: Target, extents: Mapping[str, int], steps: int = 8) -> Timeline:
    """`extents`: every runtime scalar of the program but those that the device gives, which are its units.

    Raises ValueError for a program whose times depend on values of tensors, on another block, or on a statement without a
    cost."""
    if program.grid.cluster > 1:
        raise ValueError("blocks of a cluster wait for each other, and the model has one block")
    known = call_scalars(program, {**dict.fromkeys(program.extents, target.units), **extents})
    run = _Run(program, target, known, steps)
    try:
        return run.result()
    except KeyError as lacking:
        raise ValueError(f"its times depend on {lacking}, which only a call knows") from None


class _Run:
    def __init__(self, program: Program, target: Target, known: Mapping[str, int], steps: int) -> None:
        self.program, self.steps = program, steps
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.now = 0.0
        self.free = dict.fromkeys(("matrix", "memory", "vector", "special"), 0.0)
        self.gates = {b.name: [Gate(b.arrivals) for _ in range(b.stages)] for b in program.barriers}
        self.scalars: dict[tuple[str, int], int] = {}
        self.claims = evaluate(program.grid.ctas, known)
        self.spans: list[Span] = []
        self.marks: list[float] = []
        self.done = False
        shared = {b.name: b.dtype for b in program.buffers}
        self.instances: list[_Instance] = []
        for role in program.roles:
            lanes = buffer_lanes((*program.buffers, *role.buffers), dict(program.tile))
            costs = Costs(target, lanes, {**shared, **{b.name: b.dtype for b in role.buffers}})
            for i in range(role.count):
                name = f"{role.name} {i}" if role.count > 1 else role.name
                env = {**known, "cta": 0, **({role.var: i} if role.var else {})}
                self.instances.append(_Instance(self, role, name, env, costs))
        self.leader = next(
            (f for f in self.instances if any(isinstance(s, nodes.Mma) for s in nodes.walk(f.role.body))), None
        )

    def at(self, time: float, go: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.order), go))

    def serve(self, resource: str, clocks: float, start: float) -> tuple[float, float]:
        """(begin, end) of work on a resource that is asked for at `start`."""
        begin = max(start, self.free[resource])
        self.free[resource] = begin + clocks
        return begin, begin + clocks

    def result(self) -> Timeline:
        for f in self.instances:
            self._start(f.block(f.role.body))
        for _ in range(MOST_EVENTS):
            if not self.events or self.done:
                break
            self.now, _, go = heapq.heappop(self.events)
            go()
        if not self.done and any(g.waiting for gates in self.gates.values() for g in gates):
            raise ValueError("a role waits for what no role of the block does")
        lanes = ("memory", *(f.name for f in self.instances), "matrix")
        end = self.now
        cut = tuple(Span(s.lane, s.kind, s.label, s.start, min(s.end, end)) for s in self.spans if s.start < end)
        return Timeline(lanes, cut, tuple(self.marks), end)

    def _start(self, steps: Steps) -> None:
        def go() -> None:
            wanted = next(steps, None)
            if isinstance(wanted, Gate):
                wanted.waiting.append((wanted.wanted, go))
            elif wanted is not None:
                self.at(wanted, go)

        self.at(0.0, go)


class _Instance:
    """One instance of a role: its scalars, its queues, and its statements as steps in time."""

    def __init__(self, run: _Run, role: Role, name: str, env: dict[str, Any], costs: Costs) -> None:
        self.run, self.role, self.name, self.env, self.costs = run, role, name, env, costs
        self.queues: dict[str, list[float]] = {}

    def value(self, e: Expr) -> int:
        """A scalar; shared scalars are read as they are now."""

        def rule(x: Expr) -> Expr | None:
            if not isinstance(x, Read):
                return None
            stage = 0 if x.stage is None else self.value(x.stage)
            if (x.buffer, stage) not in self.run.scalars:
                raise KeyError(x.buffer)
            return Int(self.run.scalars[x.buffer, stage])

        return int(evaluate(transform(e, rule), self.env))

    def block(self, body: tuple[Stmt, ...]) -> Steps:
        for s in body:
            yield from self.step(s)

    def step(self, s: Stmt) -> Steps:
        match s:
            case nodes.Let(name, value):
                self.env[name] = self.value(value)
            case nodes.Seek():
                self.env[s.name] = self._sought(s)
            case nodes.Claim(name):
                self.env[name] = self.run.claims
                self.run.claims += 1
            case nodes.Cluster():
                yield from self.block(s.body)
            case nodes.If():
                yield from self.block(s.then if self.value(s.cond) else s.orelse)
            case nodes.While():
                while self.value(s.cond):
                    yield from self.block(s.body)
            case nodes.For():
                yield from self._loop(s)
            case nodes.Mma():
                yield from self._product(s)
            case nodes.Copy():
                yield from self._copy(s)
            case nodes.Await(queue, pending):
                flying = self.queues.get(queue, [])
                ends = flying[: max(0, len(flying) - pending)]
                self.queues[queue] = flying[len(ends) :]
                yield from self._until(max(ends, default=0.0), s)
            case nodes.Wait() | nodes.Sync() | nodes.Arrive():
                yield from self._barrier(s)
            case nodes.Compute() | nodes.Load() | nodes.Store():
                yield from self._compute(s)
            case nodes.Fence() | nodes.Priority():
                pass
            case _:
                raise ValueError(f"`{show_stmt(s)}` has no cost")

    def _sought(self, s: nodes.Seek) -> int:
        lo, hi = self.value(s.lo), self.value(s.hi)
        while lo < hi:
            self.env[s.name] = middle = (lo + hi) // 2
            lo, hi = (lo, middle) if self.value(s.cond) else (middle + 1, hi)
        return lo

    def _loop(self, s: nodes.For) -> Steps:
        numbers = range(self.value(s.lo), self.value(s.hi))
        for i in reversed(numbers) if s.down else numbers:
            if s.proof is not None and self is self.run.leader:
                self.run.marks.append(self.run.now)
                self.run.done = len(self.run.marks) > self.run.steps
            self.env[s.var] = i
            yield from self.block(s.body)

    def _span(self, lane: str, kind: str, s: Stmt, start: float, end: float) -> None:
        if end > start:
            self.run.spans.append(Span(lane, kind, show_stmt(s).strip().splitlines()[0], start, end))

    def _until(self, time: float, s: Stmt) -> Steps:
        if time > self.run.now:
            self._span(self.name, "wait", s, self.run.now, time)
            yield time

    def _product(self, s: nodes.Mma) -> Steps:
        start, end = self.run.serve("matrix", self.costs.matrix(s), self.run.now + HANDOFF)
        self._span("matrix", "product", s, start, end)
        if s.queue is None:
            yield from self._until(end, s)
        else:
            self.queues.setdefault(s.queue, []).append(end)

    def _copy(self, s: nodes.Copy) -> Steps:
        start, end = self.run.serve("memory", self.costs.memory(s.dst.buffer), self.run.now + HANDOFF)
        self._span("memory", "copy", s, start, end)
        if s.signal is None:
            assert s.queue is not None
            self.queues.setdefault(s.queue, []).append(end + LATENCY)
        else:
            self.run.at(end + LATENCY, self._gate(s.signal).arrive)
        yield self.run.now + HANDOFF

    def _gate(self, bar: nodes.Bar) -> Gate:
        return self.run.gates[bar.name][self.value(bar.stage)]

    def _barrier(self, s: nodes.Wait | nodes.Sync | nodes.Arrive) -> Steps:
        gate, began, before = self._gate(s.bar), self.run.now, 0
        parity = self.value(s.parity) % 2 if isinstance(s, nodes.Wait) else 0

        def ready() -> bool:
            if isinstance(s, nodes.Wait):
                return gate.number % 2 != parity
            return isinstance(s, nodes.Arrive) or gate.number > before

        if not isinstance(s, nodes.Wait):
            before = gate.number
            gate.arrive()
        if not ready():
            yield Gate(0, waiting=gate.waiting, wanted=ready)
            yield self.run.now + HANDOFF
        self._span(self.name, "wait", s, began, self.run.now)

    def _compute(self, s: nodes.Compute | nodes.Load | nodes.Store) -> Steps:
        if isinstance(s, nodes.Compute) and not self.costs.lanes[s.dst.buffer]:
            stage = 0 if s.dst.stage is None else self.value(s.dst.stage)
            self.run.scalars[s.dst.buffer, stage] = self.value(s.value)
            return
        work = self.costs.work(s)
        pieces = max(1, ceil(work.span / PIECE))
        during = s.during if isinstance(s, nodes.Compute) else ()
        middle = pieces * s.after // s.of if isinstance(s, nodes.Compute) and s.of else 0
        for n in range(pieces):
            if n == middle:
                yield from self.block(during)
            began = self.run.now
            ends = [self.run.serve("vector", work.vector / pieces, began)[1]] if work.vector else []
            ends += [self.run.serve("special", work.special / pieces, began)[1]] if work.special else []
            self._span(self.name, "compute", s, began, max(ends, default=began))
            yield max(ends, default=began)
        if middle == pieces:
            yield from self.block(during)
