"""What `tilec tune` may vary: for each field of `hopper.Point` that is a knob, its values.

A field without a knob keeps the value of the point that a search starts from, so a new field is tuned from the moment it is
declared here.  What the spec's schedule pins is not varied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tilec.ir.attention import Attention
from tilec.schedule import Schedule
from tilec.tune.hopper import AHEAD, DEPTH, MOST_KEYS, QUERIES, ROWS, Point


@dataclass(frozen=True)
class Knob:
    """`step`: how many places along `values` a neighbour may be away; None for any."""

    field: str
    values: tuple[Any, ...]
    step: int | None = None


KNOBS = (
    Knob("warpgroups", (1, 2, 3)),
    Knob("keys", tuple(range(DEPTH, MOST_KEYS + 1, DEPTH)), step=3),
    Knob("queries", QUERIES),
    Knob("turns", (False, True)),
    Knob("wait", (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0)),
    Knob("stages", (1, 2, 3, 4, 5)),
    Knob("seldom", (None, 8.0)),
    Knob("ahead", AHEAD),
    Knob("cluster", (1, 2)),
    Knob("chains", (0, 2)),
)


def check_knobs(knobs: tuple[Knob, ...] = KNOBS) -> None:
    """ValueError for a knob that is no field of a point, or is there twice."""
    names = [k.field for k in knobs]
    unknown = set(names) - {f.name for f in fields(Point)}
    if unknown or len(set(names)) < len(names):
        raise ValueError(f"knobs {', '.join(names)} are not the names of different fields")


def allowed(attn: Attention, schedule: Schedule, knobs: tuple[Knob, ...] = KNOBS) -> dict[str, tuple[Any, ...]]:
    """The values of each knob that the schedule leaves: pinned ones have one, `tune` lines those that they name."""
    check_knobs(knobs)
    out = {k.field: k.values for k in knobs}
    rows = schedule.size(attn.q), dict(schedule.choices).get(attn.q)
    keys = schedule.size(attn.k), dict(schedule.choices).get(attn.k)
    for name, (pinned, some), unit in (("warpgroups", rows, ROWS), ("keys", keys, 1)):
        if pinned is not None or some is not None:
            out[name] = tuple(n // unit for n in ((pinned,) if pinned is not None else some or ()))
    if schedule.warps is not None:
        consumers = schedule.warps.get("consumer")
        out["turns"] = (schedule.warps.name == "ping_pong",)
        out["warpgroups"] = out["warpgroups"] if consumers is None else (consumers,)
    if schedule.stages is not None:
        out["stages"] = (schedule.stages,)
    if schedule.rescale is not None:
        out["seldom"] = (schedule.rescale[1],)
    return {n: v for n, v in out.items() if n in {k.field for k in knobs}}


def neighbours(point: Point, values: Mapping[str, tuple[Any, ...]], knobs: tuple[Knob, ...] = KNOBS) -> Iterator[Point]:
    """Points that differ from this one in one knob, near values first.  One warpgroup has nobody to take turns with."""
    for knob in knobs:
        here, some = getattr(point, knob.field), values[knob.field]
        order = sorted((v for v in some if v != here), key=lambda v: _distance(knob, here, v))
        for v in order:
            if knob.step is None or _distance(knob, here, v) <= knob.step or here not in knob.values:
                near = replace(point, **{knob.field: v})
                near = replace(near, turns=near.turns and near.warpgroups > 1, by="tune")
                if replace(near, by=point.by) != point:
                    yield near


def _distance(knob: Knob, a: Any, b: Any) -> float:
    """Places between two values along the knob; of others, how much they differ."""
    if a in knob.values and b in knob.values:
        return abs(knob.values.index(a) - knob.values.index(b))
    return float("inf") if a is None or b is None else float(abs(a - b))
