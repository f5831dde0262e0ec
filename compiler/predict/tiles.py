"""The space of Triton's tiles, for `predict`: shapes whose key step takes the clocks that the first of the step models says
which knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from tilec.dsl.faults import Faults
from tilec.frontend import Spec
from tilec.ir.attention import Attention
from tilec.ir.nodes import Program
from tilec.jobs import why
from tilec.pipeline import stages
from tilec.predict import Outcome, on_dies
from tilec.schedule import Schedule, Strategy
from tilec.targets import Target
from tilec.traffic import shape_of, step_clocks
from tilec.tune import model
from tilec.tune.wave_space import Map, map_line
from tilec.tuner import Progress

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
    map: Map = None

    def lines(self, attn: Attention, target: Target) -> str:
        """As a schedule."""
        tile = f"tile {attn.q} = {self.q}, {attn.k} = {self.k}"
        parts = [tile, f"warps split_q({self.warps})", f"stages {self.stages}", map_line(self.map)]
        return f"schedule {attn.name} on {target.name} {{ {'  '.join(p for p in parts if p)} }}"

    @property
    def data(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @property
    def cells(self) -> dict[str, str]:
        """Of a table, but for the map."""
        return {n: str(v) for n, v in asdict(self).items() if n != "map"}


@dataclass
class TileSpace:
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
            return Outcome(p, note=why(wrong))
        shape = shape_of(program, self.attn)
        if not model.fits(self.attn, self.target, shape):
            return Outcome(p, note="its tiles need more registers or shared memory than a block has")
        by, step = next((n, c) for n, m in self.models if (c := m(self.attn, self.target, shape)) is not None)
        return on_dies(p, program, self.attn, self.target, self.sizes, step, by)

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

    def row(self, best: Outcome, tflops: float) -> None:
        """Lines say it all."""

    def unsaid(self, p: Point) -> tuple[str, ...]:
        """Nothing."""
        return ()
