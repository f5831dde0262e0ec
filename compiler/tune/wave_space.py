"""What `tilec tune` may vary of kernels of waves: the fields of `cdna.Point`, and the map of blocks.

A neighbour differs in one field; waves and turns are one, and rows are 16 or 32 to a wave.  What a schedule pins is not varied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilec.cdna_lines import TURNS
from tilec.ir.attention import Attention
from tilec.passes.split_rows import LEGAL
from tilec.schedule import Schedule, Strategy
from tilec.targets import Target
from tilec.tune.cdna import Point, points
from tilec.tune.hopper import widths_of

WAVES = ((True, TURNS), (False, 4), (False, 8))  # in turns, how many
KEYS = (32, 64, 96, 128, 160, 192, 256)
KEYS_AHEAD = (0, 32, 64, 96, 128, 192, 256)  # features
VALUES_AHEAD = (0, 16, 32, 48, 64)  # keys
SELDOM = (None, 8.0)
MAPS = ("linear", "longest_first")
BY = "tune"

Map = tuple[str, str | None] | None


def map_line(found: Map) -> str:
    """As a line of a schedule; empty without one."""
    if found is None:
        return ""
    name, by = found
    return f"map {name}" + (f" by {by}" if by else "")


@dataclass(frozen=True)
class WavePoint:
    """A shape, and what a `map` line says, None without one."""

    shape: Point
    map: Map = None

    def schedule(self, attn: Attention, base: Schedule) -> Schedule:
        """`base` with lines that say as much of the point as lines can."""
        s = self.shape
        warps = Strategy("ping_pong", (("wave", s.waves),)) if s.turns else Strategy("split_q", (("warp", s.waves),))
        rescale = ("delayed", None) if s.seldom is None else ("conditional", s.seldom)
        tile = ((attn.q, s.rows), (attn.k, s.keys))
        return replace(base, tile=tile, choices=(), warps=warps, rescale=rescale, map=self.map)

    def lines(self, attn: Attention, target: Target) -> str:
        """As a schedule."""
        s = self.shape
        warps = f"ping_pong(wave = {s.waves})" if s.turns else f"split_q({s.waves})"
        rescale = "delayed" if s.seldom is None else f"conditional {s.seldom:g}"
        tile = f"tile {attn.q} = {s.rows}, {attn.k} = {s.keys}"
        parts = [tile, f"warps {warps}", f"rescale {rescale}", map_line(self.map)]
        return f"schedule {attn.name} on {target.name} {{ {'  '.join(p for p in parts if p)} }}"

    def unsaid(self, attn: Attention, base: Schedule) -> tuple[str, ...]:
        """Fields of which the schedule of these lines would have other values, as `keys_ahead = 0`."""
        got = asdict(next(points(attn, self.schedule(attn, base))))
        own = self.data
        return tuple(f"{n} = {v}" for n, v in own.items() if n in got and got[n] != v)

    @property
    def data(self) -> dict[str, Any]:
        """JSON values."""
        shape = {n: v for n, v in asdict(self.shape).items() if n != "by"}
        return {**shape, "map": self.map}

    @property
    def cells(self) -> dict[str, str]:
        """Of a table, but for the map."""
        s = self.shape
        waves = f"{s.waves} in turns" if s.turns else str(s.waves)
        ahead = f"{s.keys_ahead}, {s.values_ahead}" if s.turns else ""
        seldom = "delayed" if s.seldom is None else f"conditional {s.seldom:g}"
        tile = {"waves": waves, "rows": str(s.rows), "keys": str(s.keys), "ahead": ahead}
        return {**tile, "rescale": seldom}


def neighbours(p: WavePoint, attn: Attention, schedule: Schedule) -> Iterator[WavePoint]:
    """Shapes near its own, then its other maps."""
    yield from (replace(p, shape=s) for s in _shapes(p.shape, attn, schedule))
    if schedule.map is None:
        last = [("xcd", i.name) for i in attn.outer[-1:]]
        maps: tuple[Map, ...] = (None, *((n, None) for n in MAPS), *last)
        yield from (replace(p, map=m) for m in maps if m != p.map)


def _shapes(p: Point, attn: Attention, s: Schedule) -> Iterator[Point]:
    each, (width, _) = p.rows // p.waves, widths_of(attn)
    rows, keys = ((size,) if (size := s.size(i)) is not None else dict(s.choices).get(i, ()) for i in (attn.q, attn.k))

    def allowed(x: Point) -> bool:
        return x != p and (not rows or x.rows in rows)

    found = []
    if s.warps is None:
        found += [replace(p, turns=t, waves=n, rows=n * r) for t, n in WAVES for r in (each, *LEGAL["wave"])]
    found += [replace(p, rows=p.waves * r) for r in LEGAL["wave"]]
    found += [replace(p, keys=n, values_ahead=min(p.values_ahead, n)) for n in (keys or KEYS)]
    if p.turns:
        found += [replace(p, keys_ahead=n) for n in KEYS_AHEAD if n <= width]
        found += [replace(p, values_ahead=n) for n in VALUES_AHEAD if n <= p.keys]
    if s.rescale is None:
        found += [replace(p, seldom=n) for n in SELDOM]
    yield from (x for x in dict.fromkeys(found) if allowed(x))
