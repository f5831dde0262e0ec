"""Expressions as C++ text: scalars, and one lane's element of a tile at a time.

A lane has one row of the queries.  `Lanes` says which loop the text stands in:

    scalar   none
    row      none: the lane's row, of which vectors over rows hold one value
    tile     e: the elements of an accumulator, whose rows are `axis`; vectors along it hold a value for each
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tilec.backends.cpp.operators import ATOM, Operators, Text, number
from tilec.backends.hip.names import Names
from tilec.ir.axes import constant
from tilec.ir.expr import COMPARISONS, Bool, Expr, Fetch, Float, Int, Iota, Op, Read, Reduce, Var
from tilec.ir.fragments import Fragment

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
    "exp": "exp_",
    "log": "log_",
    "sqrt": "sqrt_",
    "/": "divide",
    "**": "power",
    "min": "__builtin_fminf",
    "max": "__builtin_fmaxf",
    "abs": "__builtin_fabsf",
}


@dataclass(frozen=True)
class Lanes:
    """The lanes of one statement: the axis of an accumulator's rows, and the text of the element's number."""

    kind: Literal["scalar", "row", "tile"]
    axis: str = ""
    at: str = ""


SCALAR, ROW = Lanes("scalar"), Lanes("row")


@dataclass
class Expressions(Operators[Lanes]):
    """Prints expressions of one role.  `row`: the axis of the queries; `reduced`: text for each Reduce, and for each read of a
    row that lanes hold parts of; `sums`: accumulators, which are vectors of the products' registers."""

    names: Names
    row: str = ""
    like: Fragment = field(default_factory=lambda: Fragment(32, 8, "C", 4))
    reduced: dict[Expr, Callable[[], str]] = field(default_factory=dict)
    sums: frozenset[str] = frozenset()

    @property
    def functions(self) -> Mapping[str, str]:
        return FUNCTIONS

    def show(self, e: Expr, lanes: Lanes = SCALAR) -> str:
        return self.text(e, lanes).text

    def text(self, e: Expr, lanes: Lanes) -> Text:
        """Raises ValueError for what `lanes` cannot give."""
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
            case Reduce() | Read() | Op() if e in self.reduced:
                return Text(self.reduced[e]())
            case Read():
                return Text(self.read(e, lanes))
            case Op(name, args):
                return self.op(name, args, lanes)
        raise ValueError(f"the hip backend has no text for {e}")

    # ------------------------------------------------------------------------------------------ leaves

    def iota(self, axis: str, lanes: Lanes) -> Text:
        if axis == self.row and lanes.kind != "scalar":
            return Text("own")
        if axis == lanes.axis and lanes.kind == "tile":
            return Text(f"{self.down(lanes.at)} + low", 5)
        raise ValueError(f"iota({axis}) is no lane number of this statement")

    def down(self, at: str) -> str:
        """Row of an accumulator's element, less the lane's first."""
        return f"down<{self.like.n}>({at})"

    def read(self, e: Read, lanes: Lanes) -> str:
        name = e.buffer
        if name in self.shared:
            raise ValueError(f"{e} reads shared memory inside an expression")
        axes = tuple(a.name for a in self.registers[name].axes)
        if axes == (self.row,) and lanes.kind != "scalar":
            return self.names.buffer(name)
        if lanes.kind == "tile" and axes in ((lanes.axis, self.row), (lanes.axis,)):
            return self.element(name, e.stage, lanes.at)
        raise ValueError(f"{e} over {', '.join(axes)} is not held by the lanes that need it")

    def element(self, name: str, stage: Expr | None, at: str) -> str:
        """Element `at` of a tile of registers."""
        b = self.registers[name]
        if b.layout is not None and dict(b.layout.params).get("operand") not in (None, "C"):
            raise ValueError(f"{name} is an operand, and no tile of values")
        number_ = 0 if stage is None else constant(stage, self.constants)
        if number_ is None:
            raise ValueError(f"stage {stage} of registers {name} is not known")
        base = f"{self.names.buffer(name)}{f'[{number_}]' if b.stages > 1 else ''}"
        held = self.like.held
        return f"{base}[{at} / {held}][{at} % {held}]" if name in self.sums else f"{base}[{at}]"

    def fetch(self, name: str, index: tuple[Expr, ...], lanes: Lanes) -> Text:
        t, access = self.tensors[name], self.value(name, index, lanes)
        match t.dtype:
            case "bf16" | "f16":
                return Text(f"{t.dtype}_value({access})")
            case "f32" | "i32" | "bool":
                return Text(access)
        raise ValueError(f"the hip backend reads no {t.dtype} tensor in an expression")

    def value(self, tensor: str, index: tuple[Expr, ...], lanes: Lanes) -> str:
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

    def op(self, name: str, args: tuple[Expr, ...], lanes: Lanes) -> Text:
        if name in COMPARISONS and lanes.kind == "tile":
            limit = self.limit(name, args[0], args[1], Iota(lanes.axis), self.down(lanes.at), "low", lanes)
            if limit is not None:
                return limit
        return super().op(name, args, lanes)
