"""The space of gfx942's native kernels, for `predict`: a shape's machine code is timed once, and each map of its blocks simulated
with that."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilec.dsl.faults import Fault, Faults, TargetFault
from tilec.frontend import Spec
from tilec.ir.attention import Attention
from tilec.ir.nodes import Program
from tilec.jobs import job, why
from tilec.native import wave_trail
from tilec.predict import Outcome, on_dies
from tilec.predict.times import Timed, Times, timer
from tilec.schedule import Schedule
from tilec.targets import Target
from tilec.tune import cdna
from tilec.tune import wave_space as space
from tilec.tune.hopper import widths_of
from tilec.tune.wave_space import BY, WavePoint
from tilec.tuner import Progress
from tilec.user_record import user_wave_rows

TRIES = 8  # shapes that are compiled for one to start from, as the backend does
MODEL = "cycle model"


@dataclass
class WaveSpace:
    """Points of one call.  `sizes`: every symbol of it; `over`: whether there is no time left."""

    spec: Spec
    attn: Attention
    target: Target
    sizes: Mapping[str, int]
    progress: Progress
    over: Callable[[], bool]
    times: Times
    outcomes: dict[WavePoint, Outcome] = field(default_factory=dict)
    timed: dict[cdna.Point, Timed] = field(default_factory=dict)

    @cached_property
    def schedule(self) -> Schedule:
        """The spec's own lines."""
        return self.spec.schedule(self.attn.name, self.target.name)

    def program(self, p: WavePoint) -> Program:
        """Raises Faults where the point cannot be honoured."""
        lines = replace(self.schedule, map=p.map)
        return dict(wave_trail(self.attn, self.target.name, lines, p.shape))["map_blocks"]

    def start(self) -> WavePoint:
        """The first shape that compiles.  Raises Faults of E0918 with what the first one lacks if none does."""
        why = ""
        for n, shape in enumerate(cdna.points(self.attn, self.schedule, user_wave_rows())):
            if n == TRIES:
                break
            p = WavePoint(replace(shape, by=BY), self.schedule.map)
            self._time([p.shape])
            if self.timed[p.shape].block is not None:
                return p
            why = why or self.timed[p.shape].reason
        message = f"no shape of `{self.attn.name}` compiles as its schedule says"
        raise TargetFault("E0918", message, note=why, hint="the portable backend takes it")

    def neighbours(self, p: WavePoint) -> Iterator[WavePoint]:
        """As `tune.wave_space` has them."""
        return space.neighbours(p, self.attn, self.schedule)

    def race(self, points: Sequence[WavePoint]) -> dict[WavePoint, float]:
        """Those alone that there was time for."""
        self._time([p.shape for p in points])
        known = [p for p in points if p.shape in self.timed]
        for n, p in enumerate(known):
            self.progress(f"predicting {len(known)} candidates", n, len(known))
            if p not in self.outcomes:
                self.outcomes[p] = self._outcome(p)
        return {p: self.outcomes[p].seconds for p in known if self.outcomes[p].traffic is not None}

    def _time(self, shapes: Sequence[cdna.Point]) -> None:
        fresh = [s for s in dict.fromkeys(shapes) if s not in self.timed]
        self.progress(f"compiling and predicting {len(fresh)} shapes", 0, len(fresh))
        for n, found in enumerate(self.times(fresh) if fresh else (), 1):
            self.timed[found.point] = found
            self.progress(f"compiling and predicting {len(fresh)} shapes", n, len(fresh))
            if self.over():
                break

    def _outcome(self, p: WavePoint) -> Outcome:
        block = self.timed[p.shape].block
        if block is None:
            return Outcome(p, note=self.timed[p.shape].reason)
        try:
            program = self.program(p)
        except (Fault, Faults) as wrong:
            return Outcome(p, note=why(wrong))
        return on_dies(p, program, self.attn, self.target, self.sizes, block.step, MODEL, block.timing)

    def row(self, best: Outcome, tflops: float) -> cdna.Row:
        """With its numbers as the source, and that they are predicted."""
        from tilec.bench import commit

        assert isinstance(best.point, WavePoint) and best.timing is not None
        at = ", ".join(f"{n} = {v}" for n, v in self.sizes.items())
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        source = (
            f"predicted by tilec tune, {MODEL}, {date}, {commit()}: {self.attn.name} at {at}: {best.step:,.0f} clocks"
        )
        source += f" a step, matrix units busy {best.timing.matrix:.0%}, {tflops:.0f} TFLOP/s"
        width, value = widths_of(self.attn)
        return cdna.Row(width, replace(best.point.shape, by="record"), source, None if value == width else value)

    def unsaid(self, p: WavePoint) -> tuple[str, ...]:
        """Of the point, without the user's record."""
        return p.unsaid(self.attn, self.schedule)


@contextmanager
def wave_space(
    spec: Spec,
    kernel: str,
    attn: Attention,
    target: Target,
    constants: Mapping[str, int],
    sizes: Mapping[str, int],
    progress: Progress,
    over: Callable[[], bool],
    workers: int,
) -> Iterator[WaveSpace]:
    """While it is open, processes wait for shapes.  Raises what the backend refuses of the kernel."""
    from tilec.backends.hip import BACKEND
    from tilec.legality import check_schedule
    from tilec.targets.gfx942.listing import disassembler

    backend = next(b for b in target.backends if b.name == BACKEND.name)
    schedule = spec.schedule(kernel, target.name)
    check_schedule(attn, schedule, target, backend, spec.source)
    BACKEND.check(attn, target.name, BACKEND.features)
    BACKEND.toolchain(target.name)
    if disassembler() is None:
        message = f"the emulator of {target.name} needs a disassembler, which times kernels"
        raise TargetFault("E0911", message, hint="apt install llvm-19, or ROCm")
    todo = job(spec.source.text, kernel, target.name, constants, sizes)
    with timer(todo, workers) as times:
        yield WaveSpace(spec, attn, target, sizes, progress, over, times)
