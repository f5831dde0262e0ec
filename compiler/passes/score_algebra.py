"""Algebra on score expressions: what the softmax lets a compiler move out of the loop.  Used by `online_softmax`.

FOLD     arithmetic of constants is done here, in double precision (Python floats)
FACTOR   e = a * core with a constant: a positive `a` moves into the exponential, where it is free (one fused
         multiply-add); that of tanh's argument joins the product before it
ROW      a term that is constant along a row of the score matrix cancels in the softmax.  It leaves the loop and is added to
         the LSE.  Of `coefficient * (form linear in the row)` the form is taken at the tile's first row instead, so
         that what stays is small where weights are large (ALiBi's `-slope * (q - k)` becomes `-slope * (q_first - k)`)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilec.ir.build import add, call, mul, sub
from tilec.ir.expr import ZERO, Expr, Float, Int, Iota, Op, Read, Var, children, rebuild, substitute, walk

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": lambda x: math.log(x) if x else -math.inf,
    "log2": lambda x: math.log2(x) if x else -math.inf,
    "tanh": math.tanh,
    "abs": abs,
    "neg": lambda x: -x,
    "float": float,
}


def constant(e: Expr) -> float | None:
    """The value of an expression without variables, or None.  Integers stay exact up to 2**53."""
    match e:
        case Int(v):
            return v
        case Float(v):
            return v
        case Op(name, args):
            values = [constant(a) for a in args]
            if any(v is None for v in values):
                return None
            return _apply(name, [v for v in values if v is not None])
    return None


def _apply(name: str, x: list[float]) -> float | None:
    try:
        match name, x:
            case "+", [a, b]:
                return a + b
            case "-", [a, b]:
                return a - b
            case "*", [a, b]:
                return a * b
            case "/", [a, b]:
                return a / b
            case "//", [a, b]:
                return a // b
            case "%", [a, b]:
                return a % b
            case "**", [a, b]:
                power = a**b
                return power if isinstance(power, (int, float)) else None
            case "min", [a, b]:
                return min(a, b)
            case "max", [a, b]:
                return max(a, b)
            case f, [a] if f in FUNCTIONS:
                return FUNCTIONS[f](a)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return None


def factor(e: Expr) -> tuple[float, Expr]:
    """(a, core) with e = a * core; a = 1 if nothing constant factors out."""
    match e:
        case Op("*", (x, y)):
            for c, rest in ((constant(x), y), (constant(y), x)):
                if c is not None:
                    a, core = factor(rest)
                    return float(c) * a, core
            (a, p), (b, r) = factor(x), factor(y)
            return a * b, mul(p, r)
        case Op("/", (x, y)):
            c = constant(y)
            if c:
                a, core = factor(x)
                return a / c, core
            a, core = factor(x)
            return a, call("/", core, folded(y))
        case Op("neg", (x,)):
            a, core = factor(x)
            return -a, core
    return 1.0, folded(e)


def scaled(a: float, core: Expr) -> Expr:
    """a * core, shortest form."""
    return core if a == 1.0 else mul(core, Float(a))


def folded(e: Expr) -> Expr:
    """`e` with constants computed and products of constants collected."""
    c = constant(e)
    if c is not None:
        return e if isinstance(e, Int | Float) else Float(float(c)) if isinstance(c, float) else Int(c)
    if isinstance(e, Op) and e.name in ("*", "/", "neg"):
        a, core = factor(e)
        if a != 1.0:
            return scaled(a, core)
        if isinstance(e, Op) and e.name == "*":
            return mul(*(folded(x) for x in e.args))
    parts = children(e)
    return rebuild(e, tuple(folded(p) for p in parts)) if parts else e


@dataclass(frozen=True)
class Split:
    """A score in the base-2 domain: `inside * factor` stays in the loop, `row` (constant along a row) goes to the LSE."""

    inside: Expr
    factor: float
    row: Expr


def split_rows(score: Expr, q: str, k: str, first: Expr, axes_of: Callable[[Expr], frozenset[str]]) -> Split:
    """Splits `score` (base-2 domain, over tiles) by rule ROW, then takes out a positive factor by rule FACTOR.

    `axes_of` gives the tile axes an expression varies along; `first` is the first row of the tile."""
    inside: Expr = ZERO
    row: Expr = ZERO
    for sign, term in _terms(score):
        kept, moved = _split_term(term, q, k, first, axes_of)
        inside = _signed(inside, sign, kept)
        row = _signed(row, sign, moved)
    a, core = factor(folded(inside))
    if a > 0 and math.isfinite(a):
        return Split(core, a, folded(row))
    return Split(folded(inside), 1.0, folded(row))


def _signed(total: Expr, sign: int, term: Expr) -> Expr:
    if term is ZERO:
        return total
    if total is ZERO:
        return term if sign > 0 else call("neg", term)
    return add(total, term) if sign > 0 else sub(total, term)


def _terms(e: Expr, sign: int = 1) -> list[tuple[int, Expr]]:
    """Additive terms; a constant factor is distributed over the sum it multiplies."""
    match e:
        case Op("+", (x, y)):
            return _terms(x, sign) + _terms(y, sign)
        case Op("-", (x, y)):
            return _terms(x, sign) + _terms(y, -sign)
        case Op("neg", (x,)):
            return _terms(x, -sign)
        case Op("*", (x, y)):
            for c, rest in ((constant(x), y), (constant(y), x)):
                if c is not None and isinstance(rest, Op) and rest.name in ("+", "-", "neg"):
                    return [(s, scaled(float(c), t)) for s, t in _terms(rest, sign)]
        case Op("/", (x, y)):
            c = constant(y)
            if c and isinstance(x, Op) and x.name in ("+", "-", "neg"):
                return [(s, scaled(1.0 / c, t)) for s, t in _terms(x, sign)]
    return [(sign, e)]


def _split_term(
    term: Expr, q: str, k: str, first: Expr, axes_of: Callable[[Expr], frozenset[str]]
) -> tuple[Expr, Expr]:
    """(what stays in the loop, what is constant along a row)."""
    axes = axes_of(term)
    if axes <= {q}:
        return ZERO, term
    factors = _factors(term)
    varying = [f for f in factors if axes_of(f)]
    if len(varying) == 1 and axes_of(varying[0]) == {q, k}:
        (form,) = varying
        slope = _slope(form, Read(q))
        if slope is not None:
            others = [f for f in factors if f is not form]
            coefficient = _product(
                [*(f for f in others if constant(f) is None), *(f for f in others if constant(f) is not None)]
            )
            return mul(coefficient, substitute(form, {Read(q): first})), mul(
                coefficient, mul(slope, sub(Read(q), first))
            )
    return term, ZERO


def _factors(e: Expr) -> list[Expr]:
    """Factors of a product; those of a quotient end with the reciprocal."""
    match e:
        case Op("*", (x, y)):
            return _factors(x) + _factors(y)
        case Op("/", (x, y)) if not isinstance(x, Int | Float):
            return [*_factors(x), call("/", Float(1.0), y)]
        case Op("neg", (x,)):
            return [*_factors(x), Float(-1.0)]
    return [e]


def _product(factors: list[Expr]) -> Expr:
    total: Expr = Int(1)
    for f in factors:
        total = mul(total, f)
    return folded(total)


def _slope(form: Expr, row: Expr) -> Int | None:
    """n if `form` is n * row + (something free of row), by syntax."""
    match form:
        case x if x is row:
            return Int(1)
        case Op("+" | "-" as op, (x, y)):
            a, b = _slope(x, row), _slope(y, row)
            if a is None or b is None:
                return None
            return Int(a.value + b.value if op == "+" else a.value - b.value)
        case Op("neg", (x,)):
            a = _slope(x, row)
            return None if a is None else Int(-a.value)
        case Op("*", (Int(c), x)) | Op("*", (x, Int(c))):
            a = _slope(x, row)
            return None if a is None else Int(a.value * c)
        case Int() | Var() | Read() | Iota():
            return Int(0)
    return None if row in walk(form) else Int(0)
