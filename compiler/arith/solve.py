"""Solving one side of an Order atom for its variable.

Each monotone shape has an inverse over the integers (a Galois connection), C and |a| positive:

    x <= v                x < v + 1                  x >= v                x >= v
    (a*t + f) // C <= v   a*t <= C*v + C - 1 - f     (a*t + f) // C >= v   -a*t <= f - C*v
    a*t <= v              t <= v // a                -a*t <= v             t >= -(v // a)
    doc[x] <= v           x < first p with doc[p] > v
    doc[x] >= v           x >= first p with doc[p] >= v
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tilec.arith.affine import affine, divided, express, minus, plus, times
from tilec.arith.constraints import Side
from tilec.ir.expr import ZERO, Expr, Fetch, Op, Var, free_vars

End = Literal["lo", "hi"]
Seeker = Callable[[Fetch, str, Expr], Expr]  # (read, `>` or `>=`, v): the first position where it holds


def _no_seek(read: Fetch, op: str, v: Expr) -> Expr:
    raise TypeError(f"{read} takes a bisection")


def solve(side: Side, v: Expr, var: str, seek: Seeker = _no_seek) -> tuple[End, Expr]:
    """`side <= v` as ("hi", x): var < x, or ("lo", x): var >= x.  Only a side that `reads` needs `seek`."""
    if side.coef > 0:
        return _below(side.term, divided(v, side.coef), var, seek)
    return _above(side.term, minus(ZERO, divided(v, -side.coef)), var, seek)


def _below(term: Expr, v: Expr, var: str, seek: Seeker) -> tuple[End, Expr]:
    """term <= v."""
    match term:
        case Var():
            return "hi", plus(v, 1)
        case Op("//", (x, c)):
            inner, free = _linear(x, var)
            return solve(inner, minus(plus(times(c, v), c, -1), free), var, seek)
        case Fetch():
            return "hi", seek(term, ">", v)
    raise TypeError(f"not a monotone term: {term}")


def _above(term: Expr, v: Expr, var: str, seek: Seeker) -> tuple[End, Expr]:
    """term >= v."""
    match term:
        case Var():
            return "lo", v
        case Op("//", (x, c)):
            inner, free = _linear(x, var)
            return solve(Side(-inner.coef, inner.term), minus(free, times(c, v)), var, seek)
        case Fetch():
            return "lo", seek(term, ">=", v)
    raise TypeError(f"not a monotone term: {term}")


def _linear(x: Expr, var: str) -> tuple[Side, Expr]:
    """x as coefficient * term + free."""
    form = affine(x)
    (term, coef), *_ = [(t, c) for t, c in form.terms if var in free_vars(t)]
    return Side(coef, term), express(form.without(term))
