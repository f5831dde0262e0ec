"""How long the machine code of kernels of waves takes at points of their schedule space: each is lowered, compiled, held against
the gate of `backends.hip.check`, run by the emulator for a few steps of one block and timed by the model of
`targets.gfx942.cycles`.  All of it is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilec.dsl.faults import Fault, Faults, Source
from tilec.ir.attention import Attention
from tilec.ir.expr import Var
from tilec.jobs import Job, why, workers
from tilec.native import wave_trail
from tilec.targets.gfx942.cycles import Timing
from tilec.tune.cdna import Point
from tilec.tune.hopper import widths_of

if TYPE_CHECKING:
    from tilec.backends.base import Artifact

# Of keys, beside those of a tile's own rows: blocks beside each other take a few to be in their steady state.
STEPS = 10
NO_KEYS = "its first and its last block have no keys"
OTHER = 0.2  # of a step's products: by more, a loop that was timed is another


@dataclass(frozen=True)
class BlockTime:
    """`timing` of a block; `products`: clocks that matrix units need for those of a step."""

    timing: Timing
    products: float

    @property
    def over_keys(self) -> bool:
        """Whether the loop that was timed is that over keys: it has a step's products."""
        t = self.timing
        return abs(t.step * t.matrix / t.resident - self.products) < OTHER * self.products

    @property
    def step(self) -> float:
        """Clocks of a step of a block, of those beside it each has its share.  Where another loop was timed, as that over keys
        takes too few steps, it is as much longer than its products as all that the block does."""
        return self.timing.step / self.timing.resident if self.over_keys else self.products / self.timing.matrix


@dataclass(frozen=True)
class Timed:
    """`block` None: it does not compile as its schedule says, and `reason` says why."""

    point: Point
    block: BlockTime | None = None
    reason: str = ""


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


_known: dict[str, BlockTime | None] = {}  # by the printed source, of this process


def time_point(job: Job, point: Point) -> Timed:
    """Compiles and times, in a call of the job's shape.  Raises TargetFault E0911 for a missing toolchain."""
    from tilec.backends.base import Variant
    from tilec.backends.hip import ALIGNED, BACKEND, compile_program
    from tilec.backends.hip.emit import emit

    BACKEND.toolchain(job.target)
    spec, attn, schedule = job.read()
    try:
        program = wave_trail(attn, job.target, schedule, point)[-1][1]
        text = emit(program).text
        if text not in _known:
            made = compile_program(program, Variant(job.constants, ALIGNED))
            _known[text] = block_time(made, attn, spec.source, dict(job.shape), point.rows, point.keys)
    except (Fault, Faults, ValueError) as wrong:
        if isinstance(wrong, Fault) and wrong.code == "E0911":
            raise
        return Timed(point, reason=why(wrong))
    return Timed(point, _known[text], "" if _known[text] else NO_KEYS)


def block_time(
    made: Artifact, bound: Attention, source: Source, shape: Mapping[str, int], rows: int, keys: int
) -> BlockTime | None:
    """Of compiled machine code with tiles of that size, in a call that is no larger than `shape`; None where NO_KEYS says why.
    Raises the faults of `lacks`."""
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
        found = predict(call.traced(emulated(made, signature), 1 if one else 2))
    if not found.matrix:
        return None
    flops = 2 * rows * keys * sum(widths_of(bound))
    return BlockTime(found, flops / target(made.target).matrix[bound.tensor(bound.value).dtype])


def timer(job: Job, count: int) -> AbstractContextManager[Times]:
    """Times points in so many processes while it is open; with one, in this process and in order."""
    return workers(time_point, job, count)
