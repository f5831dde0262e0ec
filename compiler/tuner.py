"""The measured half of tuning: candidates compiled, checked against the first and raced, as `tune.search` asks for them.

A race is one `measure` of bursts over all candidates, and then one of sustained runs over the fastest of them and the
incumbent: bursts tell who is far behind, sustained runs who wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tilec.candidates import Candidate
from tilec.measure import Call, Clock, Plan, measure
from tilec.tune.hopper import Point

SHORTLIST = 1.08  # of the shortest burst: the noise of bursts, and some
AGREE = 2e-2  # of the largest output: other tile shapes add in another order

Compile = Callable[[Sequence[Point]], Iterable[Candidate]]


class Progress(Protocol):
    """Told what goes on, and how much of the race at hand is done."""

    def __call__(self, text: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """Seconds of the latest race that a candidate was in; `note` says why there are none."""

    candidate: Candidate
    burst: float | None = None
    sustained: float | None = None
    note: str = ""

    @property
    def seconds(self) -> float:
        """For order: sustained ones first, then by bursts, then those that do not run."""
        return self.sustained or 1e3 + (self.burst or 1e3)


@dataclass
class Tuner:
    """`compile` gives a candidate for each point, in any order; `launch` a call that returns the output; `distance` of two
    outputs, relative to the second's largest element."""

    compile: Compile
    launch: Callable[[Candidate], Call]
    distance: Callable[[Any, Any], float]
    clock: Clock
    plan: Plan
    progress: Progress
    outcomes: dict[Point, Outcome] = field(default_factory=dict)
    calls: dict[Point, Call] = field(default_factory=dict)
    expected: Any = None

    def race(self, points: Sequence[Point]) -> dict[Point, float]:
        """Sustained seconds of the shortlist; the first point is on it if it runs."""
        self._prepare([p for p in points if p not in self.outcomes])
        able = [p for p in points if p in self.calls]
        bursts = self._measured(able, replace(self.plan, sustained=0.0), "bursts")
        if not bursts:
            return {}
        least = min(s.burst for s in bursts.values())
        short = [p for p in able if p == points[0] or bursts[p].burst <= SHORTLIST * least]
        lasting = self._measured(short, replace(self.plan, rounds=1), "sustained")
        for p, speed in bursts.items():
            found = lasting[p].sustained if p in lasting else None
            self.outcomes[p] = replace(self.outcomes[p], burst=speed.burst, sustained=found)
        return {p: s.sustained for p, s in lasting.items()}

    def _measured(self, points: Sequence[Point], plan: Plan, what: str) -> dict[Point, Any]:
        total, steps = len(points) * (plan.rounds + 2) or 1, iter(range(1 << 30))
        names = {str(n): p for n, p in enumerate(points)}

        def say(_: str) -> None:
            self.progress(f"{what} of {len(points)} candidates", min(next(steps), total), total)

        return {
            names[n]: s for n, s in measure({n: self.calls[p] for n, p in names.items()}, self.clock, plan, say).items()
        }

    def _prepare(self, points: Sequence[Point]) -> None:
        """Compiles, and compares results with that of the first point; the order of completion does not matter."""
        found: dict[Point, Candidate] = {}
        for number, candidate in enumerate(self.compile(points) if points else ()):
            self.progress(f"compiling {len(points)} candidates", number + 1, len(points))
            found[candidate.point] = candidate
        for number, p in enumerate(points):
            self.progress(f"checking {len(points)} candidates", number + 1, len(points))
            self.outcomes[p] = self._checked(found[p])

    def _checked(self, candidate: Candidate) -> Outcome:
        if candidate.artifact is None:
            return Outcome(candidate, note=candidate.reason)
        call = self.launch(candidate)
        result = call()
        if self.expected is None:
            self.expected = result
        error = self.distance(result, self.expected)
        if not error <= AGREE:
            return Outcome(candidate, note=f"disagrees with the first: {error:.1e} of the largest output")
        self.calls[candidate.point] = call
        return Outcome(candidate)

    def ranking(self) -> Iterator[Outcome]:
        """Outcomes, the fastest first."""
        yield from sorted(self.outcomes.values(), key=lambda o: o.seconds)
