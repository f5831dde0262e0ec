"""`tilec tune` for a chip that is not here: schedules searched by what the models predict of them.

A candidate's key step takes the clocks that the first of the step models says which knows its shape; the simulator of dies
(`tune.caches`) makes of it the time of the grid under a block map.  The walk is that of measured tuning (`tune.search`).
Everything it says is predicted, so nothing of it goes into a record of measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from tilec.count import count_tiles, key_ranges
from tilec.dsl.faults import Faults, TargetFault
from tilec.frontend import Spec, bind, unbound_constants
from tilec.ir.attention import Attention
from tilec.ir.nodes import Program
from tilec.passes.names import distinct_indices
from tilec.pipeline import stages
from tilec.roofline import Roofline, roofline
from tilec.schedule import Schedule, Strategy
from tilec.shapes import call_sizes
from tilec.targets import Target
from tilec.targets import target as target_of
from tilec.traffic import shape_of, step_clocks, traffic_of
from tilec.tune import model
from tilec.tune.caches import Traffic, dies_of
from tilec.tune.search import search
from tilec.tuner import Progress

BUDGET = 60_000  # accesses of a candidate that are simulated in detail
CLOSER = 1.002  # by how much a neighbour must be faster: samples of the simulator differ by less
ROWS, KEYS, WAVES, STAGES = (64, 128, 256), (16, 32, 64, 128), (4, 8), (1, 2, 3)
MAPS = ("linear", "longest_first", "persistent")

StepModel = Callable[[Attention, Target, model.Shape], float | None]
"""Clocks of one key step of a block alone on a unit; None for a shape that the model does not know."""

STEP_MODELS: tuple[tuple[str, StepModel], ...] = (("static bound", step_clocks),)


@dataclass(frozen=True)
class Point:
    """Rows and keys of a tile, waves of a block, stages of the copies, and what a `map` line says, None without one."""

    q: int
    k: int
    warps: int
    stages: int
    map: tuple[str, str | None] | None = None

    @property
    def map_line(self) -> str:
        """Empty without one."""
        if self.map is None:
            return ""
        name, by = self.map
        return f"map {name}" + (f" by {by}" if by else "")

    def lines(self, attn: Attention, target: Target) -> str:
        """As a schedule."""
        tile = f"tile {attn.q} = {self.q}, {attn.k} = {self.k}"
        parts = [tile, f"warps split_q({self.warps})", f"stages {self.stages}", self.map_line]
        return f"schedule {attn.name} on {target.name} {{ {'  '.join(p for p in parts if p)} }}"


@dataclass(frozen=True)
class Outcome:
    """`step`: clocks of a key step, by the model `by`; `order`: of the blocks.  Without `traffic` the point cannot be lowered:
    `note` says why."""

    point: Point
    seconds: float = float("inf")
    step: float = 0.0
    by: str = ""
    order: str = ""
    traffic: Traffic | None = None
    note: str = ""


@dataclass
class Prediction:
    """What was searched: `start` is compiled without tuning, at `best` the walk ended; `outcomes`, the fastest first."""

    attn: Attention
    target: Target
    extents: Mapping[str, int]
    roof: Roofline
    start: Point
    best: Point
    outcomes: tuple[Outcome, ...]

    def tflops(self, o: Outcome) -> float | None:
        """Predicted, on live elements; None where the point cannot be lowered."""
        return None if o.traffic is None else self.roof.flops / o.seconds / 1e12

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "kernel": self.attn.name,
            "target": self.target.name,
            "predicted": True,
            "extents": dict(self.extents),
            "roofline_tflops": self.roof.flops / self.roof.seconds / 1e12,
            "start": asdict(self.start),
            "best": asdict(self.best),
            "schedule": self.best.lines(self.attn, self.target),
            "candidates": [
                {
                    "point": asdict(o.point),
                    "tflops": self.tflops(o),
                    "step_clocks": o.step or None,
                    "step_model": o.by,
                    "order": o.order,
                    "traffic": None if o.traffic is None else asdict(o.traffic),
                    "note": o.note,
                }
                for o in self.outcomes
            ],
        }


@dataclass
class Model:
    """Predicts points of one call.  `sizes`: every symbol of it."""

    spec: Spec
    attn: Attention
    target: Target
    sizes: Mapping[str, int]
    progress: Progress
    models: Sequence[tuple[str, StepModel]] = STEP_MODELS
    outcomes: dict[Point, Outcome] = field(default_factory=dict)

    @cached_property
    def schedule(self) -> Schedule:
        """The spec's own lines."""
        return self.spec.schedule(self.attn.name, self.target.name)

    def program(self, p: Point) -> Program:
        """With that schedule.  Raises Faults where it cannot be honoured."""
        tile, warps = ((self.attn.q, p.q), (self.attn.k, p.k)), Strategy("split_q", (("warp", p.warps),))
        lines = replace(self.schedule, tile=tile, choices=(), warps=warps, stages=p.stages, map=p.map)
        return dict(stages(self.attn, self.target.name, lines, "triton"))["map_blocks"]

    def start(self) -> Point:
        """What is compiled without tuning."""
        found = dict(stages(self.attn, self.target.name, self.schedule, "triton"))["choose_tiles"]
        shape = shape_of(found, self.attn)
        return Point(shape.q, shape.k, shape.warps, shape.stages, self.schedule.map)

    def race(self, points: Sequence[Point]) -> dict[Point, float]:
        """Predicted seconds of those points that can be lowered."""
        for n, p in enumerate(points):
            self.progress(f"predicting {len(points)} candidates", n, len(points))
            if p not in self.outcomes:
                self.outcomes[p] = self._outcome(p)
        return {p: self.outcomes[p].seconds for p in points if self.outcomes[p].traffic is not None}

    def _outcome(self, p: Point) -> Outcome:
        try:
            program = self.program(p)
        except Faults as wrong:
            return Outcome(p, note="; ".join(f.note or f.message for f in wrong.faults))
        shape = shape_of(program, self.attn)
        if not model.fits(self.attn, self.target, shape):
            return Outcome(p, note="its tiles need more registers or shared memory than a block has")
        by, step = next((n, c) for n, m in self.models if (c := m(self.attn, self.target, shape)) is not None)
        dies = dies_of(self.target)
        assert dies is not None
        ranges = key_ranges(program, self.sizes)
        assert ranges is not None
        found = traffic_of(program, self.attn, self.target, dies, self.sizes, ranges, shape, step, BUDGET)
        return Outcome(p, found.makespan / self.target.sustained_clock, step, by, program.grid.title, found)

    def neighbours(self, p: Point) -> Iterator[Point]:
        """Points that differ in one field, of what the spec's lines leave open."""
        s, attn = self.schedule, self.attn
        pinned, some = dict(s.tile), dict(s.choices)
        rows = (pinned[attn.q],) if attn.q in pinned else some.get(attn.q, ROWS)
        keys = (pinned[attn.k],) if attn.k in pinned else some.get(attn.k, KEYS)
        last = [("xcd", i.name) for i in attn.outer[-1:]]
        values: dict[str, Sequence[Any]] = {
            "q": rows,
            "k": keys,
            "warps": WAVES if s.warps is None else (p.warps,),
            "stages": STAGES if s.stages is None else (s.stages,),
            "map": (None, *((n, None) for n in MAPS), *last) if s.map is None else (s.map,),
        }
        for name, options in values.items():
            yield from (replace(p, **{name: v}) for v in options if v != getattr(p, name))


def predict_kernel(
    spec: Spec,
    attn: Attention,
    target: str,
    shape: Mapping[str, int],
    progress: Progress,
    seconds: float = 240.0,
    models: Sequence[tuple[str, StepModel]] = STEP_MODELS,
) -> Prediction:
    """Searches by the models; no race is begun after `seconds`.  Raises TargetFault E0905 for a symbol without a value and for
    kernels whose tiles depend on tensors, E0914 for a target whose dies are not described and for tiles that do not fit it, and
    Faults for the spec's own schedule."""
    machine = target_of(target)
    if dies_of(machine) is None:
        message = f"there is no model of {target} to search schedules by"
        raise TargetFault("E0914", message, hint="`tilec tune` on the device itself measures")
    missing = [n for n in dict.fromkeys((*unbound_constants(attn), *attn.extents)) if n not in shape]
    if missing:
        hint = f"add {' '.join(f'--shape {n}=…' for n in missing)}"
        raise TargetFault(
            "E0905", f"`{attn.name}` needs values for {', '.join(missing)}", hint=hint, source=spec.source
        )
    bound = bind(attn, {n: shape[n] for n in unbound_constants(attn)}, spec.source)
    sizes = call_sizes(bound, shape)
    ends = time.monotonic() + seconds
    found = Model(spec, bound, machine, sizes, progress, models)
    start = found.start()
    first = found.program(start)
    counts = None if key_ranges(first, sizes) is None else count_tiles(first, distinct_indices(bound), sizes)
    if counts is None:
        message = f"the key tiles that `{attn.name}` visits depend on tensors: there is nothing to predict from"
        raise TargetFault("E0905", message, source=spec.source)
    roof = roofline(bound, machine, sizes, counts.live)
    assert roof is not None
    best = None
    for best in search([start], found.neighbours, found.race, lambda: time.monotonic() > ends, CLOSER):  # noqa: B007
        pass
    if best is None:
        raise TargetFault("E0914", f"no tiles of `{attn.name}` fit {target}", note=found.outcomes[start].note)
    ranked = sorted(found.outcomes.values(), key=lambda o: o.seconds)
    return Prediction(bound, machine, shape, roof, start, best, tuple(ranked))


def table(p: Prediction) -> Any:
    """As a rich table, the fastest first."""
    from rich.table import Table

    at = ", ".join(f"{n}={v}" for n, v in p.extents.items())
    least = f"{p.roof.flops / p.roof.seconds / 1e12:.0f} TFLOP/s by the roofline"
    out = Table(
        title=f"{p.attn.name} ({at}) on {p.target.device}: predicted, not measured; {least}", title_justify="left"
    )
    for head in ("q", "k", "warps", "stages", "map", "order", "step clocks", "L2", "TFLOP/s", ""):
        out.add_column(head, justify="left" if head in ("map", "order", "") else "right")
    for o in p.outcomes:
        marks = [w for w, point in (("best", p.best), ("start", p.start)) if o.point == point]
        x = o.point
        cells = [*(str(n) for n in (x.q, x.k, x.warps, x.stages)), x.map_line, o.order]
        rate = p.tflops(o)
        cells += [f"{o.step:,.0f}", f"{o.traffic.l2:.1%}", f"{rate:.0f}"] if o.traffic and rate else ["", "", ""]
        out.add_row(*cells, ", ".join([*marks, o.note]).strip(", "))
    return out
