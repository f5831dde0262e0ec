"""The model: waves walk their traces, a slot of 4 clocks at a time.

    issue      in order of priority (s_setprio), then of age; one of each kind a SIMD and slot, one a wave
    vector     the slot is taken for 4 clocks, 16 by a transcendental; a matrix instruction takes 4 of it and its passes of
               the matrix unit, behind which other vector instructions fit
    results    what a matrix instruction wrote is there after its passes and a few clocks; as the accumulator of a later
               one it is passed on at once
    LDS        one pipe for all SIMDs, taken for the bank cycles that the emulator counted; then a latency
    memory     one pipe at the vector cache's rate; then a latency
    waits      s_waitcnt stalls until enough of what was issued has come back, in order
    barriers   s_barrier stalls until every wave of the block is there

Instruction fetch, writeback ports, cache misses and power are left out: it is meant for comparison.  AITER's forward kernels for
gfx942 (ROCm/aiter e404860, bf16, D = 128), run by the emulator, take 4256, 4944 and 5328 clocks here for 64 keys, with weights
truncated, rounded half away and to nearest even: 1 : 1.16 : 1.25, where 1 : 1.08 : 1.14 were measured (MoonMath's published
times of them).  The order is right, and what vector instructions cost beside products is rather too much.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilec.targets.gfx942.cycles.machine import MI300X, Action, Machine, action_of
from tilec.targets.gfx942.cycles.report import Timing, timing
from tilec.targets.gfx942.emulator.decode import decode
from tilec.targets.gfx942.emulator.emulator import Run
from tilec.targets.gfx942.emulator.step import Step
from tilec.targets.gfx942.emulator.workgroup import Block

Trace = Sequence[tuple[int, int]]
FOREVER = 1 << 60


@dataclass
class _Wave:
    number: int
    block: int
    trace: Trace
    at: int = 0
    ready: int = 0
    priority: int = 0
    barrier: bool = False
    ended: int = -1
    vm: deque[int] = field(default_factory=deque)
    lgkm: deque[int] = field(default_factory=deque)
    results: list[tuple[int, int]] = field(default_factory=list)  # (registers, when they are there)
    marks: list[tuple[int, int]] = field(default_factory=list)  # (address, clock) of branches taken


@dataclass
class _Simd:
    waves: list[_Wave]
    vector_free: int = 0
    matrix_free: int = 0
    matrix: list[tuple[int, int]] = field(default_factory=list)  # busy from, to
    vector: list[tuple[int, int]] = field(default_factory=list)


def predict(run: Run, machine: Machine = MI300X, *, resident: int | None = None) -> Timing:
    """Of the traced block that ran most instructions, with `resident` copies of it on the compute unit: as many as fit, unless
    told.

    Raises ValueError for a run without a trace."""
    if not run.trace:
        raise ValueError("the run was not traced")
    steps = decode(run.listing)
    length = Counter[Block]()
    for (block, _), trace in run.trace.items():
        length[block] += len(trace)
    (longest, _), *_ = length.most_common(1)
    return simulate(
        steps, [t for (b, _), t in sorted(run.trace.items()) if b == longest], machine, resident or run.resident
    )


def simulate(steps: Sequence[Step], traces: Sequence[Trace], machine: Machine = MI300X, resident: int = 1) -> Timing:
    """Clocks of one block's waves, from the instructions (by number) that each ran."""
    return _Unit(steps, traces, machine, resident).run()


class _Unit:
    """A compute unit."""

    def __init__(self, steps: Sequence[Step], traces: Sequence[Trace], machine: Machine, resident: int) -> None:
        self.machine = machine
        used = {n for t in traces for n, _ in t}
        self.actions: Mapping[int, Action] = {n: action_of(steps[n], machine) for n in used}
        self.waves = [_Wave(len(traces) * b + n, b, t) for b in range(resident) for n, t in enumerate(traces)]
        self.simds = [_Simd([w for w in self.waves if w.number % machine.simds == n]) for n in range(machine.simds)]
        self.lds_free = self.memory_free = 0
        self.lds: list[tuple[int, int]] = []
        self.memory: list[tuple[int, int]] = []
        self.stalls: Counter[str] = Counter()
        self.now = 0

    def run(self) -> Timing:
        """Until every wave has ended."""
        while True:
            reasons: list[str] = []
            issued = [self._slot(simd, reasons) for simd in self.simds]
            self._join()
            if all(w.ended >= 0 for w in self.waves):
                break
            passed = self.machine.issue if any(issued) else self._leap()
            for why in reasons:
                self.stalls[why] += passed
            self.now += passed
        return timing(self, self.machine)

    def _slot(self, simd: _Simd, reasons: list[str]) -> bool:
        """One slot of a SIMD; whether anything was issued.  Adds why each wave that issued nothing did not."""
        taken: set[str] = set()
        issued = False
        for w in sorted(simd.waves, key=lambda w: (-w.priority, w.number)):
            if w.ended >= 0:
                continue
            number, extra = w.trace[w.at]
            action = self.actions[number]
            why = self._stalled(simd, w, action)
            if not why and action.kind in taken:
                why = "issue"
            if why:
                reasons.append(why)
                continue
            if action.kind != "internal":
                taken.add(action.kind)
            self._issue(simd, w, action, extra)
            issued = True
        return issued

    def _stalled(self, simd: _Simd, w: _Wave, a: Action) -> str:
        """Why a wave cannot issue its next instruction now, or nothing."""
        now = self.now
        if w.barrier:
            return "barrier"
        if w.ready > now:
            return "idle"
        if a.waits is not None:
            if _late(w.vm, a.waits[0]) > now:
                return "memory"
            return "lds" if _late(w.lgkm, a.waits[1]) > now else ""
        if a.kind == "vector":
            if simd.vector_free > now:
                return "issue"
            if a.matrix and simd.matrix_free > now:
                return "matrix"
        if w.results:
            w.results = [r for r in w.results if r[1] > now]
            if any(mask & a.reads for mask, _ in w.results):
                return "result"
        return ""

    def _issue(self, simd: _Simd, w: _Wave, a: Action, extra: int) -> None:
        m, now = self.machine, self.now
        w.ready = now + m.issue + a.idle
        if a.kind == "vector":
            simd.vector_free = now + a.busy
            simd.vector.append((now, now + a.busy))
            if a.matrix:
                simd.matrix_free = now + a.matrix
                simd.matrix.append((now, now + a.matrix))
                w.results.append((a.writes, now + a.matrix + m.result))
        elif a.kind == "lds":
            start = max(now, self.lds_free)
            self.lds_free = start + extra
            self.lds.append((start, start + extra))
            w.lgkm.append(start + extra + m.lds_latency)
        elif a.kind == "memory":
            start = max(now, self.memory_free)
            self.memory_free = start + a.busy
            self.memory.append((start, start + a.busy))
            w.vm.append(start + a.busy + m.memory_latency)
        elif a.scalar_load:
            w.lgkm.append(now + m.scalar_latency)
        elif a.kind == "branch" and extra:
            w.ready = now + m.taken
            w.marks.append((a.address, now))
        if a.priority is not None:
            w.priority = a.priority
        w.barrier = a.barrier
        w.at += 1
        if w.at == len(w.trace):
            w.ended = now

    def _join(self) -> None:
        """Blocks whose waves have all come to their barrier, or have ended, go on."""
        for block in {w.block for w in self.waves if w.barrier}:
            waves = [w for w in self.waves if w.block == block and w.ended < 0]
            if all(w.barrier for w in waves):
                for w in waves:
                    w.barrier, w.ready = False, self.now + self.machine.issue

    def _leap(self) -> int:
        """Clocks until something may be issued again, a whole number of slots."""
        soon = FOREVER
        for simd in self.simds:
            for w in simd.waves:
                if w.ended >= 0 or w.barrier:
                    continue
                a = self.actions[w.trace[w.at][0]]
                at = max(w.ready, simd.vector_free if a.kind == "vector" else 0, simd.matrix_free if a.matrix else 0)
                if a.waits is not None:
                    at = max(at, _late(w.vm, a.waits[0]), _late(w.lgkm, a.waits[1]))
                at = max([at, *(ready for mask, ready in w.results if mask & a.reads)])
                soon = min(soon, at)
        slot = self.machine.issue
        return slot if soon >= FOREVER else max(slot, -(-(soon - self.now) // slot) * slot)


def _late(queue: deque[int], keep: int) -> int:
    """When no more than `keep` operations of a queue are outstanding; they come back in order."""
    return 0 if len(queue) <= keep else max(list(queue)[: len(queue) - keep])
