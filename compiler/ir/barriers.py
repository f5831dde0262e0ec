"""Barriers of a CTA: phases that count arrivals and carry what the arriving threads know.

mbarriers follow the PTX ISA (mbarrier.test_wait.parity): phase numbers start at 0, and a wait for parity p is blocked while
`phase % 2 == p`.  Named barriers are bar.sync / bar.arrive and s_barrier.  Both refuse an arrival that nothing orders after
the completion of the phase before: depending on timing it would count one phase earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.clocks import Clock, covers, join
from tilec.ir.errors import OverArrival


@dataclass
class Phase:
    """Arrivals so far: who came, and all they know."""

    who: list[str] = field(default_factory=list)
    clock: Clock = field(default_factory=dict)
    complete: bool = False


@dataclass
class BarrierState:
    """One barrier of an array."""

    label: str
    named: bool
    arrivals: int
    number: int = 0
    phase: Phase = field(default_factory=Phase)
    last: Clock = field(default_factory=dict)  # known by the arrivals of the phase before
    known: Clock = field(default_factory=dict)  # known by those of all completed phases

    def arrive(self, who: str, clock: Clock) -> Phase:
        """One arrival; returns its phase.  OverArrival if it might belong to the phase before."""
        if not covers(clock, self.last):
            raise OverArrival(
                f"{self.label} completed phase {self.number - 1} with {self.arrivals} arrivals; "
                f"this one by {who} is not ordered after them, so it is one too many for that phase"
            )
        if self.named and who in self.phase.who:
            raise OverArrival(f"{who} arrives twice in phase {self.number} of {self.label}")
        phase = self.phase
        phase.who.append(who)
        join(phase.clock, clock)
        if len(phase.who) == self.arrivals:
            phase.complete = True
            self.last = phase.clock
            join(self.known, phase.clock)
            self.number += 1
            self.phase = Phase()
        return phase

    def passes(self, parity: int) -> bool:
        """Whether a wait for the phase of this parity goes through."""
        return self.number % 2 != parity % 2

    def status(self) -> str:
        """For deadlock reports."""
        came = ", ".join(self.phase.who) or "nobody"
        return f"{self.label} is in phase {self.number} with {len(self.phase.who)} of {self.arrivals} arrivals ({came})"
