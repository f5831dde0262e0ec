"""The syntax tree of a `.tile` file: frozen dataclasses, one per grammar rule, each with its span.

Equality ignores spans but not comments, so that `parse(format(tree)) == tree` says that formatting loses nothing.
Parentheses are not kept: the tree's shape says the grouping and the formatter writes back the fewest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilec.dsl.spans import Span

NOWHERE = Span(0, 0, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Node:
    span: Span = field(default=NOWHERE, compare=False, repr=False)


# Expressions.


@dataclass(frozen=True)
class Name(Node):
    """An identifier, where it is declared as well as where it is used."""

    text: str


@dataclass(frozen=True)
class Integer(Node):
    value: int


@dataclass(frozen=True)
class Real(Node):
    """A literal with a point or an exponent, or `inf`.  `text` is how it was written, for the formatter."""

    value: float
    text: str = field(default="", compare=False)


@dataclass(frozen=True)
class Boolean(Node):
    value: bool


@dataclass(frozen=True)
class Unary(Node):
    """`-` or `not`."""

    op: str
    operand: Expr


@dataclass(frozen=True)
class Binary(Node):
    """`+ - * / // % ** and or`."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Compare(Node):
    """`a < b`, or a chain `a <= b < c`, which means `a <= b and b < c`; one more operand than operators."""

    operands: tuple[Expr, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Call(Node):
    function: Name
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Load(Node):
    """`doc[b, q]`: one element of a tensor or table."""

    tensor: Name
    index: tuple[Expr, ...]


Expr = Name | Integer | Real | Boolean | Unary | Binary | Compare | Call | Load


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, left to right."""
    match e:
        case Unary(_, x):
            return (x,)
        case Binary(_, x, y):
            return (x, y)
        case Compare(xs, _) | Call(_, xs) | Load(_, xs):
            return xs
        case _:
            return ()


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and every sub-expression, parents first."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(children(x)))


# Statements.


@dataclass(frozen=True)
class Notes:
    """What surrounds a statement: comment lines before it ("" is a blank line) and a comment after it on its line."""

    before: tuple[str, ...] = ()
    after: str | None = None


@dataclass(frozen=True, kw_only=True)
class Statement(Node):
    notes: Notes = Notes()


@dataclass(frozen=True)
class Stored(Node):
    """`packed cu_q` or `lengths seqlen_k`."""

    kind: str
    table: Name


@dataclass(frozen=True)
class Axis(Node):
    name: Name
    extent: Expr
    stored: Stored | None = None


@dataclass(frozen=True)
class Index(Statement):
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Scaled(Node):
    """`scaled qs[b, h]`."""

    load: Load


@dataclass(frozen=True)
class Paged(Node):
    """`paged table[b, k // 64]`."""

    load: Load


@dataclass(frozen=True)
class Fact(Node):
    word: str


Tail = Scaled | Paged | Fact


@dataclass(frozen=True)
class Tensor(Statement):
    """`SLOT NAME[index, …] : dtype tail…`; a `value C` that reuses a key has neither index nor dtype."""

    slot: Name
    name: Name
    index: tuple[Expr, ...] | None
    dtype: Name | None
    tails: tuple[Tail, ...] = ()


@dataclass(frozen=True)
class Scale(Statement):
    value: Expr


@dataclass(frozen=True)
class Score(Statement):
    target: Name
    value: Expr


@dataclass(frozen=True)
class Mask(Statement):
    value: Expr


@dataclass(frozen=True)
class Grad(Statement):
    """`order`: `deterministic`, `atomic`, or None when not written."""

    names: tuple[Name, ...]
    order: Name | None = None


@dataclass(frozen=True)
class Assume(Statement):
    value: Expr


@dataclass(frozen=True)
class Dropout(Statement):
    rate: Expr


KernelStatement = Index | Tensor | Scale | Score | Mask | Grad | Assume | Dropout


# Schedule statements.


@dataclass(frozen=True)
class Pin(Node):
    name: Name
    value: Integer


@dataclass(frozen=True)
class Tile(Statement):
    pins: tuple[Pin, ...]


@dataclass(frozen=True)
class Tune(Statement):
    name: Name
    choices: tuple[Integer, ...]


@dataclass(frozen=True)
class Argument(Node):
    """`consumer = 2`, or `4` alone."""

    name: Name | None
    value: Integer


@dataclass(frozen=True)
class Warps(Statement):
    strategy: Name
    args: tuple[Argument, ...] | None = None


@dataclass(frozen=True)
class Stages(Statement):
    count: Integer


@dataclass(frozen=True)
class Overlap(Statement):
    word: Name


@dataclass(frozen=True)
class Rescale(Statement):
    word: Name
    bound: Integer | Real | None = None


@dataclass(frozen=True)
class Skip(Statement):
    word: Name


@dataclass(frozen=True)
class Order(Statement):
    names: tuple[Name, ...]


@dataclass(frozen=True)
class Split(Statement):
    """`count` is None for `auto`."""

    name: Name
    count: Integer | None


@dataclass(frozen=True)
class Map(Statement):
    word: Name
    by: Name | None = None


@dataclass(frozen=True)
class Cluster(Statement):
    size: Integer


ScheduleStatement = Tile | Tune | Warps | Stages | Overlap | Rescale | Skip | Order | Split | Map | Cluster


# Blocks.


@dataclass(frozen=True, kw_only=True)
class Block(Statement):
    """`closing`: comment lines between the last statement and the brace.  `compact`: written on one line.  `broken`: some
    statement did not parse and was left out, so that nothing can be said about what is missing."""

    closing: tuple[str, ...] = ()
    compact: bool = field(default=False, compare=False)
    broken: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Kernel(Block):
    name: Name
    statements: tuple[KernelStatement, ...]


@dataclass(frozen=True)
class Schedule(Block):
    kernel: Name
    target: Name
    statements: tuple[ScheduleStatement, ...]


@dataclass(frozen=True)
class File(Node):
    blocks: tuple[Kernel | Schedule, ...]
    closing: tuple[str, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(b for b in self.blocks if isinstance(b, Kernel))

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(b for b in self.blocks if isinstance(b, Schedule))
