"""Derivatives of scalar expressions: one rule per operator, for the backward pass and its oracle.

Where a function has a corner, the derivative there is the one that PyTorch's autograd gives:

    abs(x)          0 at x = 0
    min, max(a, b)  half to each where a = b
    where(c, a, b)  that of the branch taken; the condition is constant

Integers are constants, and so is what depends on the variable only through a comparison.  `//`, `%` and reads at a computed
place have no useful derivative: NoDerivative.  Results are expressions over the same leaves, with zeros and ones folded; equal
parts are one object (`tanh(x)` in `1 - tanh(x) * tanh(x)` is the node of the forward line), so they are computed once.
"""

from __future__ import annotations

import math

from tilec.ir.build import add, call, sub, where
from tilec.ir.build import mul as product
from tilec.ir.expr import COMPARISONS, ONE, ZERO, Expr, Fetch, Float, Int, Op, lift, walk

HALF = Float(0.5)
CONDITIONS = (*COMPARISONS, "and", "or", "not")


class NoDerivative(Exception):
    """`part` of the expression depends on the variable but has no derivative by it."""

    def __init__(self, part: Expr, wrt: Expr) -> None:
        super().__init__(f"{part} has no derivative by {wrt}")
        self.part = part
        self.wrt = wrt


def derivative(e: Expr, wrt: Expr) -> Expr:
    """d e / d wrt, where `wrt` is a variable (the score `s`) or a read (`slope[h]`), found in `e` by identity.

    Raises NoDerivative if `wrt` occurs in `e` where no rule applies.
    """
    done: dict[Expr, Expr] = {}
    inside = {x: wrt in walk(x) for x in walk(e)}

    def go(x: Expr) -> Expr:
        if x is wrt:
            return ONE
        if not inside[x]:
            return ZERO
        if x not in done:
            if not isinstance(x, Op):
                raise NoDerivative(x, wrt)
            done[x] = _rule(x, [go(a) for a in _differentiated(x)], wrt)
        return done[x]

    return go(e)


def _differentiated(x: Op) -> tuple[Expr, ...]:
    """The operands whose derivatives a rule needs: conditions are constant."""
    if x.name in CONDITIONS:
        return ()
    return x.args[1:] if x.name == "where" else x.args


def _rule(x: Op, d: list[Expr], wrt: Expr) -> Expr:
    """The derivative of one operator; `d` are those of its differentiated operands."""
    if x.name in CONDITIONS:
        return ZERO
    match x.name, x.args:
        case "+", _:
            return plus(d[0], d[1])
        case "-", _:
            return minus(d[0], d[1])
        case "neg", _:
            return negative(d[0])
        case "*", (a, b):
            return plus(times(d[0], b), times(a, d[1]))
        case "/", (a, b):
            return over(minus(d[0], times(x, d[1])), b)
        case "**", (a, b):
            return plus(times(d[0], _power_slope(a, b)), times(times(d[1], x), call("log", a)))
        case "tanh", _:
            return times(d[0], minus(ONE, times(x, x)))
        case "exp", _:
            return times(d[0], x)
        case "exp2", _:
            return times(d[0], times(x, Float(math.log(2.0))))
        case "log", (a,):
            return over(d[0], a)
        case "log2", (a,):
            return over(d[0], times(a, Float(math.log(2.0))))
        case "sqrt", _:
            return over(times(HALF, d[0]), x)
        case "abs", (a,):
            return _choose(a, ZERO, negative(d[0]), ZERO, d[0])
        case "min", (a, b):
            return _choose(a, b, d[0], times(HALF, plus(d[0], d[1])), d[1])
        case "max", (a, b):
            return _choose(a, b, d[1], times(HALF, plus(d[0], d[1])), d[0])
        case "where", (c, _, _):
            return where(c, d[0], d[1])
        case "float", _:
            return d[0]
    raise NoDerivative(x, wrt)


def _choose(a: Expr, b: Expr, less: Expr, equal: Expr, greater: Expr) -> Expr:
    """A value by how a compares with b."""
    return where(Op("<", (a, b)), less, where(Op(">", (a, b)), greater, equal))


def _power_slope(a: Expr, b: Expr) -> Expr:
    """The derivative of a ** b by a."""
    if isinstance(b, Int):
        return times(b, power(a, Int(b.value - 1)))
    if isinstance(b, Float):
        return times(b, power(a, Float(b.value - 1.0)))
    return times(b, Op("**", (a, minus(b, ONE))))


def power(a: Expr, b: Expr) -> Expr:
    """a ** b for a constant b."""
    if isinstance(b, Int | Float) and b.value in (0, 1):
        return a if b.value == 1 else ONE
    return Op("**", (a, b))


def plus(a: Expr, b: Expr) -> Expr:
    """a + b."""
    if isinstance(a, Float) and isinstance(b, Float):
        return Float(a.value + b.value)
    return add(a, b)


def minus(a: Expr, b: Expr) -> Expr:
    """a - b."""
    if isinstance(a, Float) and isinstance(b, Float):
        return Float(a.value - b.value)
    return negative(b) if a is ZERO else sub(a, b)


def negative(a: Expr) -> Expr:
    """-a."""
    match a:
        case Int(v):
            return Int(-v)
        case Float(v):
            return Float(-v)
        case Op("neg", (inner,)):
            return inner
        case Op("-", (x, y)):
            return sub(y, x)
    return call("neg", a)


def times(a: Expr, b: Expr) -> Expr:
    """a * b, constants first; (1 / c) * y is y / c, and c * (y / c) is y."""
    if isinstance(b, Int | Float) and not isinstance(a, Int | Float):
        a, b = b, a
    match a, b:
        case (Int(0), _) | (_, Int(0)):
            return ZERO
        case (Int(1), x) | (x, Int(1)) | (Float(1.0), x):
            return x
        case (Int(v) | Float(v), Int(w) | Float(w)):
            return lift(v * w)
        case (Op("/", (Int(1), c)), y) | (y, Op("/", (Int(1), c))):
            return over(y, c)
        case (Int() | Float(), Op("/", (y, c))) if a is c:
            return y
    return product(a, b)


def over(a: Expr, b: Expr) -> Expr:
    """a / b; a constant in both a product and its divisor cancels."""
    match a, b:
        case Int(0), _:
            return ZERO
        case _, Int(1):
            return a
        case Op("*", (Int(v) | Float(v) as c, x)), _ if c is b and v:
            return x
    return call("/", a, b)


def reads(e: Expr) -> tuple[Fetch, ...]:
    """The different reads in an expression, in order of first mention: what a gradient may be asked for."""
    return tuple(dict.fromkeys(x for x in walk(e) if isinstance(x, Fetch)))
