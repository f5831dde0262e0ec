"""Affine normal form of integer expressions over arbitrary terms.

A form is `c0 + c1*t1 + c2*t2 + …` with integer coefficients.  A term is any expression that is not itself a sum or a constant
multiple: a variable, `last // 64`, `min(M, 5)`, `doc[b, q]`, `M * G`.  `affine` is exact (it only uses identities of integers,
among them `(c*x + y) // c = x + y // c`), and `express` turns a form back into the short text a reader expects:
row first, then a positive constant, the other terms in the order of their first mention, a negative constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from tilec.ir.build import Operand, add, call, floordiv, mod, mul, sub
from tilec.ir.expr import ONE, Expr, Fetch, Int, Op, lift, rebuild


@dataclass(frozen=True, slots=True)
class Affine:
    """`const` plus the sum of coefficient * term; no coefficient is 0 and no term occurs twice."""

    terms: tuple[tuple[Expr, int], ...] = ()
    const: int = 0

    def __add__(self, other: Affine) -> Affine:
        total = dict(self.terms)
        for t, c in other.terms:
            total[t] = total.get(t, 0) + c
        return Affine(tuple((t, c) for t, c in total.items() if c), self.const + other.const)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def scaled(self, n: int) -> Affine:
        """n times the form."""
        return Affine(tuple((t, c * n) for t, c in self.terms), self.const * n) if n else Affine()

    def shifted(self, n: int) -> Affine:
        """The form plus n."""
        return Affine(self.terms, self.const + n)

    def without(self, term: Expr) -> Affine:
        """The form less that term."""
        return Affine(tuple((t, c) for t, c in self.terms if t is not term), self.const)

    def coefficient(self, term: Expr) -> int:
        """The coefficient of a term, 0 if it is not there."""
        return next((c for t, c in self.terms if t is term), 0)

    @property
    def content(self) -> int:
        """The greatest common divisor of the coefficients (without the constant); 0 for a constant form."""
        return gcd(*(c for _, c in self.terms)) if self.terms else 0


@lru_cache(maxsize=1 << 14)
def affine(e: Expr) -> Affine:
    """The normal form of an integer expression."""
    match e:
        case Int(v):
            return Affine((), v)
        case Op("+", (a, b)):
            return affine(a) + affine(b)
        case Op("-", (a, b)):
            return affine(a) - affine(b)
        case Op("neg", (a,)):
            return affine(a).scaled(-1)
        case Op("*", (a, b)):
            x, y = affine(a), affine(b)
            if not x.terms:
                return y.scaled(x.const)
            if not y.terms:
                return x.scaled(y.const)
            left, right = sorted((express(x), express(y)), key=str)
            return _term(Op("*", (left, right)))
        case Op("//", (a, b)):
            return _divided(affine(a), canonical(b))
        case Op("%", (a, b)):
            return _remainder(affine(a), canonical(b))
        case Op(name, args):
            return _folded(name, tuple(canonical(a) for a in args))
        case Fetch(_, index):
            return _term(rebuild(e, tuple(canonical(i) for i in index)))
        case _:
            return _term(e)


def _term(e: Expr) -> Affine:
    return Affine((), e.value) if isinstance(e, Int) else Affine(((e, 1),))


def _divided(a: Affine, divisor: Expr) -> Affine:
    """a // divisor, with the multiples of a constant divisor taken out."""
    if not isinstance(divisor, Int) or divisor.value <= 0:
        return _term(floordiv(express(a), divisor))
    n = divisor.value
    whole = Affine(tuple((t, c // n) for t, c in a.terms if c % n == 0), a.const // n)
    rest = Affine(tuple((t, c) for t, c in a.terms if c % n), a.const % n)
    if not rest.terms:
        return whole
    # (g*x + r) // (g*m) = (x + r // g) // m
    g = gcd(rest.content, n)
    inner = Affine(tuple((t, c // g) for t, c in rest.terms), rest.const // g)
    return whole + _term(floordiv(express(inner), n // g))


def _remainder(a: Affine, divisor: Expr) -> Affine:
    if not isinstance(divisor, Int) or divisor.value <= 0:
        return _term(mod(express(a), divisor))
    n = divisor.value
    rest = Affine(tuple((t, c) for t, c in a.terms if c % n), a.const % n)
    return _term(mod(express(rest), divisor))


def _folded(name: str, args: tuple[Expr, ...]) -> Affine:
    values = [a.value for a in args if isinstance(a, Int)]
    if name in ("min", "max", "abs") and len(values) == len(args):
        return Affine((), {"min": min, "max": max}[name](values) if len(values) > 1 else abs(values[0]))
    if name in ("min", "max") and args[0] is args[1]:
        return affine(args[0])
    return _term(Op(name, args))


def canonical(e: Expr) -> Expr:
    """The expression of the normal form: equal forms give one object."""
    return express(affine(e))


def express(a: Affine) -> Expr:
    """The form as an expression: first positive term, positive constant, the other terms in order, negative constant."""
    lead = next((i for i, (_, c) in enumerate(a.terms) if c > 0), None)
    terms = list(a.terms)
    const = a.const
    if lead is not None:
        t, c = terms.pop(lead)
        out = mul(t, c)
        if const > 0:
            out, const = add(out, const), 0
    elif const > 0 or not terms:
        out, const = Int(const), 0
    else:
        t, c = terms.pop(0)
        out = call("neg", mul(t, -c))
    for t, c in terms:
        # `add` and `sub` would move a constant that stands inside; the order here is the reader's.
        out = Op("+" if c > 0 else "-", (out, mul(t, abs(c))))
    return sub(out, -const) if const else out


def plus(*xs: Operand) -> Expr:
    """The sum, in normal form."""
    total = Affine()
    for x in xs:
        total = total + affine(lift(x))
    return express(total)


def minus(a: Operand, b: Operand) -> Expr:
    """The difference, in normal form."""
    return express(affine(lift(a)) - affine(lift(b)))


def times(a: Operand, b: Operand) -> Expr:
    """The product, in normal form."""
    return canonical(mul(a, b))


def divided(a: Operand, b: Operand) -> Expr:
    """The floored quotient, in normal form."""
    return canonical(floordiv(a, b))


def divided_up(a: Operand, b: Operand) -> Expr:
    """The quotient rounded up, in normal form; the divisor is positive."""
    return canonical(floordiv(add(a, sub(b, ONE)), b))
