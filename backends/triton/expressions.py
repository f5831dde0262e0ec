"""Tile expressions as Triton text.

Axes are ordered once for a kernel (rows, keys, features); an operand that lacks an axis of the result is expanded at that
place, as late as possible, so that what varies along one axis is computed for that axis only.  `//` and `%` floor in the
IR and truncate in Triton: they are printed as such only where both operands are known not to be negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilec.backends.triton.names import Names
from tilec.ir.attention import FLOAT_DTYPES
from tilec.ir.expr import OPS, Bool, Expr, Fetch, Float, Int, Iota, Kind, Op, Read, Reduce, Var, kind_of, walk
from tilec.ir.nodes import Buffer, Global

DTYPES = {
    "bf16": "tl.bfloat16",
    "f16": "tl.float16",
    "f32": "tl.float32",
    "e4m3": "tl.float8e4nv",
    "e5m2": "tl.float8e5",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "bool": "tl.int1",
}
FNUZ = {"e4m3": "tl.float8e4b8", "e5m2": "tl.float8e5b16"}  # where fp8 has one zero and one NaN (gfx942)
NARROW = ("bf16", "f16", "e4m3", "e5m2")
FUNCTIONS = {
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sqrt": "tl.sqrt",
    "abs": "tl.abs",
    "min": "tl.minimum",
    "max": "tl.maximum",
    "where": "tl.where",
    "tanh": "tanh",
    "uniform": "uniform",
}
FLOAT_FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "tanh")
ATOM = 100


@dataclass(frozen=True)
class Text:
    """Printed expression: its text, the axes of its value in kernel order, and its precedence."""

    text: str
    axes: tuple[str, ...]
    precedence: int = ATOM

    def at(self, outer: int) -> str:
        """The text, in parentheses if it binds weaker than its surroundings."""
        return f"({self.text})" if self.precedence < outer else self.text


@dataclass
class Expressions:
    """Prints expressions of one kernel.

    `rows`: tensors whose last dimension is contiguous; `order`: all axes; `nonnegative`: scalars and buffers that never are
    negative; `positive`: extents and constants that are at least 1 in every block; `loop_names`: counters of key loops;
    `floats`: scalars that are floats; `guards`: conditions of the lanes that what is printed now is for: a read of memory in it
    happens in those lanes alone.  `helpers` collects the functions of the prelude that were used."""

    names: Names
    buffers: Mapping[str, Buffer]
    tensors: Mapping[str, Global]
    rows: frozenset[str]
    order: tuple[str, ...]
    nonnegative: set[str]
    positive: frozenset[str]
    loop_names: frozenset[str]
    floats: set[str] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)
    lanes: dict[str, str] = field(default_factory=dict)  # scalars that a search probes at many places at once
    fetch_guard: str = ""  # which of those places exist
    guards: tuple[Expr, ...] = ()

    def kind(self, e: Expr) -> Kind:
        """Integer, float or boolean."""
        kinds: dict[str, Kind] = dict.fromkeys(self.floats, "float")
        dtypes = {t.name: t.dtype for t in self.tensors.values()} | {b.name: b.dtype for b in self.buffers.values()}
        kinds |= {n: "float" if d in FLOAT_DTYPES else "bool" if d == "bool" else "int" for n, d in dtypes.items()}
        return kind_of(e, kinds)

    def show(self, e: Expr, axes: tuple[str, ...] | None = None) -> str:
        """Text of `e`, expanded to `axes` if given."""
        t = self.text(e)
        return t.text if axes is None else self.expand(t, axes).text

    def expand(self, t: Text, axes: tuple[str, ...]) -> Text:
        """`t` with missing axes inserted as `None`, which broadcast.  Scalars broadcast as they are."""
        if t.axes == axes or not t.axes:
            return t
        marks = ", ".join(":" if a in t.axes else "None" for a in axes)
        return Text(f"{t.at(ATOM)}[{marks}]", axes)

    def text(self, e: Expr) -> Text:
        """The expression in its own axes."""
        match e:
            case Int(v):
                return Text(str(v), (), ATOM if v >= 0 else 7)
            case Float(v):
                return Text(_float(v), (), ATOM if v >= 0 or math.isinf(v) else 7)
            case Bool(v):
                return Text(str(v), ())
            case Var(name):
                return Text(name, (self.lanes[name],) if name in self.lanes else ())
            case Iota(axis):
                return Text(f"lane_{axis}", (axis,))
            case Read(name, _):
                b = self.buffers[name]
                suffix = ".to(tl.float32)" if b.dtype in NARROW else ""
                return Text(name + suffix, tuple(a.name for a in b.axes))
            case Fetch(name, index):
                pointer = self.pointer(name, index)
                guard = self.fetch_guard if "seek" in pointer.axes else self._guard(pointer.axes)
                suffix = ".to(tl.float32)" if self.tensors[name].dtype in NARROW else ""
                return Text(f"tl.load({pointer.text}{guard}){suffix}", pointer.axes)
            case Reduce(op, axis, x):
                t = self.text(x)
                rest = tuple(a for a in t.axes if a != axis)
                return Text(f"tl.{op}({t.text}, axis={t.axes.index(axis)})", rest)
            case Op(name, args):
                return self._op(name, args)
        raise TypeError(f"no Triton text for {e!r}")

    def join(self, parts: list[Text]) -> tuple[list[Text], tuple[str, ...]]:
        """Operands expanded to the union of their axes."""
        present = {a for p in parts for a in p.axes}
        axes = tuple(a for a in (*self.order, "seek") if a in present)
        return [self.expand(p, axes) for p in parts], axes

    def _op(self, name: str, args: tuple[Expr, ...]) -> Text:
        match name, args:
            # (x + (n - 1)) // n with n a tile constant
            case "//", (Op("+", (x, Op("-", (n, Int(1))))), m) if n is m and self.is_nonnegative(x):
                return Text(f"tl.cdiv({self.text(x).text}, {self.text(n).text})", self.text(x).axes)
            case "//", (Op("-", (Op("+", (x, n)), Int(1))), m) if n is m and self.is_nonnegative(x):
                return Text(f"tl.cdiv({self.text(x).text}, {self.text(n).text})", self.text(x).axes)
        if name == "and":
            first = self.text(args[0])
            with self.lanes_of(args[0]):
                parts, axes = self.join([first, self.text(args[1])])
        else:
            parts, axes = self.join([self.text(a) for a in args])
        if name in FLOAT_FUNCTIONS and self.kind(args[0]) == "int":
            parts = [Text(f"tl.cast({parts[0].text}, tl.float32)", axes)]
        if name in ("//", "%") and not all(self.is_nonnegative(a) for a in args):
            helper = "floor_div" if name == "//" else "floor_mod"
            self.helpers.add(helper)
            return Text(f"{helper}({parts[0].text}, {parts[1].text})", axes)
        if name == "**":
            return self._power(args, axes)
        if name == "float":
            return Text(f"tl.cast({parts[0].text}, tl.float32)", axes)
        if name in FUNCTIONS:
            if name in ("tanh", "uniform"):
                self.helpers.add(name)
            return Text(f"{FUNCTIONS[name]}({', '.join(p.text for p in parts)})", axes)
        # Python binds `&`, `|` and `~` tighter than comparisons, unlike `and`, `or`, `not`.
        spec = OPS[name]
        if name in ("and", "or"):
            mark = "&" if name == "and" else "|"
            return Text(f" {mark} ".join(p.at(ATOM) for p in parts), axes, 2)
        if name == "not":
            return Text(f"~{parts[0].at(ATOM)}", axes, 3)
        if name == "neg":
            return Text(f"-{parts[0].at(7)}", axes, 7)
        p = spec.precedence
        left = p + 1 if p == OPS["=="].precedence else p
        return Text(f"{parts[0].at(left)} {spec.infix} {parts[1].at(p + 1)}", axes, p)

    def _power(self, args: tuple[Expr, ...], axes: tuple[str, ...]) -> Text:
        base, exponent = args
        match exponent:
            case Int(n) if 1 <= n <= 4:
                t = self.text(base)
                return Text(" * ".join([t.at(7)] * n), axes, 6)
        parts, _ = self.join([self.text(base), self.text(exponent)])
        return Text(f"tl.exp2({parts[1].at(6)} * tl.log2({parts[0].text}))", axes)

    # ------------------------------------------------------------------------------------------ memory

    @contextmanager
    def lanes_of(self, live: Expr | None) -> Iterator[None]:
        """What is printed inside is for the lanes where `live` holds."""
        before = self.guards
        self.guards = (*before, *_conjuncts(live))
        yield
        self.guards = before

    def _guard(self, axes: tuple[str, ...]) -> str:
        """The mask of a load along `axes`: the conditions that vary along them alone and read no memory themselves."""
        parts = [self.text(g) for g in dict.fromkeys(self.guards) if not any(isinstance(x, Fetch) for x in walk(g))]
        parts, along = self.join([p for p in parts if p.axes and set(p.axes) <= set(axes)])
        if not parts:
            return ""
        both = parts[0] if len(parts) == 1 else Text(" & ".join(p.at(ATOM) for p in parts), along, 2)
        mask = self.expand(both, axes)
        return f", mask={mask.text}, other=0"

    def pointer(self, tensor: str, index: tuple[Expr, ...], base: str | None = None) -> Text:
        """Address of tensor[index]: 64-bit offsets, except along a contiguous last dimension.

        With `base` the scalar terms are already in it, and only the others are added."""
        terms: list[Text] = []
        for n, i in enumerate(index):
            t = self.text(i)
            if base is not None and self.is_base(i):
                continue
            if n == len(index) - 1 and tensor in self.rows:
                terms.append(t)
            elif i is not _ZERO:
                terms.append(Text(f"{self.wide(t)} * {self.names.stride(tensor, n)}", t.axes, 6))
        parts, axes = self.join(terms)
        text = " + ".join([base or self.names.pointer(tensor), *(p.at(5) for p in parts if p.text != "0")])
        return Text(text, axes, 5)

    @staticmethod
    def wide(t: Text) -> str:
        """The index as int64."""
        return f"{t.at(ATOM)}.to(tl.int64)" if t.axes else f"tl.cast({t.text}, tl.int64)"

    def is_base(self, i: Expr) -> bool:
        """A scalar index term that does not change inside the key loop."""
        return not self.text(i).axes and not self.loop_names & _names(i)

    # ------------------------------------------------------------------------------------------ signs

    def is_nonnegative(self, e: Expr) -> bool:
        """Known not to be negative, by syntax: positions, extents, coordinates and what they add and multiply to."""
        match e:
            case Int(v):
                return v >= 0
            case Var(name):
                return name in self.nonnegative
            case Read(name, _):
                return name in self.nonnegative
            case Iota():
                return True
            case Fetch(name, _):
                return self.tensors[name].mode == "table"
            case Op("-", (x, Int(1))):
                return self.is_positive(x)
            case Op("+" | "*" | "//" | "%" | "min" | "abs", args):
                return all(self.is_nonnegative(a) for a in args)
            case Op("max", args):
                return any(self.is_nonnegative(a) for a in args)
            case Op("where", (_, a, b)):
                return self.is_nonnegative(a) and self.is_nonnegative(b)
        return False

    def is_positive(self, e: Expr) -> bool:
        """Known to be at least 1: tile constants, extents that count blocks (there is one), sums with one of these."""
        match e:
            case Int(v):
                return v > 0
            case Var(name):
                return name in self.positive
            case Op("min" | "*", args):
                return all(map(self.is_positive, args))
            case Op("+", args):
                return all(map(self.is_nonnegative, args)) and any(map(self.is_positive, args))
        return False


_ZERO = Int(0)


def _conjuncts(e: Expr | None) -> tuple[Expr, ...]:
    match e:
        case None:
            return ()
        case Op("and", args):
            return tuple(x for a in args for x in _conjuncts(a))
        case _:
            return (e,)


def _names(e: Expr) -> set[str]:
    return {x.name for x in walk(e) if isinstance(x, Var)} | {x.buffer for x in walk(e) if isinstance(x, Read)}


def _float(v: float) -> str:
    if math.isinf(v):
        return 'float("inf")' if v > 0 else 'float("-inf")'
    return repr(v)
