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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tilec.backends.cpp.expressions import CppExpressions
from tilec.backends.cpp.operators import Text
from tilec.backends.cuda.columns import Limit, limit_of, limits_of
from tilec.backends.cuda.names import Names
from tilec.ir.expr import COMPARISONS, OPS, Expr, Int, Iota, Op, Read

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
class Expressions(CppExpressions[Lanes]):
    """Prints expressions of one role.  `rows`: those of a register tile that a thread has a part of."""

    names: Names
    rows: int = 2
    backend = "cuda"

    @property
    def outside(self) -> Lanes:
        return SCALAR

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

    def read(self, e: Read, lanes: Lanes) -> str:
        name = e.buffer
        if name in self.shared:
            b = self.shared[name]
            if b.axes or b.dtype != "i32":
                raise ValueError(f"{e} reads a tile of shared memory inside an expression")
            return f"uniform(lane == 0 ? load_int({self.address(name, e.stage)}) : 0)"
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
