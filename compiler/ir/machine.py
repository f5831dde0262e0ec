"""The state of a run: CTAs with their shared tiles and barriers, and role instances that execute steps on them.

A program of one instance without asynchrony or barriers runs *alone*: no clocks, no histories, no scheduling points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilec.ir.access import Place
from tilec.ir.barriers import BarrierState
from tilec.ir.clocks import Access, Clock, History, fenced, join
from tilec.ir.errors import Abandoned, OutOfBounds, Race, Undefined, UnfinishedAsync
from tilec.ir.evaluate import Live
from tilec.ir.execute import Blocked, Steps
from tilec.ir.memory import Box, Tensor, Tile
from tilec.ir.nodes import Barrier, Buffer, Stmt
from tilec.ir.print import show_stmt


def make_tiles(
    buffers: tuple[Buffer, ...], sizes: Any, target: str, others: dict[str, Tile] | None = None
) -> dict[str, Tile]:
    """Fresh tiles; those that share memory through `alias` know each other as peers."""
    tiles = {b.name: Tile(b.name, sizes[b.name], b.stages, b.dtype, target) for b in buffers}
    groups: dict[str, list[Tile]] = {}
    parent = {b.name: b.alias for b in buffers}
    for b in buffers:
        root = b.name
        while (up := parent.get(root)) is not None:
            root = up
        groups.setdefault(root, []).append(tiles[b.name])
    for group in groups.values():
        for tile in group:
            tile.peers = tuple(t for t in group if t is not tile)
    return {**(others or {}), **tiles}


@dataclass
class Flight:
    """A Copy that has not completed: arriving on its barrier is all that is left to do."""

    label: str
    stmt: Stmt
    clock: Clock
    barrier: BarrierState

    def land(self) -> None:
        self.barrier.arrive(self.label, self.clock)


class Cta:
    """One thread block: shared tiles, barriers, instances, and copies in flight."""

    def __init__(self, number: int, tiles: dict[str, Tile], barriers: tuple[Barrier, ...], early: bool) -> None:
        self.number = number
        self.tiles = tiles
        self.barriers = {
            b.name: [
                BarrierState(f"{b.name}[{i}]" if b.stages > 1 else b.name, b.kind == "named", b.arrivals)
                for i in range(b.stages)
            ]
            for b in barriers
        }
        self.early = early
        self.cluster: tuple[Cta, ...] = (self,)
        self.visits: dict[str, tuple[int, Stmt]] = {}  # by instances of other CTAs: time of the last arrival here
        self.flights: list[Flight] = []
        self.instances: list[Instance] = []
        self.histories: dict[str, History] = {}

    def history(self, key: str) -> History:
        return self.histories.setdefault(key, History())

    def finish(self) -> None:
        """UnfinishedAsync if an operation was started here that no instance knows to be complete; Abandoned for an arrival from
        another CTA that none knows of."""
        known: Clock = {}
        for f in self.instances:
            join(known, f.clock)
        for f in (f for cta in self.cluster for f in cta.instances):
            for thread, (count, stmt, cta) in f.started.items():
                if cta is self and known.get(thread, 0) < count:
                    raise UnfinishedAsync(f"cta {self.number} ends, but nobody waited for {f.label}: {show_stmt(stmt)}")
        for label, (time, stmt) in self.visits.items():
            if known.get(label, 0) < time:
                raise Abandoned(f"cta {self.number} may end before {label} arrives: {show_stmt(stmt)}")


class Launch(Protocol):
    """What all instances of a run have in common.  `shares`: whether any of them can meet another."""

    shares: bool

    def claim(self, counter: str) -> int: ...

    def writer(self, uid: int) -> str: ...


class Instance:
    """One thread of control of a role."""

    def __init__(
        self,
        label: str,
        uid: int,
        cta: Cta,
        tiles: dict[str, Tile],
        tensors: dict[str, Tensor],
        scalars: dict[str, int],
        launch: Launch,
    ) -> None:
        self.label, self.uid, self.cta = label, uid, cta
        self.tiles, self.tensors = tiles, tensors
        self.vars: dict[str, Any] = scalars
        self.shares = launch.shares
        self.claim, self.writer = launch.claim, launch.writer
        self.stmt: Stmt | None = None
        self.clock: Clock = {label: 1}
        self.started: dict[
            Hashable, tuple[int, Stmt, Cta]
        ] = {}  # per completion order: operations, the last one, and where
        self.queues: Counter[str] = Counter()

    # Scalars and tiles.

    def unbound(self, name: str) -> Exception:
        return Undefined(f"{name} has no value here")

    def gather(self, tensor: str, index: list[Any], axes: tuple[str, ...], live: Live | None) -> Any:
        return self.tensors[tensor].gather(index, axes, live)

    def read(self, buffer: str, stage: int) -> Any:
        tile = self.tiles[buffer]
        tile.check_stage(stage)
        if self.shares:
            self._use(tile, stage, None, write=False)
        return tile.read(stage)

    def load(self, place: Place) -> Any:
        """Values of a slot."""
        tile, stage, box = self._locate(place)
        if self.shares:
            self._use(tile, stage, box, write=False)
        return tile.read(stage, box)

    def write(self, place: Place, value: Any) -> None:
        tile, stage, box = self._locate(place)
        if self.shares:
            self._use(tile, stage, box, write=True)
        tile.write(stage, value, box)

    def touch_write(self, place: Place) -> None:
        """The check of `write`, without writing."""
        tile, stage, box = self._locate(place)
        if self.shares:
            self._use(tile, stage, box, write=True)

    def stored(self, tensor: Tensor, other: int) -> None:
        """Race if a Store met an element that another instance (by number) had stored."""
        if other:
            raise Race(f"an element of {tensor.name} that {self.writer(other)} stores too")

    def _locate(self, place: Place) -> tuple[Tile, int, Box | None]:
        tile = self.tiles[place.buffer]
        stage, box = place.locate(self)
        tile.check_stage(stage)
        for axis, (lo, hi), n in zip(tile.axes, box or (), tile.shape, strict=False):
            if lo < 0 or hi > n:
                raise OutOfBounds(f"lanes {lo} … {hi - 1} along {axis} of {tile.name}, which has {n}")
        return tile, stage, box

    # Order of accesses.

    def _use(self, tile: Tile, stage: int, box: Box | None, *, write: bool) -> None:
        """Checks a synchronous access, and remembers it if others could conflict with it."""
        private = tile.name not in self.cta.tiles
        history = self._history(tile, private)
        assert self.stmt is not None
        access = Access(
            box if not tile.peers else None, self.label, self.clock[self.label], write, self.stmt, self.label
        )
        key = 0 if tile.peers else stage
        history.check(self._name(tile, stage), key, access, self.clock)
        if not private:
            history.add(key, access, self.clock)

    def _use_later(
        self, tile: Tile, stage: int, box: Box | None, thread: Hashable, time: int, cta: Cta | None = None, **kind: bool
    ) -> None:
        """Checks and remembers an access of an asynchronous operation: from now until it is known to be complete."""
        assert self.stmt is not None
        at, key = (None, 0) if tile.peers else (box, stage)
        access = Access(at, thread, time, stmt=self.stmt, who=self.label, asynchronous=True, **kind)
        history = self._history(tile, tile.name not in self.cta.tiles, cta)
        history.check(self._name(tile, stage), key, access, self.clock)
        history.add(key, access, self.clock)

    def _history(self, tile: Tile, private: bool, cta: Cta | None = None) -> History:
        root = min(t.name for t in (tile, *tile.peers))
        return (cta or self.cta).history(f"{self.label}.{root}" if private else root)

    def _name(self, tile: Tile, stage: int) -> str:
        return f"{tile.name}[{stage}]" if tile.stages > 1 else tile.name

    def _start(self, thread: Hashable, cta: Cta | None = None) -> int:
        assert self.stmt is not None
        count = self.started[thread][0] + 1 if thread in self.started else 1
        self.started[thread] = (count, self.stmt, cta or self.cta)
        return count

    def _tick(self) -> None:
        self.clock[self.label] += 1

    # Asynchronous operations.

    def issue_mma(
        self, dst: Place, a: Place, b: Place, product: Callable[[Any, Any], Any], accumulate: bool, queue: str
    ) -> None:
        """Starts an Mma: its operands and destination are in use until awaited."""
        thread = (self.label, queue)
        time = self._start(thread)
        values = []
        for place, write in ((a, False), (b, False), (dst, True)):
            tile, stage, box = self._locate(place)
            self._use_later(tile, stage, box, thread, time, write=write, chained=True)
            if not write or accumulate:
                values.append(tile.read(stage, box))
        value = product(*values[:2])
        tile, stage, box = self._locate(dst)
        tile.write(stage, value + values[2] if accumulate else value, box)
        self._tick()

    def issue_move(self, dst: Place, src: Place, order: tuple[int, ...], queue: str) -> None:
        """Starts a Move: what it reads and writes is in use until awaited."""
        thread = (self.label, queue)
        time = self._start(thread)
        tile, stage, box = self._locate(src)
        self._use_later(tile, stage, box, thread, time, write=False)
        value = np.transpose(tile.read(stage, box), order)
        tile, stage, box = self._locate(dst)
        self._use_later(tile, stage, box, thread, time, write=True, fill=True)
        tile.write(stage, value, box)
        self._tick()

    def copy(
        self, dst: Place, value: Any, signal: tuple[str, int] | None, queue: str | None, everywhere: bool = False
    ) -> Steps:
        """Starts a Copy of `value`: its destination is in use until its signal is waited for or its queue awaited.
        `everywhere`: in each CTA of the cluster, where it completes at a time of its own."""
        _, stage, box = self._locate(dst)
        for cta in self.cta.cluster if everywhere else (self.cta,):
            tile = cta.tiles[dst.buffer] if everywhere else self.tiles[dst.buffer]
            thread = (self.label, queue) if signal is None else (self.label, *signal, cta.number)
            time = self._start(thread, cta)
            self._use_later(tile, stage, box, thread, time, cta, write=True, fill=True)
            tile.write(stage, value, box)
            if signal is not None:
                assert self.stmt is not None
                bar = self.barrier(*signal, cta)
                flight = Flight(f"copy of {self.label}", self.stmt, {**self.clock, thread: time}, bar)
                if cta.early:
                    flight.land()
                else:
                    cta.flights.append(flight)
        self._tick()
        yield None

    def await_queue(self, queue: str, pending: int) -> None:
        thread = (self.label, queue)
        started = self.started[thread][0] if thread in self.started else 0
        self.clock[thread] = max(self.clock.get(thread, 0), started - pending)

    # Barriers.

    def barrier(self, name: str, stage: int, cta: Cta | None = None) -> BarrierState:
        array = (cta or self.cta).barriers[name]
        if not 0 <= stage < len(array):
            raise OutOfBounds(f"barrier {name}[{stage}], of which there are {len(array)}")
        return array[stage]

    def wait(self, name: str, stage: int, parity: int) -> Steps:
        bar = self.barrier(name, stage)
        if not bar.passes(parity):
            yield Blocked(lambda: bar.passes(parity), bar.status)
        join(self.clock, bar.known)

    def arrive(self, name: str, stage: int, at: int | None = None, everywhere: bool = False) -> None:
        """On this CTA's barrier, on that of CTA `at` of its cluster, or on all."""
        cluster = self.cta.cluster
        if at is not None and not 0 <= at < len(cluster):
            raise OutOfBounds(f"cta {at} of a cluster of {len(cluster)}")
        for cta in cluster if everywhere else (self.cta if at is None else cluster[at],):
            self.barrier(name, stage, cta).arrive(self.label, self.clock)
            if cta is not self.cta:
                assert self.stmt is not None
                cta.visits[self.label] = (self.clock[self.label], self.stmt)
        self._tick()

    def sync(self, name: str, stage: int) -> Steps:
        bar = self.barrier(name, stage)
        phase = bar.arrive(self.label, self.clock)
        self._tick()
        if not phase.complete:
            yield Blocked(lambda: phase.complete, bar.status)
        join(self.clock, phase.clock)

    def fence(self, kind: str) -> None:
        """`async_proxy`: asynchronous operations of whoever is ordered after this may read what was written so far, and write
        over what was read."""
        self.clock[fenced(self.label)] = self.clock[self.label]
        self._tick()
