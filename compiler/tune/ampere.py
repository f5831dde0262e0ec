"""Shapes of kernels of warp-wide matrix instructions in the order in which they are tried: the table's, then smaller ones.

The table is text in the repository, `ampere.toml`; a point without a source is an error.  What a schedule pins is taken as it
is; what it leaves free comes from the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

from tilec.ampere_lines import DEPTH, WARPS
from tilec.ir.attention import Attention
from tilec.passes.split_rows import LEGAL
from tilec.passes.stage_copies import STAGES
from tilec.schedule import Schedule
from tilec.targets import Target
from tilec.tune import tables
from tilec.tune.hopper import width_of


@dataclass(frozen=True)
class Point:
    """Tiles of `rows`, shared out by `warps`, and of `keys`; the rest as `Staging` has it.  `by`: who decides."""

    warps: int
    rows: int
    keys: int
    queries: Literal["registers", "shared"]
    stages: int
    registers: int
    by: str = "record"


@cache
def table() -> tuple[tuple[int, str | None, Point], ...]:
    """(width, target or None, point) of each row, in the order of the text.  Raises ValueError as `tables.read`."""
    text = resources.files("tilec.tune").joinpath("ampere.toml").read_text(encoding="utf-8")
    found = tables.read(text, "ampere.toml", "point", Point, {"on": str})
    return tuple((head["width"], head.get("on"), point) for point, head in found)


def points(attn: Attention, machine: Target, schedule: Schedule) -> Iterator[Point]:
    """Every shape that the schedule allows, best guess first: the table's rows for this width; then the same with ever fewer
    keys, with 16 rows to a warp, and with fewer warps.  Ends after the smallest."""
    widths = sorted({w for w, _, _ in table()})
    width = next((w for w in widths if w >= width_of(attn)), widths[-1])
    rows = [(on, p) for w, on, p in table() if w == width and on in (None, machine.name)]
    measured = [p for on, p in rows if on is not None] + [p for on, p in rows if on is None]
    if attn.value in {key for _, key in attn.pairs}:  # a tile that is in use for a whole step
        measured = [replace(p, stages=max(STAGES)) for p in measured]
    seen: set[Point] = set()
    for p in (*measured, *(x for m in measured for x in _smaller(m))):
        for found in _pinned(p, attn, schedule):
            if found not in seen:
                seen.add(found)
                yield found


def _smaller(p: Point) -> Iterator[Point]:
    for warps in (n for n in reversed(WARPS) if n <= p.warps):
        for each in reversed(LEGAL["warp"]):
            if warps * each <= p.rows:
                for keys in range(p.keys, 0, -DEPTH):
                    yield replace(p, warps=warps, rows=warps * each, keys=keys)


def _pinned(p: Point, attn: Attention, s: Schedule) -> Iterator[Point]:
    """`p` with what the schedule says in place of what it does not allow."""
    pinned = bool(s.tile or s.choices or s.warps or s.stages)
    keys = _sizes(s, attn.k)
    warps = (s.warps.get("warp") or p.warps,) if s.warps is not None else (p.warps, *(n for n in WARPS if n != p.warps))
    for rows in _sizes(s, attn.q) or (p.rows,):
        count = next((n for n in warps if rows in [n * each for each in LEGAL["warp"]]), None)
        if count is None and not _sizes(s, attn.q):
            count = warps[0]
            rows = count * max(LEGAL["warp"])
        if count is not None:
            size = p.keys if not keys or p.keys in keys else min(keys, key=lambda n: (abs(n - p.keys), n))
            by = "spec" if pinned else p.by
            yield replace(p, warps=count, rows=rows, keys=size, stages=s.stages or p.stages, by=by)


def _sizes(schedule: Schedule, index: str) -> tuple[int, ...]:
    """What a `tile` or a `tune` line says of an index; empty without one."""
    size = schedule.size(index)
    return dict(schedule.choices).get(index, ()) if size is None else (size,)
