"""What one kernel declares, and the list of its mistakes.

A name whose declaration is wrong is still entered, *poisoned*: later uses of it say nothing more, so that one mistake gives
one message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tilec.dsl import ast, words
from tilec.dsl.codes import fault
from tilec.dsl.faults import Fault
from tilec.dsl.spans import Span

Role = Literal["index", "extent", "tensor", "table"]


@dataclass(frozen=True)
class Table:
    """An i32 or f32 tensor that storage words name: offsets, lengths, a block table or descales."""

    name: str
    use: str  # packed, lengths, paged, scaled
    index: tuple[ast.Expr, ...] | None  # as written; None for offsets and lengths, which are read at the batch index
    span: Span


@dataclass
class Scope:
    """Declarations of a kernel by name, in the order of the text."""

    kernel: ast.Kernel
    axes: dict[str, ast.Axis] = field(default_factory=dict)
    extents: dict[str, ast.Name] = field(default_factory=dict)
    divisors: dict[str, ast.Name] = field(default_factory=dict)
    tensors: dict[str, ast.Tensor] = field(default_factory=dict)
    reuses: list[ast.Tensor] = field(default_factory=list)  # `value C` without brackets
    failed_slots: set[str] = field(default_factory=set)  # slots of declarations that were dropped
    tables: dict[str, Table] = field(default_factory=dict)
    looped: tuple[str, ...] = ()  # the row and softmax indices, once they are known
    poisoned: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def report(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        note: str | None = None,
        hint: str | None = None,
        related: tuple[tuple[Span, str], ...] = (),
    ) -> None:
        self.faults.append(fault(code, message, span, note=note, hint=hint, related=related))

    def role(self, name: str) -> Role | None:
        """What `name` is, or None if nothing declares it."""
        if name in self.axes:
            return "index"
        if name in self.extents or name in self.divisors:
            return "extent"
        if name in self.tensors:
            return "tensor"
        return "table" if name in self.tables else None

    def names(self) -> list[str]:
        """Every declared name."""
        return [*self.axes, *self.extents, *self.divisors, *self.tensors, *self.tables]

    def declared_at(self, name: str) -> Span | None:
        if name in self.axes:
            return self.axes[name].name.span
        if name in self.extents:
            return self.extents[name].span
        if name in self.divisors:
            return self.divisors[name].span
        if name in self.tensors:
            return self.tensors[name].name.span
        return self.tables[name].span if name in self.tables else None

    def unknown(self, name: ast.Name, candidates: Iterable[str], what: str, hint: str | None = None) -> None:
        """Reports an unknown name, once, unless its declaration may be among the lines that did not parse."""
        if name.text in self.poisoned or self.kernel.broken:
            return
        self.poisoned.add(name.text)
        near = words.did_you_mean(name.text, candidates)
        self.report("E0201", f"{what} `{name.text}` is not declared", name.span, hint=near or hint)

    def slot(self, *slots: str) -> list[ast.Tensor]:
        """Tensors declared in any of these slots, in the order of the text."""
        return [t for t in self.tensors.values() if t.slot.text in slots]


def bare(index: tuple[ast.Expr, ...] | None) -> list[str]:
    """Names that stand alone in a bracket."""
    return [e.text for e in index or () if isinstance(e, ast.Name)]


def read(index: tuple[ast.Expr, ...] | None) -> set[str]:
    """Every name in the brackets."""
    return {n.text for e in index or () for n in ast.walk(e) if isinstance(n, ast.Name)}
