"""What the model says of a block: clocks of a step of its loop, how busy each unit is, which one limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilec.targets.gfx942.cycles.machine import Machine
    from tilec.targets.gfx942.cycles.model import _Unit

Spans = Sequence[tuple[int, int]]
FULL = 0.9  # a unit that is busy for so much of the time limits; else what waves wait for does
FOR = {"barrier": "barriers", "memory": "memory", "lds": "lds", "result": "results of products"}
FOR |= {"idle": "wait states and branches", "issue": "issue", "matrix": "matrix"}


@dataclass(frozen=True)
class Timing:
    """Clocks of a compute unit with `resident` blocks beside each other.  `step` is a pass of the innermost loop that was walked
    most, in the steady state from its second pass on (0 without one), and `passes` how many were timed; `busy` is each unit's
    share of that time (of the whole without a loop): matrix and issue of a SIMD, lds and memory of the unit; `stalls` are
    clocks of waves by reason."""

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
        step = f"a step of {self.resident} blocks" if self.resident > 1 else "a step"
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
    clocks = unit.now + machine.issue
    first, last, passes = _window(unit, clocks)
    span = max(1, last - first)
    busy = {
        "matrix": sum(_within(s.matrix, first, last) for s in unit.simds) / (span * machine.simds),
        "issue": sum(_within(s.vector, first, last) for s in unit.simds) / (span * machine.simds),
        "lds": _within(unit.lds, first, last) / span,
        "memory": _within(unit.memory, first, last) / span,
    }
    return Timing(clocks, unit.waves[-1].block + 1, span / passes if passes else 0.0, passes, busy, dict(unit.stalls))


def _window(unit: _Unit, clocks: int) -> tuple[int, int, int]:
    """(from, to, passes) of the loop whose branch the first wave took most often."""
    marks = unit.waves[0].marks
    if not marks:
        return 0, clocks, 0
    address, times = Counter(a for a, _ in marks).most_common(1)[0]
    if times < 2:
        return 0, clocks, 0
    at = [t for a, t in marks if a == address]
    return at[0], at[-1], times - 1


def _within(spans: Spans, first: int, last: int) -> int:
    return sum(max(0, min(b, last) - max(a, first)) for a, b in spans)
