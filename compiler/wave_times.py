"""How long the machine code of kernels of waves takes at points of their schedule space: each is lowered, compiled, held against
the gate of `backends.hip.check`, run by the emulator for a few steps of one block and timed by the model of
`targets.gfx942.cycles`.  All of it is predicted.

That is a pure function of the spec's text and the point, so it runs in processes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

from tilec.dsl.faults import Fault, Faults, Source
from tilec.frontend import Spec, bind, read_text
from tilec.ir.attention import Attention
from tilec.ir.expr import Var
from tilec.native import Trail, wave_trail
from tilec.targets.gfx942.cycles import Timing
from tilec.tune.cdna import Point
from tilec.tune.hopper import widths_of

if TYPE_CHECKING:
    from tilec.backends.base import Artifact

# Of keys, beside those of a tile's own rows: blocks beside each other take a few to be in their steady state.
STEPS = 10
OTHER = 0.2  # of a step's products: by more, a loop that was timed is another


@dataclass(frozen=True)
class Job:
    """What a worker needs.  `text` of the spec, which it reads itself; `shape`: every symbol of the call that is tuned for."""

    text: str
    kernel: str
    target: str
    constants: tuple[tuple[str, int], ...]
    shape: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Timed:
    """`timing` None: it does not compile as its schedule says, and `reason` says why.  `products`: clocks that
    matrix units need for those of a step."""

    point: Point
    timing: Timing | None = None
    products: float = 0.0
    reason: str = ""

    @property
    def step(self) -> float:
        """Clocks of a step of a block, of those beside it each has its share.  Where the loop that was timed has not a step's
        products, as that over keys takes too few steps, it is as much longer than they are as all that the block does."""
        assert self.timing is not None
        t = self.timing
        same = abs(t.step * t.matrix / t.resident - self.products) < OTHER * self.products
        return t.step / t.resident if same else self.products / t.matrix


Times = Callable[[Sequence[Point]], Iterator[Timed]]
"""Points as they are timed, in any order."""


def call_of(attn: Attention, shape: Mapping[str, int], rows: int, keys: int) -> dict[str, int]:
    """Extents of the call that is run, in tiles of that size: as many rows as a tile, keys for STEPS beside them, one of
    everything else that is outside a tile; no more than `shape`."""
    sizes = dict(shape)
    for i in attn.outer:
        if isinstance(i.extent, Var) and i.extent.name in sizes:
            sizes[i.extent.name] = min(1, shape[i.extent.name])
    for name, most in ((attn.q, rows), (attn.k, rows + STEPS * keys)):
        extent = attn.index(name).extent
        if isinstance(extent, Var):
            sizes[extent.name] = min(shape[extent.name], most)
    return sizes


_known: dict[str, tuple[Timing, float]] = {}  # by the printed source, of this process


def time_point(job: Job, point: Point) -> Timed:
    """Compiles and times.  Raises TargetFault E0911 for a missing toolchain."""
    from tilec.backends.hip import BACKEND
    from tilec.backends.hip.emit import emit

    BACKEND.toolchain(job.target)
    spec = read_text(job.text)
    schedule = spec.schedule(job.kernel, job.target)
    bound = bind(spec.kernel(job.kernel), dict(job.constants))
    try:
        trail = wave_trail(bound, job.target, schedule, point)
        text = emit(trail[-1][1]).text
        if text not in _known:
            _known[text] = _run(job, spec, trail, point)
        timing, products = _known[text]
        if not timing.matrix:
            return Timed(point, reason="its first and its last block have no keys")
        return Timed(point, timing, products)
    except (Fault, ValueError) as wrong:
        if isinstance(wrong, Fault) and wrong.code == "E0911":
            raise
        return Timed(point, reason=_reason(wrong))
    except Faults as wrong:
        return Timed(point, reason="; ".join(map(_reason, wrong.faults)))


def _run(job: Job, spec: Spec, trail: Trail, point: Point) -> tuple[Timing, float]:
    """(timing, clocks of the products of a step) of one block."""
    from tilec.backends.base import Variant
    from tilec.backends.hip import ALIGNED, compile_program
    from tilec.targets import target

    bound, machine = bind(spec.kernel(job.kernel), dict(job.constants)), target(job.target)
    made = compile_program(trail[-1][1], Variant(job.constants, ALIGNED))
    flops = 2 * point.rows * point.keys * sum(widths_of(bound))
    found = timing_of(made, bound, spec.source, dict(job.shape), point.rows, point.keys)
    return found, flops / machine.matrix[bound.tensor(bound.value).dtype]


def timing_of(
    made: Artifact, bound: Attention, source: Source, shape: Mapping[str, int], rows: int, keys: int
) -> Timing:
    """Of a block of compiled machine code, in a call that is no larger than `shape`.  Raises the faults of `lacks`."""
    from tilec.backends.base import emulated
    from tilec.oracle.units import units_of
    from tilec.signature_of import signature_of
    from tilec.targets import target
    from tilec.targets.gfx942.cycles import predict
    from tilec.verify_emulated import EmulatedCall, lacks
    from tilec.verify_spec import Case

    sizes, signature = call_of(bound, shape, rows, keys), signature_of(bound, source)
    extent = bound.index(bound.q).extent
    one = isinstance(extent, Var) and sizes[extent.name] <= rows
    call = EmulatedCall(Case(bound, sizes, "normal", 0, units_of(target(made.target))), signature, made.target)
    with lacks(made.target):
        return predict(call.traced(emulated(made, signature), 1 if one else 2))


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, Fault):
        return f"{wrong.code}: {wrong.note or wrong.message}"
    return str(wrong)


@contextmanager
def timer(job: Job, workers: int) -> Iterator[Times]:
    """Times points in so many processes while it is open; with one worker, in this process and in order."""
    if workers <= 1:
        yield lambda points: (time_point(job, p) for p in points)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))

    def times(points: Sequence[Point]) -> Iterator[Timed]:
        futures: list[Future[Timed]] = [pool.submit(time_point, job, p) for p in points]
        try:
            for done in as_completed(futures):
                yield done.result()
        finally:
            for f in futures:
                f.cancel()

    try:
        yield times
    finally:
        pool.shutdown(cancel_futures=True)
