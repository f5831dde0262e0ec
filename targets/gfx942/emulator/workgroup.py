"""One workgroup: its waves as coroutines over one LDS, run in an order that can be made adversarial.

In order, a wave runs until it reaches a barrier or ends.  With a seed, waves take turns of random lengths in random order;
what a correct program computes does not depend on that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilec.targets.gfx942.emulator import hazards
from tilec.targets.gfx942.emulator.definedness import flow
from tilec.targets.gfx942.emulator.findings import Finding, Kind
from tilec.targets.gfx942.emulator.lds import Lds
from tilec.targets.gfx942.emulator.memory import Memory
from tilec.targets.gfx942.emulator.scoreboard import blocking
from tilec.targets.gfx942.emulator.step import Step
from tilec.targets.gfx942.emulator.wave import Wave

LONGEST_TURN = 400  # instructions
Block = tuple[int, int, int]


@dataclass
class Log:
    """What a launch leaves behind, gathered over its blocks."""

    findings: dict[tuple[Kind, int], Finding] = field(default_factory=dict)
    banks: dict[int, list[int]] = field(default_factory=dict)  # address -> times, clocks, clocks without conflicts
    executed: int = 0
    traces: dict[tuple[Block, int], list[tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Code:
    """Decoded instructions, and where they lie in memory."""

    steps: Sequence[Step]
    at: dict[int, int]
    base: int


class Workgroup:
    """`begin` sets a wave's registers."""

    def __init__(self, code: Code, memory: Memory, lds: int, block: Block, xcc: int, log: Log) -> None:
        self.code, self.memory, self.lds, self.block, self.xcc, self.log = code, memory, Lds(lds), block, xcc, log
        self.code_base = code.base
        self.waves: list[Wave] = []
        self.mismatch = False

    def number_at(self, address: int) -> int:
        """The number of the instruction at an address in memory."""
        return self.code.at[address - self.code.base]

    def report(self, kind: Kind, w: Wave, step: Step, message: str) -> None:
        """Keeps a finding; of one kind at one instruction the first, with a count."""
        key, x = (kind, step.source.address), step.source
        old = self.log.findings.get(key)
        if old is None:
            self.log.findings[key] = Finding(kind, x.address, x.text, w.number, self.block, message)
        else:
            first = (old.kind, old.address, old.text, old.wave, old.block, old.message)
            self.log.findings[key] = Finding(*first, count=old.count + 1)

    def bank(self, step: Step, cycles: int, ideal: int) -> None:
        """Counts the clocks of an LDS access."""
        row = self.log.banks.setdefault(step.source.address, [0, 0, 0])
        row[0] += 1
        row[1] += cycles
        row[2] += ideal

    def run(self, waves: int, begin: Callable[[Wave], None], seed: int | None, limit: int, *, trace: bool) -> None:
        """Runs the block to its end, or to `limit` instructions of a wave."""
        self.waves = [Wave(self, n) for n in range(waves)]
        traces: list[list[tuple[int, int]] | None] = [None] * waves
        for w in self.waves:
            begin(w)
            if trace:
                traces[w.number] = self.log.traces[self.block, w.number] = []
        random_order = None if seed is None else random.Random(seed)
        while True:
            ready = [w for w in self.waves if not (w.done or w.at_barrier)]
            if not ready:
                if all(w.done for w in self.waves):
                    break
                self._release()
                continue
            turn = limit if random_order is None else random_order.randint(1, LONGEST_TURN)
            w = ready[0] if random_order is None else random_order.choice(ready)
            self._advance(w, min(turn, limit - w.executed), traces[w.number])
            if w.executed >= limit and not w.done:
                step = self.code.steps[w.pc]
                self.report("runaway", w, step, f"the wave has run {limit} instructions and goes on")
                break
        self.log.executed += sum(w.executed for w in self.waves)

    def _release(self) -> None:
        """Every wave that still runs waits at a barrier."""
        waiting = [w for w in self.waves if w.at_barrier]
        ended = [w for w in self.waves if w.done]
        if ended and not self.mismatch:
            self.mismatch = True
            w = waiting[0]
            message = f"waits at its barrier {w.epoch + 1}; wave {ended[0].number} has ended after {ended[0].epoch}"
            self.report("barrier", w, self.code.steps[w.pc - 1], message)
        under_way = [a for w in self.waves for q in (w.lgkm, w.vm) for e in q for a in e.accesses]
        for access, complaint in self.lds.barrier(under_way):
            step = self.code.steps[self.code.at[access.address]]
            self.report("race", access.wave, step, f"{complaint} that both have waited at")
        for w in waiting:
            w.at_barrier = False
            w.epoch += 1

    def _advance(self, w: Wave, budget: int, trace: list[tuple[int, int]] | None) -> None:
        steps = self.code.steps
        ran = 0
        while ran < budget:
            number = w.pc
            step = steps[number]
            touch = step.touch
            if touch & w.pending:
                self._early(w, step)
            if touch & w.hot and (complaint := hazards.check(w, step)):
                self.report("hazard", w, step, complaint)
            if step.guarded and (complaint := hazards.check_recent(w, step)):
                self.report("hazard", w, step, complaint)
            if touch & w.unknown and (complaint := flow(w, step)):
                self.report("undefined", w, step, complaint)
            w.pc = number + 1
            step.run(w)
            if step.noted:
                hazards.note(w, step)
            w.clock += step.states
            ran += 1
            if trace is not None:
                trace.append((number, w.extra))
                w.extra = 0
            if step.stops:
                break
        w.executed += ran

    def _early(self, w: Wave, step: Step) -> None:
        """A register of an outstanding load is touched.  A later load of the same kind may overwrite it: they arrive in order."""
        entry = blocking(w, step.touch)
        if entry is None:
            return
        queue = w.vm if step.counter == "vm" else w.lgkm
        if (
            step.loads
            and not step.reads & entry.registers
            and entry in queue
            and not entry.scalar
            and step.unit != "smem"
        ):
            return
        before = self.code.steps[self.code.at[entry.address]].source
        counter = "vmcnt" if entry in w.vm else "lgkmcnt"
        verb = "reads" if step.reads & entry.registers else "overwrites"
        message = f"{verb} a register that {before.address:#x} `{before.text}` still writes: no {counter} wait"
        self.report("wait", w, step, message)
