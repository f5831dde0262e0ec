"""What `explain` says of one key step on a compute unit: what `tune.bound` expects, part by part.  Predicted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tilec.ir.attention import Attention
from tilec.ir.nodes import Program
from tilec.targets import Target
from tilec.traffic import rescales_seldom, shape_of
from tilec.tune.bound import Bound, bound
from tilec.tune.model import Shape, resident


@dataclass(frozen=True)
class StepFacts:
    """`rate`: FLOP/s of the whole chip at the bound, at its sustained clock."""

    shape: Shape
    resident: int
    bound: Bound
    rate: float


def step_facts(program: Program, lowered: Program, attn: Attention, target: Target) -> StepFacts | None:
    """Of a program with tiles, and of the one with its roles.  None where `bound` has none."""
    shape = shape_of(program, attn, lowered)
    blocks = resident(attn, target, shape)
    found = bound(attn, target, shape.q, shape.k, shape.warps, blocks, seldom=rescales_seldom(lowered))
    if found is None:
        return None
    return StepFacts(shape, blocks, found, target.peak(attn.tensor(attn.value).dtype) * found.matrix / found.clocks)


def to_data(f: StepFacts) -> dict[str, Any]:
    """JSON values."""
    b = f.bound
    instructions = {"products": b.products, "vector": b.vector, "special": b.special}
    figures = {"clocks": b.clocks, "by": b.by, "waves": b.waves, "parts": b.parts, "instructions": instructions}
    return {"shape": asdict(f.shape), "resident": f.resident, "flops_per_second": f.rate, **figures}


def lines(f: StepFacts) -> list[str]:
    """For a person."""
    b, s = f.bound, f.shape
    out = [
        "",
        f"a step of {s.q} rows and {s.k} keys on a unit, {b.waves} waves to a SIMD: {b.clocks:,.0f} clocks, by {b.by}",
        "  if it has as many instructions as AITER's kernels",
    ]
    slots = f"{b.products:.0f} matrix, {b.vector:.0f} vector, {b.special:.0f} transcendental instructions of a SIMD"
    notes = {
        "issue": slots,
        "lds": "tiles written once, read by every wave",
        "memory": "keys and values through the vector cache",
    }
    out += [f"  {n:8} {c:8,.0f}  {notes.get(n, '')}".rstrip() for n, c in b.parts.items()]
    return [*out, f"  {f.rate / 1e12:.0f} TFLOP/s of such ones at the sustained clock; predicted, not measured"]
