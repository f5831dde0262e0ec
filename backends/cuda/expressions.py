"""Expressions as C++ text: scalars, and one lane of a tile at a time.

A statement over lanes is printed as a loop over the registers of a thread; `Lanes` says which loop the text stands in:

    scalar   none
    rows     i = 0, 1, …: the thread's rows; row vectors hold a value for each
    columns  x: the thread's columns; vectors along them hold a value for each
    lanes    x: registers of a vector of columns that lies over the lanes of each warp
    tile     e: the registers of an accumulator fragment (see `prelude`)
    copy     r: the row of a tile that a lane copies
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tilec.backends.cpp.operators import ATOM, Operators, Text, number
from tilec.backends.cuda.columns import Limit, limit_of, limits_of
from tilec.backends.cuda.names import Names
from tilec.ir.expr import COMPARISONS, OPS, Bool, Expr, Fetch, Float, Int, Iota, Op, Read, Reduce, Var

CPP = {
    "bf16": "unsigned short",
    "f16": "unsigned short",
    "f32": "float",
    "i32": "int",
    "i64": "long long",
    "bool": "bool",
}
FUNCTIONS = {
    "exp2": "exp2_",
    "log2": "log2_",
    "tanh": "tanh_",
    "exp": "__expf",
    "log": "__logf",
    "sqrt": "sqrtf",
    "/": "__fdividef",
    "**": "powf",
    "min": "fminf",
    "max": "fmaxf",
    "abs": "fabsf",
}


@dataclass(frozen=True)
class Lanes:
    """The lanes of one statement: axes of its rows and columns, and the text of the register's number."""

    kind: Literal["scalar", "rows", "columns", "lanes", "tile", "copy"]
    row: str = ""
    column: str = ""
    at: str = ""


SCALAR = Lanes("scalar")


@dataclass
class Expressions(Operators[Lanes]):
    """Prints expressions of one role.  `reduced`: text for each Reduce, and for each read of a row that lanes hold parts of;
    `rows`: those of a register tile that a thread has a part of."""

    names: Names
    reduced: dict[Expr, Callable[[Lanes], str]] = field(default_factory=dict)
    rows: int = 2

    def show(self, e: Expr, lanes: Lanes = SCALAR) -> str:
        return self.text(e, lanes).text

    def text(self, e: Expr, lanes: Lanes) -> Text:
        """Raises ValueError for what the fragments of `lanes` cannot give."""
        match e:
            case Int(v):
                return Text(str(v), ATOM if v >= 0 else 7)
            case Float(v):
                return number(v)
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
            return f"uniform(lane == 0 ? load_int({self.address(name, stage)}) : 0)"
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

    @property
    def functions(self) -> Mapping[str, str]:
        return FUNCTIONS

    def op(self, name: str, args: tuple[Expr, ...], lanes: Lanes) -> Text:
        if name in COMPARISONS and lanes.kind == "tile":
            found = self.column_limit(Op(name, args), lanes)
            if found is not None:
                return self.limited(found, lanes)
        if name == "and" and lanes.kind == "tile":
            both = self.conjunction(Op(name, args), lanes)
            if both is not None:
                return both
        return super().op(name, args, lanes)

    def column_limit(self, e: Expr, lanes: Lanes) -> Limit | None:
        """A comparison of integers that limits the column, or None."""
        if not (isinstance(e, Op) and e.name in COMPARISONS and all(self.kind(a) == "int" for a in e.args)):
            return None
        a, b = e.args
        return limit_of(e.name, a, b, Iota(lanes.column), lambda x, outer: self.text(x, lanes).at(outer))

    def limited(self, limit: Limit, lanes: Lanes) -> Text:
        return Text(f"{self.of('column', lanes.at)} {limit.symbol} {limit.text}", OPS[limit.symbol].precedence)

    def conjunction(self, e: Expr, lanes: Lanes) -> Text | None:
        """Tests of an element with few comparisons of its column, or None where there is nothing to gain."""
        found = limits_of(e, lambda part: self.column_limit(part, lanes))
        if found is None:
            return None
        limits, others = found
        p = OPS["and"].precedence
        parts = [*(self.text(x, lanes).at(p) for x in others), *(self.limited(x, lanes).at(p) for x in limits)]
        return Text(" && ".join(parts), p)
