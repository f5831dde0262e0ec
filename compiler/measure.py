"""How fast calls are beside each other: what the figures of `bench` and `tune` mean.

    burst      about 6 ms of one call at a time, all calls interleaved, in turn forwards and backwards; the median over rounds
    sustained  60 ms of one call to warm up, then about 300 ms of it; all calls so, twice, the second time backwards; the
               better of the two counts
    host       time that the Python call takes on the host, kernels not waited for

A chip at its power limit inherits the clock that the kernel before left it: on an H200 the same kernel, measured first and
last of a round, differs by 3 to 5 % in bursts and by less than 1.5 % sustained.  So `sustained` is what is quoted.

Where one of the calls is shorter than `SHORT`, all are replayed from CUDA graphs of several launches, so that a slow Python
wrapper does not count as a slow kernel; `host` is then what the graph hides.  A call that cannot be captured is timed as it
is, and its `note` says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

Call = Callable[[], Any]

QUOTED = "sustained"
BURST = 6e-3  # seconds
WARM_UP = 60e-3
SUSTAINED = 0.3
SHORT = 200e-6  # of a call
COPIES = 20  # launches of one graph
HOST = 50e-3  # seconds of device work to queue while the host is timed


class Clock(Protocol):
    """A device's clock: `burst` and `host` give seconds per call, `captured` a replay of `copies` calls, where there are
    `graphs`."""

    @property
    def graphs(self) -> bool: ...

    def burst(self, call: Call, launches: int) -> float: ...

    def host(self, call: Call, calls: int) -> float: ...

    def captured(self, call: Call, copies: int) -> Call: ...


@dataclass(frozen=True)
class Plan:
    """`graph` None: where a call is shorter than `SHORT`."""

    rounds: int = 6
    burst: float = BURST
    sustained: float = SUSTAINED
    graph: bool | None = None


@dataclass(frozen=True)
class Speed:
    """Seconds per call.  `graph`: whether burst and sustained are of replays."""

    burst: float
    sustained: float
    host: float
    graph: bool = False
    note: str = ""


@dataclass(frozen=True)
class _Timed:
    """What is launched for one call of the caller: `copies` of it at a time, each of about `once` seconds."""

    call: Call
    once: float
    copies: int = 1
    note: str = ""

    def launches(self, seconds: float) -> int:
        return max(1, round(seconds / (self.once * self.copies)))

    def burst(self, clock: Clock, seconds: float) -> float:
        return clock.burst(self.call, self.launches(seconds)) / self.copies


def measure(
    calls: Mapping[str, Call], clock: Clock, plan: Plan = Plan(), progress: Callable[[str], None] = lambda _: None
) -> dict[str, Speed]:
    """The speed of each call, which has run before.  `progress` is told what comes next, at least once for every burst."""
    progress("timing single calls")
    once = {n: max(clock.burst(c, 3), 1e-7) for n, c in calls.items()}
    hosts = {n: clock.host(c, min(100, max(5, round(HOST / once[n])))) for n, c in calls.items()}
    timed = {n: _Timed(c, once[n]) for n, c in calls.items()}
    short = min(once.values(), default=SHORT) < SHORT
    if clock.graphs and (short if plan.graph is None else plan.graph):
        for n in timed:
            progress(f"capturing {n}")
            timed[n] = _captured(timed[n], clock)
    bursts = interleaved(timed, clock, plan, progress)
    lasting = sustained(timed, clock, plan, progress)
    return {n: Speed(bursts[n], lasting[n], hosts[n], t.copies > 1, t.note) for n, t in timed.items()}


def _captured(t: _Timed, clock: Clock) -> _Timed:
    try:
        replay = clock.captured(t.call, COPIES)
        once = max(clock.burst(replay, 1) / COPIES, 1e-7)
    except Exception as wrong:
        reason = next(iter(str(wrong).splitlines()), "")
        return replace(t, note=f"not captured, its host time counts: {type(wrong).__name__}: {reason}")
    return _Timed(replay, once, COPIES)


def interleaved(
    timed: Mapping[str, _Timed], clock: Clock, plan: Plan, progress: Callable[[str], None]
) -> dict[str, float]:
    """Median burst of each."""
    times: dict[str, list[float]] = {n: [] for n in timed}
    for number in range(plan.rounds):
        for n in _in_turn(timed, number):
            progress(f"burst {number + 1} of {plan.rounds}: {n}")
            times[n].append(timed[n].burst(clock, plan.burst))
    return {n: statistics.median(t) for n, t in times.items()}


def sustained(
    timed: Mapping[str, _Timed], clock: Clock, plan: Plan, progress: Callable[[str], None]
) -> dict[str, float]:
    """The better of two sustained runs of each."""
    best: dict[str, float] = {}
    for number in range(2):
        for n in _in_turn(timed, number):
            progress(f"sustained {number + 1} of 2: {n}")
            timed[n].burst(clock, min(WARM_UP, plan.sustained))
            best[n] = min(best.get(n, float("inf")), timed[n].burst(clock, plan.sustained))
    return best


def _in_turn(timed: Mapping[str, _Timed], number: int) -> list[str]:
    """Forwards, backwards, forwards, …"""
    return list(timed)[:: 1 if number % 2 == 0 else -1]
