"""What the printers of statements share: lines so far, scalars that are declared, how scalars, branches and loops are written.

Every thread of a role runs the same scalar code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilec.backends.cpp.expressions import CPP, CppExpressions
from tilec.backends.cpp.lines import STEP, broken, filled_comment
from tilec.ir.expr import Fetch, Int, Op, Var
from tilec.ir.nodes import For, If, Let

SEGMENTS = {"all": "every tile, masked", "left": "masked", "full": "no mask", "right": "masked"}


@dataclass(kw_only=True)
class CppWriter:
    """Prints one role.  `declared`: scalars of each open scope."""

    x: CppExpressions[Any]
    lines: list[str] = field(default_factory=list)
    declared: list[set[str]] = field(default_factory=list)
    fresh: int = 0

    def line(self, depth: int, text: str) -> None:
        """A line of code; a long one goes on below, deeper."""
        self.lines += broken(text, STEP * depth)

    def comment(self, depth: int, text: str) -> None:
        """Words of a comment, filled."""
        self.lines += filled_comment(text, STEP * depth)

    def loop(self, depth: int, var: str, lo: int, hi: int) -> None:
        """Opens a loop over registers."""
        self.line(depth, "#pragma unroll")
        self.line(depth, f"for (int {var} = {lo}; {var} < {hi}; ++{var}) {{")

    def let(self, s: Let, depth: int) -> None:
        """A scalar of 64 bits, where it is an element of such a tensor or another such scalar; else a float or an integer."""
        match s.value:
            case Fetch(tensor, index) if self.x.tensors[tensor].dtype == "i64":
                self.assign(s.name, self.x.element(tensor, index, self.x.outside), depth, "i64")
            case Var(other) if other in self.x.longs:
                self.assign(s.name, self.x.names.scalar(other), depth, "i64")
            case value:
                self.assign(s.name, self.x.show(value), depth, self.dtype(s))

    def dtype(self, s: Let) -> str:
        """Of a scalar of 32 bits."""
        return "f32" if self.x.kind(s.value) == "float" else "i32"

    def assign(self, name: str, text: str, depth: int, dtype: str = "i32") -> None:
        """Declares a scalar, or assigns to one that an open scope has."""
        identifier = self.x.names.scalar(name)
        if any(name in scope for scope in self.declared):
            self.line(depth, f"{identifier} = {text};")
            return
        self.declared[-1].add(name)
        if dtype == "f32":
            self.x.floats.add(name)
        if dtype == "i64":
            self.x.longs.add(name)
        self.line(depth, f"{CPP[dtype]} {identifier} = {text};")

    def open_branch(self, s: If, depth: int) -> None:
        """Its head.  Scalars that both arms define are known after it."""
        others = {x.name for x in s.orelse if isinstance(x, Let)}
        for x in s.then:
            if isinstance(x, Let) and x.name in others and not any(x.name in scope for scope in self.declared):
                self.assign(x.name, "0", depth, self.dtype(x))
        self.line(depth, f"if ({self.x.show(s.cond)}) {{")

    def open_loop(self, s: For, depth: int, kept: str) -> None:
        """Its head, with why its tiles are what they are; `kept`: the pragma against unrolling."""
        if s.proof is not None:
            self.comment(depth, f"{s.proof.segment} ({SEGMENTS[s.proof.segment]}): {s.proof.because}")
        var, lo, hi = self.x.names.scalar(s.var), self.x.scalar(s.lo), self.x.scalar(s.hi)
        self.line(depth, kept)
        if s.down:
            self.line(
                depth, f"for (int {var} = {self.x.show(Op('-', (s.hi, Int(1))))}; {var} >= {lo.at(5)}; --{var}) {{"
            )
        else:
            self.line(depth, f"for (int {var} = {lo.text}; {var} < {hi.at(5)}; ++{var}) {{")
