"""Shapes of native Hopper kernels in the order in which they are tried: what was measured, then what is near it.

The table is text in the repository, `hopper.toml`; a point without a source is an error.  What a schedule pins is taken as it
is; what it leaves free comes from the table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import product
from typing import Literal

from tilec.ir.attention import Attention
from tilec.ir.expr import Int
from tilec.schedule import Schedule

ROWS = 64  # of a warpgroup's matrix instruction
DEPTH = 16  # keys of one step of the product with values
QUERIES: tuple[Literal["registers", "shared"], ...] = ("registers", "shared")


@dataclass(frozen=True)
class Point:
    """Tiles of 64 rows for each of `warpgroups` and of `keys`; the other choices as `native.HopperOptions` has them, with
    `wait` as a part of the exponentials.  `by`: who decides."""

    warpgroups: int
    keys: int
    queries: Literal["registers", "shared"]
    turns: bool
    wait: float
    stages: int
    by: str = "record"


@cache
def table() -> tuple[tuple[int, Point], ...]:
    """(width, point) of each row, in the order of the text; ValueError for one without a source."""
    text = resources.files("tilec.tune").joinpath("hopper.toml").read_text(encoding="utf-8")
    out = []
    for row in tomllib.loads(text)["point"]:
        width = row.pop("width")
        if not row.pop("source", ""):
            raise ValueError(f"hopper.toml: {row} has no source")
        out.append((width, Point(**row)))
    return tuple(out)


def width_of(attn: Attention) -> int:
    """Features of the wider product: of all contracted pairs together, or of the value."""
    extents = {i.name: i.extent.value if isinstance(i.extent, Int) else 1 for i in attn.indices}
    return max(sum(extents[d] for d in attn.contracted), extents[attn.feature])


def points(attn: Attention, schedule: Schedule) -> Iterator[Point]:
    """Every shape that the schedule allows, best guess first: the table's rows for this width; then, with fewer keys at each
    step, the same with queries in either place; then with fewer stages; then one warpgroup.  Ends after the smallest."""
    widths = sorted({w for w, _ in table()})
    width = next((w for w in widths if w >= width_of(attn)), widths[-1])
    measured = [_pinned(p, schedule) for w, p in table() if w == width]
    groups = [n // ROWS for n in _sizes(schedule, attn.q)]
    rows = [p for p in measured if not groups or p.warpgroups in groups]
    rest = [replace(measured[0], warpgroups=n) for n in (groups or (1,)) if schedule.warps is None or not rows]
    deepest = max(p.keys for p in measured)
    keys = sorted(_sizes(schedule, attn.k), key=lambda n: (abs(n - deepest), -n)) or range(deepest, 0, -DEPTH)
    fewer = range(measured[0].stages if schedule.stages is None else 1)
    near = (
        replace(p, stages=p.stages - less, keys=k, queries=q)
        for some in (rows, rest)
        for less, k, p, q in product(fewer, keys, some, QUERIES)
        if p.stages > less
    )
    seen: set[Point] = set()
    for p in (*(p for p in rows if p.keys in keys), *near):
        p = replace(p, turns=p.turns and p.warpgroups > 1)
        if p not in seen:
            seen.add(p)
            yield p


def _pinned(p: Point, s: Schedule) -> Point:
    """`p` with what `warps` and `stages` lines say."""
    if s.warps is not None:
        p = replace(p, warpgroups=s.warps.get("consumer") or p.warpgroups, turns=s.warps.name == "ping_pong")
    pinned = s.tile or s.choices or s.warps or s.stages
    return replace(p, stages=s.stages or p.stages, by="spec" if pinned else p.by)


def _sizes(schedule: Schedule, index: str) -> tuple[int, ...]:
    """What a `tile` or a `tune` line says of an index; empty without one."""
    size = schedule.size(index)
    return dict(schedule.choices).get(index, ()) if size is None else (size,)
