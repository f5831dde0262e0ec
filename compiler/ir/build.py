"""Constructors for expressions that fold constants and the identities that keep printed programs short.

Only identities that hold for every integer (and, where floats are meant, for every float including NaN) are used:
`x + 0`, `x * 1`, `0 * n` for integers, and folding of constant operands.
"""

from __future__ import annotations

from functools import reduce as _fold

from tilec.ir.expr import FALSE, ONE, TRUE, ZERO, Bool, Expr, Float, Int, Op, lift

Operand = Expr | int | float | bool


def _ints(a: Expr, b: Expr) -> tuple[int, int] | None:
    return (a.value, b.value) if isinstance(a, Int) and isinstance(b, Int) else None


def add(a: Operand, b: Operand) -> Expr:
    """a + b.  Constants collect on the right: (x + 3) + 4 is x + 7."""
    x, y = lift(a), lift(b)
    if n := _ints(x, y):
        return Int(n[0] + n[1])
    if x is ZERO:
        return y
    if y is ZERO:
        return x
    if isinstance(x, Int):
        x, y = y, x
    if isinstance(y, Int):
        if y.value < 0:
            return sub(x, -y.value)
        match x:
            case Op("+", (inner, Int(c))):
                return add(inner, c + y.value)
            case Op("-", (inner, Int(c))):
                return add(inner, y.value - c)
    return Op("+", (x, y))


def sub(a: Operand, b: Operand) -> Expr:
    """a - b."""
    x, y = lift(a), lift(b)
    if n := _ints(x, y):
        return Int(n[0] - n[1])
    if y is ZERO:
        return x
    if x is y and not isinstance(x, Float):
        return ZERO
    if isinstance(y, Int):
        if y.value < 0:
            return add(x, -y.value)
        match x:
            case Op("-", (inner, Int(c))):
                return sub(inner, c + y.value)
            case Op("+", (inner, Int(c))):
                return add(inner, c - y.value)
    return Op("-", (x, y))


def mul(a: Operand, b: Operand) -> Expr:
    """a * b."""
    x, y = lift(a), lift(b)
    if n := _ints(x, y):
        return Int(n[0] * n[1])
    if isinstance(x, Float) and isinstance(y, Float):
        return Float(x.value * y.value)
    if x is ONE:
        return y
    if y is ONE:
        return x
    if x is ZERO or y is ZERO:
        return ZERO
    return Op("*", (x, y))


def floordiv(a: Operand, b: Operand) -> Expr:
    """a // b, floored, for integers."""
    x, y = lift(a), lift(b)
    if (n := _ints(x, y)) and n[1]:
        return Int(n[0] // n[1])
    return x if y is ONE else ZERO if x is ZERO else Op("//", (x, y))


def mod(a: Operand, b: Operand) -> Expr:
    """a % b, floored, for integers."""
    x, y = lift(a), lift(b)
    if (n := _ints(x, y)) and n[1]:
        return Int(n[0] % n[1])
    return ZERO if y is ONE or x is ZERO else Op("%", (x, y))


def cdiv(a: Operand, b: Operand) -> Expr:
    """Ceiling division of integers, as (a + b - 1) // b."""
    return floordiv(add(a, sub(b, 1)), b)


def minimum(*xs: Operand) -> Expr:
    """Least of integers."""
    return _fold(_min2, (lift(x) for x in xs))


def _min2(x: Expr, y: Expr) -> Expr:
    if n := _ints(x, y):
        return Int(min(n))
    return x if x is y else Op("min", (x, y))


def maximum(*xs: Operand) -> Expr:
    """Greatest of integers."""
    return _fold(_max2, (lift(x) for x in xs))


def _max2(x: Expr, y: Expr) -> Expr:
    if n := _ints(x, y):
        return Int(max(n))
    return x if x is y else Op("max", (x, y))


def clamp(x: Operand, lo: Operand, hi: Operand) -> Expr:
    """x limited to lo … hi; hi wins if the two cross."""
    return minimum(maximum(x, lo), hi)


def all_of(*xs: Operand) -> Expr:
    """Conjunction; `true` for none."""
    terms: list[Expr] = [TRUE, *map(lift, xs)]
    return _fold(_and2, terms)


def _and2(x: Expr, y: Expr) -> Expr:
    if x is FALSE or y is FALSE:
        return FALSE
    return y if x is TRUE else x if y is TRUE or x is y else Op("and", (x, y))


def conjuncts(e: Expr | None) -> tuple[Expr, ...]:
    """Conditions whose conjunction `e` is; none for None."""
    match e:
        case None | Bool(True):
            return ()
        case Op("and", (a, b)):
            return (*conjuncts(a), *conjuncts(b))
    return (e,)


def any_of(*xs: Operand) -> Expr:
    """Disjunction; `false` for none."""
    terms: list[Expr] = [FALSE, *map(lift, xs)]
    return _fold(_or2, terms)


def _or2(x: Expr, y: Expr) -> Expr:
    if x is TRUE or y is TRUE:
        return TRUE
    return y if x is FALSE else x if y is FALSE or x is y else Op("or", (x, y))


def compare(op: str, a: Operand, b: Operand) -> Expr:
    """A comparison, folded when both sides are integer constants or one object of an integer."""
    x, y = lift(a), lift(b)
    if n := _ints(x, y):
        p, q = n
        return Bool({"==": p == q, "!=": p != q, "<=": p <= q, "<": p < q, ">=": p >= q, ">": p > q}[op])
    return Op(op, (x, y))


def where(c: Operand, a: Operand, b: Operand) -> Expr:
    """c ? a : b."""
    cond, x, y = lift(c), lift(a), lift(b)
    if cond is TRUE or x is y:
        return x
    return y if cond is FALSE else Op("where", (cond, x, y))


def call(name: str, *args: Operand) -> Expr:
    """Any other operator of `OPS`, unfolded."""
    return Op(name, tuple(lift(a) for a in args))
