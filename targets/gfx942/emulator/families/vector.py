"""What the families of vector instructions share: one result from one to three sources, lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilec.targets.gfx942.emulator.families import Builder
from tilec.targets.gfx942.emulator.operands import VCC, VECTORS, Operand, Unsupported
from tilec.targets.gfx942.emulator.sources import destination, permutation, source
from tilec.targets.gfx942.emulator.step import Flow, Run, Step, Unit, operands_of, union
from tilec.targets.gfx942.emulator.wave import Wave
from tilec.targets.gfx942.listing import Instruction

VCC_BITS = 3 << (VECTORS + VCC)


def lanewise(
    f: Callable[..., Any], kinds: str, result: str, *, unit: Unit = "valu", accumulates: bool = False
) -> Builder:
    """Builds `dst = f(sources)` with sources of `kinds`, one letter each.  `accumulates`: the old dst is the last source."""

    def build(x: Instruction) -> Step:
        dst, *srcs = operands_of(x)
        if accumulates:
            srcs.append(Operand("v", dst.first, dst.count))
        if len(srcs) != len(kinds):
            raise Unsupported(f"{len(srcs)} sources: `{x.text}`")
        gets = [source(x, n, s, k) for n, (s, k) in enumerate(zip(srcs, kinds, strict=True))]
        put = destination(x, dst, result)
        return vector_step(x, _applied(f, gets, put), dst, srcs, unit=unit)

    return build


def _applied(f: Callable[..., Any], gets: Sequence[Callable[[Wave], Any]], put: Callable[[Wave, Any], None]) -> Run:
    if len(gets) == 1:
        (one,) = gets
        return lambda w: put(w, f(one(w)))
    if len(gets) == 2:
        a, b = gets
        return lambda w: put(w, f(a(w), b(w)))
    a, b, c = gets
    return lambda w: put(w, f(a(w), b(w), c(w)))


def vector_step(
    x: Instruction, run: Run, dst: Operand, srcs: Sequence[Operand], *, unit: Unit = "valu", flow: Flow = "vector"
) -> Step:
    """A step whose result keeps its old value where lanes are inactive, or where the form of the instruction says so."""
    reads = union(*srcs)
    keeps = x.modifiers.get("dst_unused") == "UNUSED_PRESERVE" or (x.form == "dpp" and "bound_ctrl" not in x.modifiers)
    if keeps:
        reads |= dst.mask
    step = Step(x, unit, run, reads, dst.mask, flow="lanes" if x.form == "dpp" else flow, dst=dst)
    if x.form == "dpp":
        take, _, _ = permutation(x)
        step.takes = lambda w: take
    return step
