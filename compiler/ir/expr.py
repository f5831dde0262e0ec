"""Scalar expressions, shared by the attention IR, the mask prover and the tile program.

An expression means one value per lane of a tile.  Which lanes there are follows from its leaves: `Iota` and
`Read` carry named tile axes (`q`, `k`, `d`), everything else is a scalar, and operands broadcast by axis *name*.
There are three kinds of value: integers (unbounded in meaning; the emitters choose 32 or 64 bits), floats (f32 on
a target, float64 in the oracle) and booleans.  `//` and `%` floor.  `/` is a float division.

Nodes are interned: equal expressions are one object, so passes and the prover compare with `is` and use nodes as
dictionary keys.  They carry no spans; `Attention.spans` remembers where in the spec an expression was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

Kind = Literal["int", "float", "bool"]
T = TypeVar("T")


_POOL: WeakValueDictionary[Any, Any] = WeakValueDictionary()


class Interned(type):
    """Makes `C(args)` return the one live instance with these field values (floats compared by their bits)."""

    def __call__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        node = type.__call__(cls, *args, **kwargs)
        values = tuple(getattr(node, f.name) for f in fields(node))
        key = (cls, *(repr(v) if isinstance(v, float) else v for v in values))
        found: T = _POOL.setdefault(key, node)
        return found


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Expr(metaclass=Interned):
    """Base of all expressions.  Frozen and interned: identity is equality."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    def __deepcopy__(self, memo: Any) -> Expr:
        return self

    def __str__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Int(Expr):
    value: int


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Float(Expr):
    value: float


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Bool(Expr):
    value: bool


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Var(Expr):
    """A named scalar.

    In an Attention: an index (`q`, `k`, `h`, …), an extent (`M`), or the running score `s`.
    In a tile program: an extent, a tile constant (`TQ`), a `let`, a loop counter, `cta`, or a role's instance id.
    """

    name: str


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Read(Expr):
    """The value of a buffer, one element per lane of its axes.  Tile programs only."""

    buffer: str
    stage: Expr | None = None


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Iota(Expr):
    """0, 1, 2, … along a tile axis.  Tile programs only."""

    axis: str


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Fetch(Expr):
    """One element of a global tensor per lane: a param, a bias, a length, a block-table entry."""

    tensor: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Reduce(Expr):
    """`max` or `sum` of `x` along a tile axis, which the result no longer has.  Tile programs only.

    `chains`: how many partial results a thread has of its elements before they become one, which says in what order sums are
    made; 0: as the printer does."""

    op: Literal["max", "sum"]
    axis: str
    x: Expr
    chains: int = 0


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Op(Expr):
    """An operator or function of `OPS` applied to its arguments."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class OpSpec:
    """`result`: the kind of the value, or `join` for the widest kind of the operands."""

    arity: int
    result: Literal["int", "float", "bool", "join"]
    precedence: int = 100  # of an infix or prefix operator; functions bind tightest
    infix: str | None = None


OPS: dict[str, OpSpec] = {
    "or": OpSpec(2, "bool", 1, "or"),
    "and": OpSpec(2, "bool", 2, "and"),
    "not": OpSpec(1, "bool", 3),
    "==": OpSpec(2, "bool", 4, "=="),
    "!=": OpSpec(2, "bool", 4, "!="),
    "<=": OpSpec(2, "bool", 4, "<="),
    "<": OpSpec(2, "bool", 4, "<"),
    ">=": OpSpec(2, "bool", 4, ">="),
    ">": OpSpec(2, "bool", 4, ">"),
    "+": OpSpec(2, "join", 5, "+"),
    "-": OpSpec(2, "join", 5, "-"),
    "*": OpSpec(2, "join", 6, "*"),
    "/": OpSpec(2, "float", 6, "/"),
    "//": OpSpec(2, "join", 6, "//"),
    "%": OpSpec(2, "join", 6, "%"),
    "neg": OpSpec(1, "join", 7),
    "**": OpSpec(2, "join", 8, "**"),
    "abs": OpSpec(1, "join"),
    "min": OpSpec(2, "join"),
    "max": OpSpec(2, "join"),
    "where": OpSpec(3, "join"),
    "tanh": OpSpec(1, "float"),
    "exp": OpSpec(1, "float"),
    "exp2": OpSpec(1, "float"),
    "log": OpSpec(1, "float"),
    "log2": OpSpec(1, "float"),
    "sqrt": OpSpec(1, "float"),
    "float": OpSpec(1, "float"),  # integer to f32, round to nearest
    # uniform(seed, offset, b, h, q, k): Philox4x32-10 with key (seed low, seed high + offset) and counter (k, q, h, b);
    # the upper 24 bits of the first output word, times 2**-24.  The same bits on every target and in both passes.
    "uniform": OpSpec(6, "float"),
}

COMPARISONS = ("==", "!=", "<=", "<", ">=", ">")
NEG_INFINITY = Float(float("-inf"))
TRUE, FALSE = Bool(True), Bool(False)
ZERO, ONE = Int(0), Int(1)


def lift(x: Expr | int | float | bool) -> Expr:
    """A Python number as a constant expression; expressions pass through."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, bool):
        return Bool(x)
    return Int(x) if isinstance(x, int) else Float(x)


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, in printing order."""
    match e:
        case Op(_, args) | Fetch(_, args):
            return args
        case Reduce(_, _, x):
            return (x,)
        case Read(_, stage) if stage is not None:
            return (stage,)
        case _:
            return ()


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """`e` with its direct sub-expressions replaced."""
    match e:
        case Op(name, _):
            return Op(name, parts)
        case Fetch(tensor, _):
            return Fetch(tensor, parts)
        case Reduce(op, axis, _, chains):
            return Reduce(op, axis, parts[0], chains)
        case Read(buffer, stage) if stage is not None:
            return Read(buffer, parts[0])
        case _:
            return e


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and every sub-expression, parents first."""
    yield e
    for c in children(e):
        yield from walk(c)


def transform(e: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Bottom-up rewriting: each node, after its children, is replaced by `rule(node)` unless that is None."""
    done: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        if x not in done:
            parts = children(x)
            new = rebuild(x, tuple(go(p) for p in parts)) if parts else x
            replaced = rule(new)
            done[x] = new if replaced is None else replaced
        return done[x]

    return go(e)


def substitute(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """Replaces sub-expressions top-down; what was put in is not visited again."""
    if e in env:
        return env[e]
    parts = children(e)
    return rebuild(e, tuple(substitute(p, env) for p in parts)) if parts else e


def free_vars(e: Expr) -> frozenset[str]:
    """Names of all `Var` leaves."""
    return frozenset(x.name for x in walk(e) if isinstance(x, Var))


def kind_of(e: Expr, kinds: Mapping[str, Kind]) -> Kind:
    """The kind of value `e` has; `kinds` gives that of variables, buffers and tensors by name (default: int)."""
    match e:
        case Int() | Iota():
            return "int"
        case Float():
            return "float"
        case Bool():
            return "bool"
        case Var(name) | Read(name, _) | Fetch(name, _):
            return kinds.get(name, "int")
        case Reduce(_, _, x):
            return kind_of(x, kinds)
        case Op(name, args):
            result = OPS[name].result
            if result != "join":
                return result
            of = [kind_of(a, kinds) for a in (args[1:] if name == "where" else args)]
            return "float" if "float" in of else "bool" if all(k == "bool" for k in of) else "int"
    raise TypeError(f"not an expression: {e!r}")


def show(e: Expr) -> str:
    """Infix text with the fewest parentheses; `ir.parse` reads it back to the same object."""
    return _show(e, 0)


def _show(e: Expr, outer: int) -> str:
    match e:
        case Int(v):
            return f"({v})" if v < 0 and outer > 5 else str(v)
        case Float(v):
            text = repr(v)
            return f"({text})" if text[0] == "-" and outer > 5 else text
        case Bool(v):
            return "true" if v else "false"
        case Var(name):
            return name
        case Read(buffer, stage):
            return f"@{buffer}" if stage is None else f"@{buffer}[{_show(stage, 0)}]"
        case Iota(axis):
            return f"iota({axis})"
        case Fetch(tensor, index):
            return f"{tensor}[{', '.join(_show(i, 0) for i in index)}]"
        case Reduce(op, axis, x, chains):
            return f"{op}[{axis}{f', {chains}' if chains else ''}]({_show(x, 0)})"
        case Op(name, args):
            spec = OPS[name]
            if spec.infix is not None:
                # Comparisons do not chain and `**` binds right; every other operator binds left.
                left, right = spec.precedence, spec.precedence + 1
                if name in COMPARISONS:
                    left = right
                elif name == "**":
                    left, right = right, left
                text = f"{_show(args[0], left)} {spec.infix} {_show(args[1], right)}"
            elif name == "neg":
                # `-3` is the constant; its negation is `-(3)`.
                literal = isinstance(args[0], Int | Float) and _show(args[0], 0)[0] != "-"
                text = f"-({_show(args[0], 0)})" if literal else f"-{_show(args[0], spec.precedence)}"
            elif name == "not":
                text = f"not {_show(args[0], spec.precedence)}"
            else:
                return f"{name}({', '.join(_show(a, 0) for a in args)})"
            return f"({text})" if spec.precedence < outer else text
    raise TypeError(f"not an expression: {e!r}")
