"""rescale_seldom: outputs are rescaled only where the running maximum would fall far behind.

Contract.  In: key loops as `overlap` leaves them, whose steps raise a running maximum, compute the factor by which what was
gathered shrinks, exp2 of how far the maximum rose, and multiply the accumulator by it.  Out: in each of these steps

    STAY   a row keeps the maximum in use unless it rises by more than `most` in the units of the exponent.  A row that has seen
           no live key (its maximum is -inf) always moves
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
from tilec.ir.build import compare, where
from tilec.ir.expr import Expr, Float, Op, Read, Reduce, substitute, walk
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
    raised = [(s, before) for s in computes if (before := _raised(s)) is not None]
    if len(raised) != 1:
        raise _unfit("one running maximum")
    ((top, before),) = raised
    rises = [(s, rise) for s in computes if (rise := _exponent(s)) is not None and before in walk(rise)]
    if len(rises) != 1:
        raise _unfit("one factor by which the running maximum shrinks what was gathered")
    ((shrink, rise),) = rises
    factor = Read(shrink.dst.buffer)
    scaled = [s for s in computes if s.value is Op("*", (Read(s.dst.buffer), factor))]
    if not scaled:
        raise _unfit("an accumulator that is multiplied by one factor")
    new = Read(top.dst.buffer)
    base: dict[Expr, Expr] = {x: new for x in walk(rise) if isinstance(x, Read) and x is not before}
    near = compare(">=", substitute(rise, base), Float(-most))
    stay = Compute(Slot(new.buffer), where(near, before, new))
    out: list[Stmt] = []
    for s in body:
        if s in scaled:
            assert isinstance(s, Compute)
            s = replace(s, unless=compare("==", factor, ONE))
        out += (s, stay) if s is top else (s,)
    return tuple(out)


def _raised(s: Compute) -> Read | None:
    """What a running maximum was before this raises it."""
    match s.value:
        case Op("max", (Read(_, None) as before, Reduce("max"))) if s.dst == Slot(s.dst.buffer):
            return before
    return None


def _exponent(s: Compute) -> Expr | None:
    match s.value:
        case Op("exp2", (exponent,)):
            return exponent
    return None


def _unfit(what: str) -> ScheduleFault:
    note = f"the steps of the loop over keys have not {what}"
    return ScheduleFault("E0811", "outputs cannot be rescaled conditionally", note=note, hint="remove the line")
