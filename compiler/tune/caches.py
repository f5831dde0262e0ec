"""A simulator of blocks on dies with an L2 each and a last level of cache shared by all: hit rates and the time of the grid.

Blocks are dispatched in the order of their numbers, block i to die i % dies, there to the next unit that is free (Chiplet FA,
arXiv 2511.02132; HipKittens, arXiv 2511.08083).  A block walks ranges of one or more streams, whose pieces are the keys and
values of one step.  It computes on one piece while the next is on its way; a step takes `clocks`, more or less by a normal
deviate of `jitter`, which is the tile's own: the same under every map.  A piece is found in the L2 of the die, or in the last
level, or comes from memory; last level and memory are queues of their bandwidth, in front of a latency.  A piece that is on its
way already counts as found: it is moved once.

The L2 is set-associative by pieces: a piece of n bytes has one line in each of n / line sets, so that there are sets * line / n
groups of sets, each of `ways` pieces, the least recent out; which group is a hash of the piece's number, as AMD's L2 hashes
addresses.  The last level holds pieces, the least recent out.  Queries and outputs are not in it.

Where there are more than `budget` accesses, some are sampled: the dispatch is run with steps of equal length, and from SAMPLES
moments of it the caches are simulated in detail, for their share of the budget: at first they hold what was read last before
that moment, and the first quarter of the accesses is not counted.  The mean step found gives the time of the grid.

Not in it: the coherence traffic of writes, conflicts of channels, and other kernels.  It ranks maps, and promises no rates.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tilec.targets import Target

BUDGET = 300_000  # accesses that are simulated in detail: about a second
SAMPLES = 4
WARMING = 0.25  # part of a sample that is not counted
# Of a step.  Chosen: with it the L2 hit rates of 128 heads of 128k keys on MI300X are near those published (Chiplet FA,
# arXiv 2511.02132): 90 to 96 % where each die walks heads of its own, about 1 % where blocks go heads first.
JITTER = 0.03
OVERHEAD = 2000  # clocks of a tile before its first step: dispatch, queries, and outputs of the tile before; chosen
NOISE = 1 << 16
HASH = 2654435761  # of Knuth's multiplicative hashing

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Dies:
    """A chip with caches, at the clock that it sustains.  Rates in bytes per clock, latencies in clocks."""

    dies: int
    units: int  # of a die
    l2: int
    ways: int
    line: int
    llc: int
    llc_rate: float
    memory_rate: float
    llc_latency: float
    memory_latency: float


def dies_of(target: Target) -> Dies | None:
    """None for a target whose dies are not described."""
    c, clock = target.chiplet, target.sustained_clock
    if c is None:
        return None
    rates = c.llc_bandwidth / clock, target.bandwidth / clock
    delays = c.l2_miss * clock / 1e9, c.llc_miss * clock / 1e9
    return Dies(target.xcds, c.units, c.l2, c.ways, c.line, c.llc, *rates, *delays)


@dataclass(frozen=True)
class Work:
    """Parts of blocks: pieces `lo` … `hi` of `stream`, in order; those of block b are `first[b]` … `first[b + 1]`.  `tile`: a
    number of the part that is the same under every map.

    `clocks`: of a step; `bytes`: of a piece; `resident`: blocks that a unit holds, which share its speed."""

    first: Ints
    stream: Ints
    lo: Ints
    hi: Ints
    tile: Ints
    clocks: float
    bytes: int
    resident: int = 1

    @property
    def steps(self) -> int:
        """Of all blocks."""
        return int(np.maximum(self.hi - self.lo, 0).sum())


@dataclass(frozen=True)
class Traffic:
    """Shares of accesses that were found: `l2` of all, `llc` of those that the L2 lacks.  `makespan`: clocks of the grid, and
    `ideal` those of its work spread evenly over all units.  `method`: of the rates."""

    l2: float
    llc: float
    makespan: float
    ideal: float
    method: Literal["whole", "sampled"]

    @property
    def memory(self) -> float:
        """Share of accesses that went to memory."""
        return (1 - self.l2) * (1 - self.llc)


def simulate(work: Work, dies: Dies, *, jitter: float = JITTER, seed: int = 0, budget: int = BUDGET) -> Traffic:
    """What the caches see of a grid, and how long it takes."""
    slots = dies.dies * dies.units * work.resident
    tiles = int((work.hi > work.lo).sum())
    step = work.clocks * work.resident
    ideal = (work.steps * step + tiles * OVERHEAD) / slots
    if work.steps == 0:
        return Traffic(0.0, 0.0, 0.0, 0.0, "whole")
    if work.steps <= budget:
        run = _Caches(work, dies, jitter, seed)
        run.start([(x, [], 0.0) for x in range(dies.dies) for _ in range(dies.units * work.resident)])
        end = run.run(work.steps + 1, 0)
        return Traffic(*run.rates(), end, ideal, "whole")
    plan = dispatch(work, dies, step, jitter, seed)
    share = budget // SAMPLES
    found = accesses = near = far = 0
    total = steps = 0.0
    for i in range(SAMPLES):
        run = _Caches(work, dies, jitter, seed + i)
        run.resume(plan, plan.end * (i + 0.5) / SAMPLES, step)
        run.run(share, int(WARMING * share))
        found, accesses = found + run.found, accesses + run.accesses
        near, far = near + run.near, far + run.far
        total, steps = total + run.time, steps + run.steps
    mean = max(step, total / steps) if steps else step
    end = dispatch(work, dies, mean, jitter, seed).end
    return Traffic(found / max(1, accesses), near / max(1, near + far), end, ideal, "sampled")


@dataclass(frozen=True)
class Plan:
    """When each block starts, on which unit of its die, and when the last ends."""

    start: NDArray[np.float64]
    length: NDArray[np.float64]
    unit: Ints
    end: float


def dispatch(work: Work, dies: Dies, step: float, jitter: float, seed: int) -> Plan:
    """Blocks to the next free unit of their die, with steps of equal length but for the sum of their jitter."""
    parts = np.maximum(work.hi - work.lo, 0)
    noise = np.random.default_rng(seed).normal(0, jitter, NOISE)[work.tile * HASH % NOISE] * np.sqrt(parts)
    spans = np.where(parts > 0, step * np.maximum(0.0, parts + noise) + OVERHEAD, 0.0)
    sums = np.concatenate([[0.0], np.cumsum(spans)])
    length = sums[work.first[1:]] - sums[work.first[:-1]]
    start, unit = np.zeros(len(length)), np.zeros(len(length), np.int64)
    end, slots = 0.0, dies.units * work.resident
    for x in range(dies.dies):
        free = [(0.0, u) for u in range(slots)]
        for b, span in zip(range(x, len(length), dies.dies), length[x :: dies.dies].tolist(), strict=True):
            at, u = free[0]
            start[b], unit[b] = at, u
            heapq.heapreplace(free, (at + span, u))
            end = max(end, at + span)
    return Plan(start, length, unit, end)


Part = tuple[int, int, int, int]  # stream, lo, hi, where its jitter begins


class _Caches:
    """The detailed simulation: a heap of units by the time at which they begin their next step."""

    def __init__(self, work: Work, dies: Dies, jitter: float, seed: int) -> None:
        self.work, self.dies = work, dies
        self.pieces = int(work.hi.max()) + 1
        self.step = work.clocks * work.resident
        noise = np.random.default_rng(seed + 1).normal(1.0, jitter, NOISE)
        self.noise = (np.maximum(noise, 0.1) * self.step).tolist()
        groups = max(1, dies.l2 // dies.ways // max(dies.line, work.bytes))
        self.l2: list[list[dict[int, float]]] = [[{} for _ in range(groups)] for _ in range(dies.dies)]
        self.llc: OrderedDict[int, float] = OrderedDict()
        self.llc_room = max(1, dies.llc // work.bytes)
        self.llc_free = self.memory_free = 0.0
        self.next = list(range(dies.dies))  # block of each die that is dispatched next
        self.heap: list[tuple[float, int, int]] = []  # time, unit, number of the state
        self.states: list[tuple[int, list[Part], int]] = []  # die, parts left, piece of the first of them
        self.found = self.accesses = self.near = self.far = 0
        self.time = self.steps = 0.0

    def rates(self) -> tuple[float, float]:
        """Of the L2, and of the last level."""
        return self.found / max(1, self.accesses), self.near / max(1, self.near + self.far)

    def parts(self, block: int) -> list[Part]:
        """Of a block, the last first."""
        w = self.work
        some = range(int(w.first[block]), int(w.first[block + 1]))
        return [
            (int(w.stream[i]), int(w.lo[i]), int(w.hi[i]), int(w.tile[i]) * HASH % NOISE)
            for i in reversed(some)
            if w.hi[i] > w.lo[i]
        ]

    def start(self, units: list[tuple[int, list[Part], float]]) -> None:
        """Units of dies, with the parts that they have begun (the last first) and when they go on."""
        for n, (die, parts, at) in enumerate(units):
            self.states.append((die, parts, parts[-1][1] if parts else 0))
            heapq.heappush(self.heap, (at, n, 0))

    def resume(self, plan: Plan, at: float, step: float) -> None:
        """The state at a moment of a plan."""
        slots, dies = self.dies.units * self.work.resident, self.dies.dies
        busy: dict[tuple[int, int], tuple[list[Part], float]] = {}
        begun = np.flatnonzero(plan.start <= at)
        lows: dict[tuple[int, int], int] = {}  # where the running parts began
        read: list[Part] = []  # the latest last
        for b in begun[np.argsort(plan.start[begun], kind="stable")][-4 * slots * dies :].tolist():
            parts, gone = self.parts(b), at - float(plan.start[b]) - OVERHEAD
            while parts:
                stream, lo, hi, jitter = parts[-1]
                if gone < (hi - lo) * step:
                    piece = min(hi - 1, lo + max(0, int(gone / step)))
                    read.append((stream, lo, piece, jitter))
                    parts[-1] = (stream, piece, hi, jitter)
                    lows[b % dies, int(plan.unit[b])] = lo
                    busy[b % dies, int(plan.unit[b])] = (parts, step - max(0.0, gone) % step)
                    break
                read.append(parts.pop())
                gone -= (hi - lo) * step + OVERHEAD
        for x in range(dies):
            self.next[x] = x + dies * int((plan.start[x::dies] <= at).sum())
        self._remember(read[::-1])
        self._warm([(die, parts[-1], lows[die, u]) for (die, u), (parts, _) in busy.items()])
        self.start([(x, *busy.get((x, u), ([], 0.0))) for x in range(dies) for u in range(slots)])

    def _remember(self, read: list[Part]) -> None:
        """Fills the last level with what was read, the latest first."""
        seen: dict[int, None] = {}
        for stream, lo, hi, _ in read:
            for j in range(hi - 1, lo - 1, -1):
                seen.setdefault(stream * self.pieces + j)
            if len(seen) >= self.llc_room:
                break
        self.llc = OrderedDict.fromkeys(list(seen)[: self.llc_room][::-1], 0.0)

    def _warm(self, running: list[tuple[int, Part, int]]) -> None:
        """Fills each L2 with the pieces that units of its die read last, in the order in which they did."""
        room = self.dies.ways * len(self.l2[0])
        for back in range(room, 0, -1):
            for die, (stream, piece, _, _), lo in running:
                if piece - back >= lo:
                    self._keep(die, stream * self.pieces + piece - back, 0.0)

    def _group(self, die: int, piece: int) -> dict[int, float]:
        groups = self.l2[die]
        return groups[(piece * HASH >> 13) % len(groups)]

    def _keep(self, die: int, piece: int, ready: float) -> None:
        """The piece is the L2's most recent."""
        group = self._group(die, piece)
        group.pop(piece, None)
        group[piece] = ready
        if len(group) > self.dies.ways:
            del group[next(iter(group))]

    def run(self, most: int, warming: int) -> float:
        """Until so many steps were begun, or all are done; the first `warming` are not counted.  Returns the latest time."""
        heap, states, noise, work = self.heap, self.states, self.noise, self.work
        blocks, dies = len(work.first) - 1, self.dies.dies
        begun, last = 0, 0.0
        counted = warming == 0
        while heap and begun < most:
            at, n, running = heap[0]
            die, parts, piece = states[n]
            last = at if at > last else last
            if not parts:
                while not parts and self.next[die] < blocks:
                    parts = self.parts(self.next[die])
                    self.next[die] += dies
                if not parts:
                    heapq.heappop(heap)
                    continue
                states[n] = (die, parts, parts[-1][1])
                piece, running = parts[-1][1], 0
            stream, _, hi, jitter = parts[-1]
            if not running:  # the first piece of a part is waited for
                ready = max(at + OVERHEAD, self.fetch(die, stream * self.pieces + piece, at))
                heapq.heapreplace(heap, (ready, n, 1))
                continue
            begun += 1
            if begun == warming:
                self.found = self.accesses = self.near = self.far = 0
                counted = True
            end = at + noise[(jitter + piece) % NOISE]
            if piece + 1 < hi:
                ready = self.fetch(die, stream * self.pieces + piece + 1, at)
                states[n] = (die, parts, piece + 1)
                ready = ready if ready > end else end
                heapq.heapreplace(heap, (ready, n, 1))
            else:
                parts.pop()
                states[n] = (die, parts, parts[-1][1] if parts else 0)
                ready = end
                heapq.heapreplace(heap, (end, n, 0))
            if counted:
                self.time += ready - at
                self.steps += 1
        return last

    def fetch(self, die: int, piece: int, at: float) -> float:
        """When the piece is there."""
        group = self._group(die, piece)
        self.accesses += 1
        ready = group.pop(piece, None)
        if ready is not None:
            self.found += 1
            group[piece] = ready
            return ready if ready > at else at
        size, d = self.work.bytes, self.dies
        known = self.llc.pop(piece, None)
        if known is None:
            self.far += 1
            self.memory_free = (at if at > self.memory_free else self.memory_free) + size / d.memory_rate
            ready = self.memory_free + d.memory_latency
            self.llc[piece] = ready
            if len(self.llc) > self.llc_room:
                self.llc.popitem(last=False)
        else:
            self.near += 1
            self.llc_free = (at if at > self.llc_free else self.llc_free) + size / d.llc_rate
            ready = max(self.llc_free + d.llc_latency, known)
            self.llc[piece] = known
        self._keep(die, piece, ready)
        return ready
