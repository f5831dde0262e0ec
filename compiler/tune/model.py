"""A cost model of one key step of one block, to rank tile shapes where nothing was measured.

Clocks per (q, k) element of a step, on one unit of the target:

    matrix   2 (sum of d + e) FLOP at the target's rate for the operand dtype
    special  one exp2
    vector   about 5 lane operations (maximum, multiply-add, sum, convert, a share of rescaling) at 128 lanes a clock
    step     a latency of LATENCY clocks per step (barriers, reductions over rows), hidden by other warps of the unit

Matrix work hides behind vector work only across groups of warps.  With one group on the unit the two add; with g
groups, the shorter is hidden to (g - 1) / g.  What must fit: shared memory of the block (`budget`), accumulators and scores in
registers.  The constants are fitted to a sweep of tile shapes on an H200 at head dims 64 and 128 (see `record`): they rank those
shapes as measured, within 10 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilec.budget import shared_memory, width
from tilec.ir.attention import BYTES, Attention, least_depth
from tilec.targets import Target

LANES = 128  # f32 operations per clock and unit on every GPU target here
VECTOR_OPS = 5
LATENCY = 500  # clocks of a step that only other groups hide; fitted
ACCUMULATORS = 0.85  # part of a thread's registers that tiles may take; the rest is addresses and row state
GROUP = 4  # warps of one matrix instruction group


@dataclass(frozen=True)
class Shape:
    """A candidate: tile of q rows and k keys, warps of the block, stages of the key pipeline."""

    q: int
    k: int
    warps: int
    stages: int


SIZES = (16, 32, 64, 128)


def candidates(
    attn: Attention, target: Target, pinned: Mapping[str, tuple[int, ...]], *, warps: int | None, stages: int | None
) -> Iterator[Shape]:
    """Shapes that fit the target, of the sizes that `pinned` allows per index; a fixed order, largest tiles first."""
    for q in sorted(pinned.get(attn.q, SIZES), reverse=True):
        for k in sorted(pinned.get(attn.k, SIZES), reverse=True):
            for w in (warps,) if warps else (8, 4):
                for s in (stages,) if stages else (3, 2, 1):
                    shape = Shape(q, k, w, s)
                    if fits(attn, target, shape):
                        yield shape


def fits(attn: Attention, target: Target, shape: Shape) -> bool:
    """Whether shared memory and registers hold the tiles, and matrix instructions take them."""
    if shape.k < least_depth(attn.tensor(attn.value).dtype):
        return False
    budget = shared_memory(attn, target, shape.q, shape.k, shape.stages, shape.warps)
    return budget is not None and budget.fits and registers(attn, target, shape) <= target.registers_per_thread


def registers(attn: Attention, target: Target, shape: Shape) -> int:
    """Registers per thread that tiles need: accumulator, scores and their rounded copy."""
    features = width(attn, attn.feature) or 0
    rounded = BYTES[attn.tensor(attn.value).dtype] / 4
    words = shape.q * features + shape.q * shape.k * (1 + rounded)
    return int(words / (shape.warps * target.warp) / ACCUMULATORS)


def cost(attn: Attention, target: Target, shape: Shape) -> float:
    """Clocks per (q, k) element.  Needs a modelled target and constant head dims."""
    dims = sum(width(attn, d) or 0 for d in attn.contracted) + (width(attn, attn.feature) or 0)
    dtype = attn.tensor(attn.pairs[0][1]).dtype
    matrix = 2 * dims / target.matrix.get(dtype, target.matrix["bf16"])
    vector = max(1 / target.special, VECTOR_OPS / LANES)
    groups = shape.warps / GROUP * resident(attn, target, shape)
    hidden = (groups - 1) / groups if groups > 1 else 0.0
    step = LATENCY / (shape.q * shape.k) / max(1.0, groups)
    loads = 1 + 8 / shape.q  # keys and values are read once per row tile: short row tiles wait for the L2
    return (max(matrix, vector) + (1 - hidden) * min(matrix, vector) + step) * loads


def resident(attn: Attention, target: Target, shape: Shape) -> int:
    """Blocks of this shape that one unit holds at a time."""
    budget = shared_memory(attn, target, shape.q, shape.k, shape.stages, shape.warps)
    by_memory = target.shared_memory_per_unit // max(1, budget.total if budget else 1)
    used = max(32, registers(attn, target, shape)) * shape.warps * target.warp
    return max(1, min(by_memory, target.registers // used, 16 // shape.warps))


def best(shapes: Iterator[Shape], attn: Attention, target: Target) -> Shape | None:
    """The cheapest shape, the first of equals; None if there is none.

    One stage leaves the latency of every load exposed, which `cost` does not see: it is taken where no two stages fit."""
    return min(shapes, key=lambda s: (s.stages == 1, cost(attn, target, s)), default=None)
