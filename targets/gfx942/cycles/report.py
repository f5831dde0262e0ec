"""What the model says of a block: clocks of a step of its loop, how busy each unit is, which one limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tilec.targets.gfx942.cycles.machine import Machine
    from tilec.targets.gfx942.cycles.model import _Unit

Spans = Sequence[tuple[int, int]]
FULL = 0.9  # a unit that is busy for so much of the time limits; else what waves wait for does
FOR = {"barrier": "barriers", "memory": "memory", "lds": "lds", "result": "results of products"}
FOR |= {"idle": "wait states and branches", "issue": "issue", "matrix": "matrix"}


@dataclass(frozen=True)
class Timing:
    """Clocks of a compute unit with `resident` blocks beside each other.  `step` is how long the unit takes for a pass of the
    innermost loop that was walked most by each of its blocks, in the steady state from the second pass on (0 without one), and
    `passes` how many of one block were timed; `busy` is each unit's share of that time (of the whole without a loop): matrix
    and issue of a SIMD, lds and memory of the unit; `stalls` are clocks of waves by reason."""

    clocks: int
    resident: int
    step: float
    passes: int
    busy: Mapping[str, float]
    stalls: Mapping[str, int]

    @property
    def matrix(self) -> float:
        """Share of the time in which a SIMD's matrix unit works."""
        return self.busy["matrix"]

    @property
    def limit(self) -> str:
        """The unit that is busy nearly always, else what waves wait for most."""
        unit, share = max(self.busy.items(), key=lambda x: x[1])
        if share >= FULL or not self.stalls:
            return unit
        return FOR[max(self.stalls.items(), key=lambda x: x[1])[0]]

    def __str__(self) -> str:
        step = f"a step of each of {self.resident} blocks" if self.resident > 1 else "a step"
        step = f"{step} takes {self.step:,.0f} clocks" if self.passes else f"{self.clocks:,} clocks"
        return f"{step}, matrix units busy {self.matrix:.0%}, limited by {self.limit} (predicted)"

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "clocks": self.clocks,
            "resident": self.resident,
            "step": self.step,
            "passes": self.passes,
            "busy": dict(self.busy),
            "stalls": dict(self.stalls),
            "limit": self.limit,
        }


def timing(unit: _Unit, machine: Machine) -> Timing:
    """From a finished simulation."""
    clocks, resident = unit.now + machine.issue, unit.waves[-1].block + 1
    marks = _marks(unit)
    passes = len(marks[0]) - 1 if marks else 0
    first, last = (marks[0][0], marks[0][-1]) if marks else (0, clocks)
    step = (last - first) / passes if marks else 0.0
    if resident > 1 and marks:
        first, last = max(m[0] for m in marks), min(m[-1] for m in marks)
        first, last = (first, last) if last > first else (0, clocks)  # one has ended before another begins
        step = (last - first) * len(marks) / sum(_walked(m, first, last) for m in marks)
    span = max(1, last - first)
    busy = {
        "matrix": sum(_within(s.matrix, first, last) for s in unit.simds) / (span * machine.simds),
        "issue": sum(_within(s.vector, first, last) for s in unit.simds) / (span * machine.simds),
        "lds": _within(unit.lds, first, last) / span,
        "memory": _within(unit.memory, first, last) / span,
    }
    return Timing(clocks, resident, step, passes, busy, dict(unit.stalls))


def _marks(unit: _Unit) -> list[list[int]]:
    """When each wave that walks a loop took the branch that the first wave took most often; nothing without a second time."""
    found = Counter(a for a, _ in unit.waves[0].marks)
    if not found:
        return []
    ((address, times),) = found.most_common(1)
    marks = ([t for a, t in w.marks if a == address] for w in unit.waves)
    return [m for m in marks if len(m) > 1] if times > 1 else []


def _walked(marks: Sequence[int], first: int, last: int) -> float:
    """Passes of a wave in a time when all waves are in the loop: older blocks go first, so that others walk fewer."""
    begun, ended = np.interp([first, last], marks, np.arange(len(marks)))
    return float(ended - begun)


def _within(spans: Spans, first: int, last: int) -> int:
    return sum(max(0, min(b, last) - max(a, first)) for a, b in spans)
