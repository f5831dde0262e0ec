"""rescale_seldom: outputs are rescaled only where the running maximum would fall far behind.

Contract.  In: key loops as `overlap` leaves them, whose steps raise a running maximum, compute the factor by which what was
gathered shrinks, exp2 of how far the maximum rose, and multiply the accumulator by it.  Out: in each of these steps

    STAY   a row keeps the maximum in use unless it rises by more than `most` in the units of the exponent.  A row that has seen
           no live key (its maximum is -inf) always moves.  The tile's maximum is compared with a limit that is known before
           it, so that what stands between it and the exponentials is a comparison
    SKIP   the accumulator's multiplication has no effect in rows that stayed (`unless` their factor is 1), so a warp in which
           no row moved leaves it out

Sums and outputs are relative to the maximum in use, whichever it is, so results differ by rounding only.  Weights go up to
2 ** `most` instead of 1, and a 16-bit float has the same relative error there.  The first step of a walk that `overlap` peeled
is no loop's and takes its own maximum.

Source: FlashAttention-4's kernels for sm100 (flash_attn/cute), which let maxima rise by 8 with 16-bit operands.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.build import add, compare, where
from tilec.ir.expr import Float, Op, Read, Reduce
from tilec.ir.nodes import Compute, For, Program, Slot, Stmt, rewrite

ONE = Float(1.0)


def rescale_seldom(program: Program, most: float) -> Program:
    """The program with rules STAY and SKIP in every key loop; `most` > 0, in powers of two.  ScheduleFault E0811 for a loop whose
    steps have not that form."""
    if not most > 0:
        raise ValueError(f"maxima may rise by more than nothing, not by {most}")

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        if not isinstance(s, For) or s.proof is None:
            return None
        return (replace(s, body=_step(s.body, most)),)

    return program.with_(roles=tuple(replace(r, body=rewrite(r.body, rule)) for r in program.roles))


def _step(body: tuple[Stmt, ...], most: float) -> tuple[Stmt, ...]:
    """One step, rewritten."""
    computes = [s for s in body if isinstance(s, Compute)]
    raised = [(s, *both) for s in computes if (both := _raised(s)) is not None]
    if len(raised) != 1:
        raise _unfit("one running maximum")
    ((top, before, of_tile),) = raised
    rises = [(s, scale) for s in computes if (scale := _multiple(s, before)) is not None]
    if len(rises) != 1:
        raise _unfit("one factor by which the running maximum shrinks what was gathered")
    ((shrink, scale),) = rises
    factor = Read(shrink.dst.buffer)
    scaled = [s for s in computes if s.value is Op("*", (Read(s.dst.buffer), factor))]
    if not scaled:
        raise _unfit("an accumulator that is multiplied by one factor")
    rise = Float(most) if scale == 1.0 else Op("/", (Float(most), Float(scale)))  # as it is, for readers
    new, limit = Read(top.dst.buffer), add(before, rise)
    stay = Compute(top.dst, where(compare("<=", new, limit), before, new))
    out: list[Stmt] = []
    for s in body:
        if s in scaled:
            assert isinstance(s, Compute)
            s = replace(s, unless=compare("==", factor, ONE))
        out += (replace(top, value=of_tile), stay) if s is top else (s,)
    return tuple(out)


def _raised(s: Compute) -> tuple[Read, Reduce] | None:
    """What a running maximum was before this raises it, and the maximum of the step's tile."""
    match s.value:
        case Op("max", (Read(_, None) as before, Reduce("max") as of_tile)) if s.dst == Slot(s.dst.buffer):
            return before, of_tile
    return None


def _multiple(s: Compute, before: Read) -> float | None:
    """The positive number of times that the rise of the maximum `before` is the exponent of a factor which this computes."""
    match s.value:
        case Op("exp2", (Op("-", (x, Read())),)) if x is before:
            return 1.0
        case Op("exp2", (Op("*", (Op("-", (x, Read())), Float(scale))),)) if x is before and scale > 0:
            return scale
    return None


def _unfit(what: str) -> ScheduleFault:
    note = f"the steps of the loop over keys have not {what}"
    return ScheduleFault("E0811", "outputs cannot be rescaled conditionally", note=note, hint="remove the line")
