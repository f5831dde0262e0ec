"""The first step of a running reduction: what the buffers start as is folded into it.

With maximum -inf, sum 0 and output 0 before it, `max(m, x)` is x, the shrinking factor exp2(-inf) is 0 and what it multiplies
vanishes.  Factors of a first step are finite (`online_softmax`: GUARD), so 0 * x is 0.
"""

from __future__ import annotations

from tilec.ir.build import add, mul, sub
from tilec.ir.expr import NEG_INFINITY, Expr, Float, Op, Read, substitute, transform
from tilec.ir.nodes import Compute, Slot, Stmt

NOTHING = Float(0.0)


def first_step(body: tuple[Stmt, ...], starts: dict[Expr, Expr]) -> tuple[Stmt, ...]:
    """The statements of a step given what buffers hold before it.

    A buffer that would get a constant is not written where it holds that already, or where every step writes it anew."""
    known = dict(starts)
    out: list[Stmt] = []
    for s in body:
        if not isinstance(s, Compute) or s.dst.windows:
            out.append(s)
            continue
        value = transform(substitute(s.value, known), _fold)
        me = Read(s.dst.buffer)
        if isinstance(value, Float):
            if me in starts and known.get(me) is not value:
                out.append(Compute(Slot(s.dst.buffer), value))
            known[me] = value
        else:
            known.pop(me, None)
            out.append(Compute(s.dst, value))
    return tuple(out)


def _fold(e: Expr) -> Expr | None:
    match e:
        case Op("max", (a, b)) if a is NEG_INFINITY:
            return b
        case Op("-", (a, b)) if a is NEG_INFINITY and not isinstance(b, Float):
            return NEG_INFINITY
        case Op("*", (a, Float(factor))) if a is NEG_INFINITY and factor > 0:
            return NEG_INFINITY
        case Op("exp2", (a,)) if a is NEG_INFINITY:
            return NOTHING
        case Op("*", (a, b)) if a is NOTHING or b is NOTHING:
            return NOTHING
        case Op("+", (a, b)) if a is NOTHING or b is NOTHING:
            return b if a is NOTHING else a
        case Op("+", (a, b)):
            return add(a, b)
        case Op("-", (a, b)):
            return sub(a, b)
        case Op("*", (a, b)):
            return mul(a, b)
    return None
