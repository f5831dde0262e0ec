"""Coordinate descent over points of a space: from the fastest of some starts to its fastest neighbour, and so on.

Times are compared within one race only, where all were measured side by side: from race to race a chip's clock drifts.  A
neighbour must be faster by more than the noise of sustained runs, or the search would walk for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

NOISE = 1.015  # two sustained runs of one kernel on an H200 differ by less

Point = TypeVar("Point", bound=Hashable)


def search(
    starts: Sequence[Point],
    neighbours: Callable[[Point], Iterable[Point]],
    race: Callable[[Sequence[Point]], dict[Point, float]],
    over: Callable[[], bool] = lambda: False,
    noise: float = NOISE,
) -> Iterator[Point]:
    """The fastest point known after each race, until none of its neighbours is faster by `noise`, or it is `over`.

    `race` gives seconds of those points that can run.  Nothing is yielded where none can."""
    seen = set(starts)
    found = race(starts)
    if not found:
        return
    best = min(found, key=lambda p: found[p])
    yield best
    while not over():
        fresh = [p for p in dict.fromkeys(neighbours(best)) if p not in seen]
        seen |= set(fresh)
        found = race([best, *fresh]) if fresh else {}
        if best not in found:
            return
        fastest = min(found, key=lambda p: found[p])
        if found[best] < noise * found[fastest]:
            return
        best = fastest
        yield best
