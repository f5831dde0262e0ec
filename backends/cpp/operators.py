"""Operators of expressions as C++ text.

Integers are 32 bits, offsets into tensors 64, and so are seeds, which only `uniform` takes.  `//` and `%` floor: by a power of
two that is a shift and a mask, by anything else a division, where both operands are known not to be negative, else a function.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tilec.backends.cpp.signs import Signs
from tilec.backends.names import Identifiers
from tilec.ir.axes import constant, kind_of_dtype
from tilec.ir.expr import (
    COMPARISONS,
    OPS,
    Expr,
    Float,
    Int,
    Iota,
    Kind,
    Op,
    Var,
    free_vars,
    kind_of,
    substitute,
    walk,
)
from tilec.ir.nodes import Buffer, Global

SYMBOLS = {"and": "&&", "or": "||"}
ATOM = 100
L = TypeVar("L")


@dataclass(frozen=True)
class Text:
    """Printed expression and its precedence, that of `ir.expr.OPS` (C++ orders these operators alike)."""

    text: str
    precedence: int = ATOM

    def at(self, outer: int) -> str:
        """The text, in parentheses if it binds weaker than its surroundings."""
        return f"({self.text})" if self.precedence < outer else self.text


@dataclass
class Operators(Generic[L]):
    """Prints operators for lanes of any form `L`; leaves are the backend's.  `floats`, `longs`: a role's lets of floats and
    of 64-bit integers."""

    names: Identifiers
    tensors: Mapping[str, Global]
    registers: Mapping[str, Buffer]
    shared: Mapping[str, Buffer]
    constants: Mapping[str, int]
    signs: Signs
    floats: set[str] = field(default_factory=set)
    longs: set[str] = field(default_factory=set)

    @property
    @abstractmethod
    def functions(self) -> Mapping[str, str]:
        """What an operator on floats is called, where it is no symbol."""

    @abstractmethod
    def text(self, e: Expr, lanes: L) -> Text:
        """Of any expression.  Raises ValueError for what `lanes` cannot give."""

    def kind(self, e: Expr) -> Kind:
        """Integer, float or boolean.  A scalar may be called what a tensor or a buffer is."""
        dtypes = {t.name: t.dtype for t in self.tensors.values()}
        dtypes |= {b.name: b.dtype for b in (*self.registers.values(), *self.shared.values())}
        scalars: dict[Expr, Expr] = {Var(n): Float(0.0) if n in self.floats else Int(0) for n in free_vars(e)}
        return kind_of(substitute(e, scalars), {name: kind_of_dtype(dtype) for name, dtype in dtypes.items()})

    # ------------------------------------------------------------------------------------------ operators

    def op(self, name: str, args: tuple[Expr, ...], lanes: L) -> Text:
        if name in ("//", "%") and self.kind(args[1]) == "int":
            return self.divide(name, args, lanes)
        if name == "uniform":
            return self.uniform(args, lanes)
        parts = [self.text(a, lanes) for a in args]
        kinds = [self.kind(a) for a in args]
        match name:
            case "where":
                return Text(f"{parts[0].at(1)} ? {parts[1].at(1)} : {parts[2].at(1)}", 0)
            case "min" | "max":
                f = self.functions[name] if "float" in kinds else name
                return Text(f"{f}({parts[0].text}, {parts[1].text})")
            case "/":
                return Text(f"{self.functions['/']}({', '.join(map(_as_float, parts, kinds))})")
            case "float":
                return Text(_as_float(parts[0], "int"))
            case "abs":
                return Text(f"{self.functions['abs'] if kinds[0] == 'float' else 'abs'}({parts[0].text})")
            case "neg":
                return Text(f"-{parts[0].at(8)}", 7)
            case "**" if "float" in kinds:
                return Text(f"{self.functions['**']}({', '.join(map(_as_float, parts, kinds))})")
            case "not":
                return Text(f"!{parts[0].at(ATOM)}", 7)
        if name in self.functions and OPS[name].infix is None:
            return Text(f"{self.functions[name]}({_as_float(parts[0], kinds[0])})")
        spec = OPS[name]
        if spec.infix is None or name == "**":
            raise ValueError(f"there is no C++ for `{name}`")
        p = spec.precedence
        left = p + 1 if name in COMPARISONS else p
        return Text(f"{parts[0].at(left)} {SYMBOLS.get(name, name)} {parts[1].at(p + 1)}", p)

    def limit(self, name: str, a: Expr, b: Expr, place: Iota, text: str, own: str, lanes: L) -> Text | None:
        """A comparison of integers with `place` on one side: `text <= limit`, the text a constant of each register (the place is
        `own` more) and the limit a number per lane, so that an element costs one comparison.  None for other comparisons."""
        if self.kind(a) != "int" or self.kind(b) != "int":
            return None
        terms = _terms(a, 1) + _terms(b, -1)  # a - b
        mine = [sign for sign, x in terms if x is place]
        rest = [(sign, x) for sign, x in terms if x is not place]
        if len(mine) != 1 or any(place in walk(x) for _, x in rest):
            return None
        moved = [(-sign * mine[0], x) for sign, x in rest] + [(-1, None)]
        symbol = name if mine[0] > 0 else {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(name, name)
        limit = ""
        for sign, x in sorted(moved, key=lambda m: m[0] < 0):  # stable: added terms first
            part = own if x is None else self.text(x, lanes).at(6)
            limit += (" + " if sign > 0 else " - ") + part if limit else part if sign > 0 else f"-{part}"
        return Text(f"{text} {symbol} {limit}", OPS[name].precedence)

    def divide(self, name: str, args: tuple[Expr, ...], lanes: L) -> Text:
        """Floor division and its remainder, of integers."""
        left, right = (self.text(a, lanes) for a in args)
        n = constant(args[1], self.constants)
        if n is not None and n > 0 and n & (n - 1) == 0:
            return Text(f"({left.at(5)} >> {n.bit_length() - 1})" if name == "//" else f"({left.at(5)} & {n - 1})")
        if self.signs.nonnegative(args[0]) and self.signs.nonnegative(args[1]):
            return Text(f"{left.at(6)} {name[0]} {right.at(7)}", 6)
        return Text(f"{'floor_div' if name == '//' else 'floor_mod'}({left.text}, {right.text})")

    def uniform(self, args: tuple[Expr, ...], lanes: L) -> Text:
        """A random number of `ir.philox`."""
        seeds = [a.name for a in args[:2] if isinstance(a, Var) and a.name in self.longs]
        if len(seeds) != 2:
            raise ValueError("seed and offset are scalars of 64 bits")
        words = [*map(self.names.scalar, seeds), *(self.text(a, lanes).text for a in args[2:])]
        return Text(f"philox({', '.join(words)})")


def _as_float(t: Text, kind: Kind) -> str:
    return t.text if kind == "float" else f"(float){t.at(ATOM)}"


def number(v: float) -> Text:
    if math.isinf(v):
        return Text("INF") if v > 0 else Text("-INF", 7)
    text = repr(v)
    return Text(f"{text}f" if set(text) & {".", "e"} else f"{text}.0f", ATOM if v >= 0 else 7)


def _terms(e: Expr, sign: int) -> list[tuple[int, Expr]]:
    """A sum as signed terms."""
    match e:
        case Op("+", (x, y)):
            return _terms(x, sign) + _terms(y, sign)
        case Op("-", (x, y)):
            return _terms(x, sign) + _terms(y, -sign)
        case Op("neg", (x,)):
            return _terms(x, -sign)
        case _:
            return [(sign, e)]
