"""`tilec tune` for a chip that is not here: schedules searched by what the models predict of them.

Kernels that gfx942's own backend takes are searched over its schedule space, their machine code timed by the cycle model
(`waves`); others over that of Triton's, by the first of the step models that knows a shape (`tiles`).  The
simulator of dies (`tune.caches`) makes of a step the time of the grid under a block map.  The walk is that of measured tuning
(`tune.search`).  Everything it says is predicted, so nothing of it goes into a record of measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tilec.count import count_tiles, key_ranges
from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind, unbound_constants
from tilec.ir.attention import Attention
from tilec.ir.nodes import Program
from tilec.passes.names import distinct_indices
from tilec.roofline import Roofline, roofline
from tilec.route import Refusal, first
from tilec.shapes import call_sizes
from tilec.targets import Backend, Target
from tilec.targets import target as target_of
from tilec.targets.gfx942.cycles import Timing
from tilec.traffic import shape_of, traffic_of
from tilec.tune import cdna
from tilec.tune.caches import Traffic, dies_of
from tilec.tune.search import search
from tilec.tune.wave_space import Map, map_line
from tilec.tuner import Progress

SHOWN = 40  # characters of a reason in a table
BUDGET = 60_000  # accesses of a candidate that are simulated in detail
CLOSER = 1.002  # by how much a neighbour must be faster: samples of the simulator differ by less


class Candidate(Protocol):
    """A point of a schedule space."""

    @property
    def map(self) -> Map:
        """What a `map` line says, None without one."""

    def lines(self, attn: Attention, target: Target) -> str:
        """As a schedule."""

    @property
    def data(self) -> dict[str, Any]:
        """JSON values."""

    @property
    def cells(self) -> dict[str, str]:
        """Of a table, but for the map."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Outcome:
    """`step`: clocks of a key step of a block, by the model `by`; `order`: of the blocks; `timing`: what the cycle model says.
    Without `traffic` the point is no kernel: `note` says why."""

    point: Candidate
    seconds: float = float("inf")
    step: float = 0.0
    by: str = ""
    order: str = ""
    traffic: Traffic | None = None
    timing: Timing | None = None
    note: str = ""


def on_dies(
    point: Candidate,
    program: Program,
    attn: Attention,
    target: Target,
    sizes: Mapping[str, int],
    step: float,
    by: str,
    timing: Timing | None = None,
) -> Outcome:
    """Of a program with tiles and a block map, whose step takes so many clocks by the model `by`: the dies simulated."""
    dies, ranges = dies_of(target), key_ranges(program, sizes)
    assert dies is not None and ranges is not None
    resident = None if timing is None else timing.resident
    found = traffic_of(program, attn, target, dies, sizes, ranges, shape_of(program, attn), step, BUDGET, resident)
    return Outcome(point, found.makespan / target.sustained_clock, step, by, program.grid.title, found, timing)


class Space(Protocol):
    """The points of one call of a kernel, and what is predicted of them."""

    outcomes: dict[Any, Outcome]

    def start(self) -> Any:
        """What is compiled without tuning."""

    def program(self, p: Any) -> Program:
        """With tiles and a block map.  Raises Faults where the point cannot be honoured."""

    def neighbours(self, p: Any) -> Iterator[Any]:
        """Points that differ in one field, of what the spec's lines leave open."""

    def race(self, points: Sequence[Any]) -> dict[Any, float]:
        """Predicted seconds of those points that can be kernels."""

    def row(self, best: Outcome, tflops: float) -> cdna.Row | None:
        """For a record of shapes, where a backend reads one."""

    def unsaid(self, p: Any) -> tuple[str, ...]:
        """What of a point no line says."""


@dataclass
class Prediction:
    """What was searched: `start` is compiled without tuning, at `best` the walk ended; `outcomes`, the fastest first.
    `unsaid`: what of the best no line of a schedule says, and `row` does."""

    attn: Attention
    target: Target
    backend: str
    passed_over: tuple[Refusal, ...]
    extents: Mapping[str, int]
    roof: Roofline
    start: Candidate
    best: Candidate
    outcomes: tuple[Outcome, ...]
    row: cdna.Row | None = None
    unsaid: tuple[str, ...] = ()

    def tflops(self, o: Outcome) -> float | None:
        """Predicted, on live elements; None where the point is no kernel."""
        return None if o.traffic is None else self.roof.flops / o.seconds / 1e12

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "kernel": self.attn.name,
            "target": self.target.name,
            "backend": self.backend,
            "passed_over": [str(r) for r in self.passed_over],
            "predicted": True,
            "extents": dict(self.extents),
            "roofline_tflops": self.roof.flops / self.roof.seconds / 1e12,
            "start": self.start.data,
            "best": self.best.data,
            "schedule": self.best.lines(self.attn, self.target),
            "unsaid": list(self.unsaid),
            "row": None if self.row is None else cdna.write_rows([self.row]),
            "candidates": [
                {
                    "point": o.point.data,
                    "tflops": self.tflops(o),
                    "step_clocks": o.step or None,
                    "step_model": o.by,
                    "cycles": None if o.timing is None else o.timing.to_data(),
                    "order": o.order,
                    "traffic": None if o.traffic is None else asdict(o.traffic),
                    "note": o.note,
                }
                for o in self.outcomes
            ],
        }


def predict_kernel(
    spec: Spec,
    attn: Attention,
    target: str,
    shape: Mapping[str, int],
    progress: Progress,
    seconds: float = 240.0,
    *,
    backend: str | None = None,
    workers: int = 1,
    models: Sequence[Any] | None = None,
) -> Prediction:
    """Searches by the models; no race is begun after `seconds`, and none goes on.  `workers`: processes that compile native
    kernels.  `models`: step models of Triton's tiles.  Raises TargetFault E0905 for a symbol without a value and for kernels
    whose tiles depend on tensors, E0914 for a target whose dies are not described and for tiles that do not fit it, and Faults
    for the spec's own schedule and for what the backend refuses, if one is named."""
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
    fixed = {n: shape[n] for n in unbound_constants(attn)}
    bound = bind(attn, fixed, spec.source)
    sizes = call_sizes(bound, shape)
    ends = time.monotonic() + seconds

    def over() -> bool:
        return time.monotonic() > ends

    def attempt(b: Backend) -> Prediction | None:
        if b.name == "hip":
            from tilec.predict.waves import wave_space

            with wave_space(spec, attn.name, bound, machine, fixed, sizes, progress, over, workers) as space:
                return _searched(bound, machine, shape, sizes, space, over, b.name)
        from tilec.predict.tiles import STEP_MODELS, TileSpace

        tiles = TileSpace(spec, bound, machine, sizes, progress, models or STEP_MODELS)
        return _searched(bound, machine, shape, sizes, tiles, over, b.name)

    found, refused = first(machine, backend, attempt, spec.source)
    if found is None:
        message = f"the key tiles that `{bound.name}` visits depend on tensors: there is nothing to predict from"
        raise TargetFault("E0905", message, source=spec.source)
    found.passed_over = refused
    return found


def _searched(
    bound: Attention,
    machine: Target,
    shape: Mapping[str, int],
    sizes: Mapping[str, int],
    space: Space,
    over: Callable[[], bool],
    backend: str,
) -> Prediction | None:
    """None where what is visited depends on tensors."""
    start = space.start()
    program = space.program(start)
    counts = None if key_ranges(program, sizes) is None else count_tiles(program, distinct_indices(bound), sizes)
    if counts is None:
        return None
    roof = roofline(bound, machine, sizes, counts.live)
    assert roof is not None
    best = None
    for best in search([start], space.neighbours, space.race, over, CLOSER):  # noqa: B007
        pass
    if best is None:
        note = space.outcomes[start].note
        raise TargetFault("E0914", f"no tiles of `{bound.name}` fit {machine.name}", note=note)
    ranked = tuple(sorted(space.outcomes.values(), key=lambda o: o.seconds))
    found = Prediction(bound, machine, backend, (), shape, roof, start, best, ranked, unsaid=space.unsaid(best))
    outcome = space.outcomes[best]
    found.row = space.row(outcome, found.tflops(outcome) or 0.0)
    return found


def table(p: Prediction) -> Any:
    """As a rich table, the fastest first."""
    from rich.table import Table

    at = ", ".join(f"{n}={v}" for n, v in p.extents.items())
    least = f"{p.roof.flops / p.roof.seconds / 1e12:.0f} TFLOP/s by the roofline"
    title = f"{p.attn.name} ({at}) on {p.target.device}, {p.backend}: predicted, not measured; {least}"
    out = Table(title=title, title_justify="left")
    timed = any(o.timing for o in p.outcomes)
    left = ("rescale", "limit", "map", "")
    for head in (*p.best.cells, "step clocks", *(("matrix", "limit") if timed else ()), "L2", "TFLOP/s", "map", ""):
        out.add_column(head, justify="left" if head in left else "right")
    for o in p.outcomes:
        marks = [w for w, point in (("best", p.best), ("start", p.start)) if o.point == point]
        cells = [*o.point.cells.values(), f"{o.step:,.0f}" if o.step else ""]
        if timed:
            cells += [f"{o.timing.matrix:.0%}", o.timing.limit] if o.timing else ["", ""]
        rate = p.tflops(o)
        cells += [f"{o.traffic.l2:.1%}", f"{rate:.0f}"] if o.traffic and rate else ["", ""]
        note = o.note if len(o.note) <= SHOWN else f"{o.note[: SHOWN - 1]}…"
        out.add_row(*cells, map_line(o.point.map) or o.order, ", ".join([*marks, note]).strip(", "))
    return out
