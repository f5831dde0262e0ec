"""Expressions as C++ text: scalars, and one lane of a tile at a time.

A statement over lanes is printed as a loop over the registers of a thread; `Lanes` says which loop the text stands in:

    scalar   none
    rows     i = 0, 1, …: the thread's rows; row vectors hold a value for each
    columns  x: the thread's columns; vectors along them hold a value for each
    lanes    x: registers of a vector of columns that lies over the lanes of each warp
    tile     e: the registers of an accumulator fragment (see `prelude`)
    copy     r: the row of a tile that a lane copies

Integers are 32 bits, offsets into tensors 64, and so are seeds, which only `uniform` takes.  `//` and `%` floor: by a power of
two that is a shift and a mask, by anything else a division, where both operands are known not to be negative, else a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tilec.backends.cuda.names import Names
from tilec.backends.cuda.signs import Signs
from tilec.ir.axes import constant, kind_of_dtype
from tilec.ir.expr import (
    COMPARISONS,
    OPS,
    Bool,
    Expr,
    Fetch,
    Float,
    Int,
    Iota,
    Kind,
    Op,
    Read,
    Reduce,
    Var,
    free_vars,
    kind_of,
    substitute,
    walk,
)
from tilec.ir.nodes import Buffer, Global

CPP = {
    "bf16": "unsigned short",
    "f16": "unsigned short",
    "f32": "float",
    "i32": "int",
    "i64": "long long",
    "bool": "bool",
}
FUNCTIONS = {"exp2": "exp2_", "log2": "log2_", "tanh": "tanh_", "exp": "__expf", "log": "__logf", "sqrt": "sqrtf"}
SYMBOLS = {"and": "&&", "or": "||"}
ATOM = 100


@dataclass(frozen=True)
class Text:
    """Printed expression and its precedence, that of `ir.expr.OPS` (C++ orders these operators alike)."""

    text: str
    precedence: int = ATOM

    def at(self, outer: int) -> str:
        """The text, in parentheses if it binds weaker than its surroundings."""
        return f"({self.text})" if self.precedence < outer else self.text


@dataclass(frozen=True)
class Lanes:
    """The lanes of one statement: axes of its rows and columns, and the text of the register's number."""

    kind: Literal["scalar", "rows", "columns", "lanes", "tile", "copy"]
    row: str = ""
    column: str = ""
    at: str = ""


SCALAR = Lanes("scalar")


@dataclass
class Expressions:
    """Prints expressions of one role.  `floats`, `longs`: its lets of 32-bit floats and of 64-bit integers; `reduced`: text for
    each Reduce, and for each read of a row that lanes hold parts of; `rows`: those of a
    register tile that a thread has a part of."""

    names: Names
    tensors: Mapping[str, Global]
    registers: Mapping[str, Buffer]
    shared: Mapping[str, Buffer]
    constants: Mapping[str, int]
    signs: Signs
    floats: set[str] = field(default_factory=set)
    longs: set[str] = field(default_factory=set)
    reduced: dict[Expr, Callable[[Lanes], str]] = field(default_factory=dict)
    rows: int = 2

    def kind(self, e: Expr) -> Kind:
        """Integer, float or boolean.  A scalar may be called what a tensor or a buffer is."""
        dtypes = {t.name: t.dtype for t in self.tensors.values()}
        dtypes |= {b.name: b.dtype for b in (*self.registers.values(), *self.shared.values())}
        scalars: dict[Expr, Expr] = {Var(n): Float(0.0) if n in self.floats else Int(0) for n in free_vars(e)}
        return kind_of(substitute(e, scalars), {name: kind_of_dtype(dtype) for name, dtype in dtypes.items()})

    def show(self, e: Expr, lanes: Lanes = SCALAR) -> str:
        return self.text(e, lanes).text

    def text(self, e: Expr, lanes: Lanes) -> Text:
        """Raises ValueError for what the fragments of `lanes` cannot give."""
        match e:
            case Int(v):
                return Text(str(v), ATOM if v >= 0 else 7)
            case Float(v):
                return _float(v)
            case Bool(v):
                return Text("true" if v else "false")
            case Var(name) if name in self.longs:
                raise ValueError(f"{name} has 64 bits, and is no number of this expression")
            case Var(name):
                return Text(self.names.scalar(name))
            case Iota(axis):
                return self.iota(axis, lanes)
            case Fetch(name, index):
                return self.fetch(name, index, lanes)
            case Reduce() | Read() if e in self.reduced:
                return Text(self.reduced[e](lanes))
            case Read(name, _):
                return Text(self.read(name, e, lanes))
            case Op(name, args):
                return self.op(name, args, lanes)
        raise ValueError(f"the cuda backend has no text for {e}")

    # ------------------------------------------------------------------------------------------ leaves

    def iota(self, axis: str, lanes: Lanes) -> Text:
        if axis == lanes.row and lanes.kind == "rows":
            return Text(f"row0 + 8 * {lanes.at}", 5)
        if axis == lanes.row and lanes.kind == "tile":
            return Text(f"row0 + 8 * {self.of('row', lanes.at)}", 5)
        if axis == lanes.column and lanes.kind == "tile":
            return Text(f"col0 + {self.of('column', lanes.at)}", 5)
        if axis == lanes.column and lanes.kind == "columns":
            return Text(f"col0 + {lanes.at} / 2 * 8 + {lanes.at} % 2", 5)
        if axis == lanes.column and lanes.kind == "lanes":
            return Text(f"lane + 32 * {lanes.at}", 5)
        if axis == lanes.row and lanes.kind == "copy":
            return Text(lanes.at)
        raise ValueError(f"iota({axis}) is no lane number of this statement")

    def of(self, what: str, at: str) -> str:
        """Row, column or number of the column, among the thread's, that register `at` of a tile belongs to."""
        return f"{what}_of{'' if self.rows == 2 else f'<{self.rows}>'}({at})"

    def read(self, name: str, e: Expr, lanes: Lanes) -> str:
        if name in self.shared:
            b = self.shared[name]
            if b.axes or b.dtype != "i32":
                raise ValueError(f"{e} reads a tile of shared memory inside an expression")
            stage = e.stage if isinstance(e, Read) else None
            return f"uniform(load_int({self.address(name, stage)}))"
        b = self.registers[name]
        axes = tuple(a.name for a in b.axes)
        if b.layout is not None and dict(b.layout.params).get("operand") == "A":
            raise ValueError(f"{e} reads a fragment of {b.dtype} inside an expression")
        if (b.layout is not None and b.layout.kind == "lanes") != (lanes.kind == "lanes"):
            raise ValueError(f"{e} lies over lanes in another way than the values around it")
        match lanes.kind, axes:
            case "tile", (lanes.row, lanes.column):
                return f"{self.names.buffer(name)}[{lanes.at}]"
            case "tile", (lanes.row,):
                return f"{self.names.buffer(name)}[{self.of('row', lanes.at)}]"
            case "tile", (lanes.column,):
                return f"{self.names.buffer(name)}[{self.of('place', lanes.at)}]"
            case ("rows", (lanes.row,)) | ("columns" | "lanes", (lanes.column,)):
                return f"{self.names.buffer(name)}[{lanes.at}]"
        raise ValueError(f"{e} over {', '.join(axes)} is not held by the threads that need it")

    def address(self, name: str, stage: Expr | None) -> str:
        """Shared address of a buffer's stage."""
        base = f"smem + {self.names.buffer(name)}"
        if stage is None or stage is Int(0):
            return base
        return f"{base} + {self.names.stage(name)} * {self.text(stage, SCALAR).at(7)}"

    def fetch(self, name: str, index: tuple[Expr, ...], lanes: Lanes) -> Text:
        t, access = self.tensors[name], self.element(name, index, lanes)
        match t.dtype:
            case "bf16" | "f16":
                return Text(f"{t.dtype}_value({access})")
            case "f32" | "i32" | "bool":
                return Text(access)
        raise ValueError(f"the cuda backend reads no {t.dtype} tensor in an expression")

    def element(self, tensor: str, index: tuple[Expr, ...], lanes: Lanes) -> str:
        """A tensor's element as it lies in memory."""
        return f"{self.names.pointer(tensor)}[{self.offset(tensor, index, lanes)}]"

    def offset(self, tensor: str, index: tuple[Expr, ...], lanes: Lanes) -> str:
        """Elements from the tensor's first to this one: an integer of 64 bits."""
        terms = [
            f"(long long){self.text(i, lanes).at(ATOM)} * {self.names.stride(tensor, n)}"
            for n, i in enumerate(index)
            if i is not Int(0)
        ]
        return " + ".join(terms) or "0"

    # ------------------------------------------------------------------------------------------ operators

    def op(self, name: str, args: tuple[Expr, ...], lanes: Lanes) -> Text:
        if name in COMPARISONS and lanes.kind == "tile":
            limit = self.column_limit(name, args[0], args[1], lanes)
            if limit is not None:
                return limit
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
                f = f"f{name}f" if "float" in kinds else name
                return Text(f"{f}({parts[0].text}, {parts[1].text})")
            case "/":
                return Text(f"__fdividef({', '.join(map(_as_float, parts, kinds))})")
            case "float":
                return Text(_as_float(parts[0], "int"))
            case "abs":
                return Text(f"{'fabsf' if kinds[0] == 'float' else 'abs'}({parts[0].text})")
            case "neg":
                return Text(f"-{parts[0].at(8)}", 7)
            case "**" if "float" in kinds:
                return Text(f"powf({', '.join(map(_as_float, parts, kinds))})")
            case "not":
                return Text(f"!{parts[0].at(ATOM)}", 7)
        if name in FUNCTIONS:
            return Text(f"{FUNCTIONS[name]}({_as_float(parts[0], kinds[0])})")
        spec = OPS[name]
        if spec.infix is None or name == "**":
            raise ValueError(f"the cuda backend has no `{name}`")
        p = spec.precedence
        left = p + 1 if name in COMPARISONS else p
        return Text(f"{parts[0].at(left)} {SYMBOLS.get(name, name)} {parts[1].at(p + 1)}", p)

    def divide(self, name: str, args: tuple[Expr, ...], lanes: Lanes) -> Text:
        """Floor division and its remainder, of integers."""
        left, right = (self.text(a, lanes) for a in args)
        n = constant(args[1], self.constants)
        if n is not None and n > 0 and n & (n - 1) == 0:
            return Text(f"({left.at(5)} >> {n.bit_length() - 1})" if name == "//" else f"({left.at(5)} & {n - 1})")
        if self.signs.nonnegative(args[0]) and self.signs.nonnegative(args[1]):
            return Text(f"{left.at(6)} {name[0]} {right.at(7)}", 6)
        return Text(f"{'floor_div' if name == '//' else 'floor_mod'}({left.text}, {right.text})")

    def uniform(self, args: tuple[Expr, ...], lanes: Lanes) -> Text:
        """A random number of `ir.philox`."""
        seeds = [a.name for a in args[:2] if isinstance(a, Var) and a.name in self.longs]
        if len(seeds) != 2:
            raise ValueError("seed and offset are scalars of 64 bits")
        words = [*map(self.names.scalar, seeds), *(self.text(a, lanes).text for a in args[2:])]
        return Text(f"philox({', '.join(words)})")

    def column_limit(self, name: str, a: Expr, b: Expr, lanes: Lanes) -> Text | None:
        """A comparison of integers with the column on one side: `column_of(e) <= limit`, the column a constant of each register
        and the limit a number per row, so that an element costs one comparison.  None for other comparisons."""
        if self.kind(a) != "int" or self.kind(b) != "int":
            return None
        column = Iota(lanes.column)
        terms = _terms(a, 1) + _terms(b, -1)  # a - b
        mine = [sign for sign, x in terms if x is column]
        rest = [(sign, x) for sign, x in terms if x is not column]
        if len(mine) != 1 or any(column in walk(x) for _, x in rest):
            return None
        moved = [(-sign * mine[0], x) for sign, x in rest] + [(-1, None)]
        symbol = name if mine[0] > 0 else {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(name, name)
        limit = ""
        for sign, x in sorted(moved, key=lambda m: m[0] < 0):  # stable: added terms first
            text = "col0" if x is None else self.text(x, lanes).at(6)
            limit += (" + " if sign > 0 else " - ") + text if limit else text if sign > 0 else f"-{text}"
        return Text(f"{self.of('column', lanes.at)} {symbol} {limit}", OPS[name].precedence)


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


def _as_float(t: Text, kind: Kind) -> str:
    return t.text if kind == "float" else f"(float){t.at(ATOM)}"


def _float(v: float) -> Text:
    if math.isinf(v):
        return Text("INF") if v > 0 else Text("-INF", 7)
    text = repr(v)
    return Text(f"{text}f" if set(text) & {".", "e"} else f"{text}.0f", ATOM if v >= 0 else 7)
