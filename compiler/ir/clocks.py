"""Vector clocks and the happens-before check of shared accesses.

Every role instance is a clock thread, and so is every order in which its asynchronous operations complete: one per queue,
one per barrier it signals.  Operation number n of such a thread is known to be complete by whoever's clock has at least n
there.  An access is stamped with the thread and the time of what made it; it happens before a later one if the later one's
clock has reached that time.  (Lamport 1978; the pruning of what a later ordered access implies is that of FastTrack, Flanagan and
Freund, PLDI 2009.)
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tilec.ir.errors import DoubleFill, MissingFence, Race
from tilec.ir.memory import Box
from tilec.ir.nodes import Copy, Stmt
from tilec.ir.print import show_stmt

Clock = dict[Hashable, int]


def join(clock: Clock, other: Clock) -> None:
    """What `other` knows, `clock` knows from now on."""
    for thread, time in other.items():
        if time > clock.get(thread, 0):
            clock[thread] = time


def covers(clock: Clock, other: Clock) -> bool:
    """Whether everything `other` knows is known to `clock`."""
    return all(clock.get(thread, 0) >= time for thread, time in other.items())


def fenced(thread: Hashable) -> Hashable:
    """The clock entry that says up to which time the thread's writes are visible to the asynchronous proxy."""
    return ("fence", thread)


@dataclass(frozen=True, slots=True)
class Access:
    """One use of a box (None: everything) of a tile's stage.

    `chained`: the operation runs in its queue's order (Mma), so that two of one queue need no wait between them."""

    box: Box | None
    thread: Hashable
    time: int
    write: bool
    stmt: Stmt
    who: str
    asynchronous: bool = False
    chained: bool = False
    fill: bool = False

    def ordered_before(self, clock: Clock) -> bool:
        return clock.get(self.thread, 0) >= self.time

    def crosses(self, old: Access) -> bool:
        """Whether this goes to where `old` went through the other proxy: a product that reads what was stored, a copy of the
        tensor memory accelerator over what was read or stored."""
        copied = self.fill and isinstance(self.stmt, Copy) and self.stmt.signal is not None
        return not old.asynchronous and (copied or (self.chained and old.write))

    def describe(self) -> str:
        return f"{'write' if self.write else 'read'} by {self.who}: {show_stmt(self.stmt)}"


def overlap(a: Box | None, b: Box | None) -> bool:
    """Whether two boxes share an element."""
    if a is None or b is None:
        return True
    return all(p[0] < q[1] and q[0] < p[1] for p, q in zip(a, b, strict=True))


def inside(a: Box | None, b: Box | None) -> bool:
    """Whether box `a` lies in box `b`."""
    if b is None:
        return True
    return a is not None and all(q[0] <= p[0] and p[1] <= q[1] for p, q in zip(a, b, strict=True))


@dataclass
class History:
    """Accesses of one memory, per stage, that a later one could still conflict with."""

    past: dict[int, list[Access]] = field(default_factory=dict)

    def check(self, place: str, stage: int, new: Access, clock: Clock) -> None:
        """Race (or its subtype) if an earlier access conflicts with `new` and does not happen before `clock`."""
        for old in self.past.get(stage, ()):
            if not (old.write or new.write) or not overlap(old.box, new.box):
                continue
            if old.chained and new.chained and old.thread == new.thread:
                continue
            if not old.ordered_before(clock):
                kind = DoubleFill if new.fill and (old.fill or not old.write) else Race
                raise kind(f"{place}: nothing orders the\n  {old.describe()}\n  before the\n  {new.describe()}")
            if new.crosses(old) and clock.get(fenced(old.thread), 0) < old.time:
                raise MissingFence(f"{place}: no fence between the\n  {old.describe()}\n  and the\n  {new.describe()}")

    def add(self, stage: int, new: Access, clock: Clock) -> None:
        """Remembers `new`, and forgets what it implies: earlier accesses to its box that happen before it."""
        kept = [
            old
            for old in self.past.get(stage, ())
            if not (inside(old.box, new.box) and old.ordered_before(clock) and (new.write or not old.write))
        ]
        self.past[stage] = [*kept, new]
