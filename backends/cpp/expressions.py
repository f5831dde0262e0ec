"""Expressions as C++ text, but for what lanes hold: leaves that are the same for all of them, and elements of tensors in memory.

What a lane has of a register, and which number of a row or a column is its own, the backend says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from tilec.backends.cpp.operators import ATOM, L, Operators, Text, number
from tilec.ir.expr import Bool, Expr, Fetch, Float, Int, Iota, Op, Read, Reduce, Var

CPP = {
    "bf16": "unsigned short",
    "f16": "unsigned short",
    "f32": "float",
    "i32": "int",
    "i64": "long long",
    "bool": "bool",
}


def named(name: str, lanes: object) -> str:
    """Of what is the same variable in all lanes."""
    return name


@dataclass
class CppExpressions(Operators[L]):
    """Prints expressions of one role.  `reduced`: text for each expression that has been computed, such as a Reduce, or a read of
    a row that lanes hold parts of."""

    reduced: dict[Expr, Callable[[L], str]] = field(default_factory=dict)
    backend: ClassVar[str]

    @property
    @abstractmethod
    def outside(self) -> L:
        """The lanes of a scalar."""

    @abstractmethod
    def iota(self, axis: str, lanes: L) -> Text:
        """A lane's number along an axis."""

    @abstractmethod
    def read(self, e: Read, lanes: L) -> str:
        """A value of a buffer."""

    def show(self, e: Expr, lanes: L | None = None) -> str:
        """Of a scalar without `lanes`."""
        return self.text(e, self.outside if lanes is None else lanes).text

    def scalar(self, e: Expr) -> Text:
        """Of an expression that is the same in all lanes."""
        return self.text(e, self.outside)

    def text(self, e: Expr, lanes: L) -> Text:
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
                return Text(self.reduced[e](lanes))
            case Read():
                return Text(self.read(e, lanes))
            case Op(name, args):
                return self.op(name, args, lanes)
        raise ValueError(f"the {self.backend} backend has no text for {e}")

    def fetch(self, name: str, index: tuple[Expr, ...], lanes: L) -> Text:
        """A tensor's element as a value."""
        t, access = self.tensors[name], self.element(name, index, lanes)
        match t.dtype:
            case "bf16" | "f16":
                return Text(f"{t.dtype}_value({access})")
            case "f32" | "i32" | "bool":
                return Text(access)
        raise ValueError(f"the {self.backend} backend reads no {t.dtype} tensor in an expression")

    def element(self, tensor: str, index: tuple[Expr, ...], lanes: L) -> str:
        """A tensor's element as it lies in memory."""
        return f"{self.names.pointer(tensor)}[{self.offset(tensor, index, lanes)}]"

    def offset(self, tensor: str, index: tuple[Expr, ...], lanes: L) -> str:
        """Elements from the tensor's first to this one: an integer of 64 bits."""
        terms = [
            f"(long long){self.text(i, lanes).at(ATOM)} * {self.names.stride(tensor, n)}"
            for n, i in enumerate(index)
            if i is not Int(0)
        ]
        return " + ".join(terms) or "0"
