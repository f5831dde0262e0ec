"""Expressions as C++ text: scalars, and one lane's element of a tile at a time.

A lane has one row of the queries.  `Lanes` says which loop the text stands in:

    scalar   none
    row      none: the lane's row, of which vectors over rows hold one value
    tile     e: the elements of an accumulator, whose rows are `axis`; vectors along it hold a value for each
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tilec.backends.cpp.expressions import CppExpressions
from tilec.backends.cpp.operators import Text
from tilec.backends.hip.names import Names
from tilec.ir.axes import constant
from tilec.ir.expr import COMPARISONS, Expr, Iota, Read
from tilec.ir.fragments import Fragment

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
class Expressions(CppExpressions[Lanes]):
    """Prints expressions of one role.  `row`: the axis of the queries; `sums`: accumulators, which are vectors of the products'
    registers."""

    names: Names
    row: str = ""
    like: Fragment = field(default_factory=lambda: Fragment(32, 8, "C", 4))
    sums: frozenset[str] = frozenset()
    backend = "hip"

    @property
    def outside(self) -> Lanes:
        return SCALAR

    @property
    def functions(self) -> Mapping[str, str]:
        return FUNCTIONS

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
            return self.register(name, e.stage, lanes.at)
        raise ValueError(f"{e} over {', '.join(axes)} is not held by the lanes that need it")

    def register(self, name: str, stage: Expr | None, at: str) -> str:
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

    def op(self, name: str, args: tuple[Expr, ...], lanes: Lanes) -> Text:
        if name in COMPARISONS and lanes.kind == "tile":
            limit = self.limit(name, args[0], args[1], Iota(lanes.axis), self.down(lanes.at), "low", lanes)
            if limit is not None:
                return limit
        return super().op(name, args, lanes)
