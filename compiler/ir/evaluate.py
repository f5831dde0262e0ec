"""Expressions of a tile program as NumPy closures, with broadcasting by axis name resolved beforehand.

A value is a Python int or bool, an `np.float32`, or an array of int64, float32 or bool whose dimensions are the axes of
its `Code`, in that order.  Floats are IEEE f32 throughout.  `where` with a scalar condition and
`and` and `or` with a scalar on the left are lazy, as `?:`, `&&` and `||` are.

*Live lanes.*  Every closure takes the lanes it is evaluated for, or None for all.  A `Fetch` outside its tensor is an error in a
live lane and reads element 0 in a dead one.  Only Load, Copy and Store narrow the live lanes, by their `where`; within it `and`
narrows them from left to right.  So a `Fetch` in a Compute happens for every lane, whatever `where(…)` stands around it: a
pass that needs a guarded read loads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilec.ir.axes import Axes, Scope, read_lanes, union
from tilec.ir.expr import OPS, Bool, Expr, Fetch, Float, Int, Iota, Kind, Op, Read, Reduce, Var, kind_of
from tilec.ir.philox import uniform


@dataclass(frozen=True)
class Live:
    """A boolean value that says which lanes count."""

    mask: Any
    axes: Axes


class Frame(Protocol):
    """What running code reads: scalars by name, buffers, and global tensors."""

    vars: dict[str, Any]

    def read(self, buffer: str, stage: int) -> Any: ...

    def gather(self, tensor: str, index: list[Any], axes: Axes, live: Live | None) -> Any: ...

    def unbound(self, name: str) -> Exception: ...


Run = Callable[[Any, Live | None], Any]


@dataclass(frozen=True)
class Code:
    """A compiled expression: `run(frame, live)` gives an array over `axes`, or a scalar if there are none."""

    axes: Axes
    kind: Kind
    run: Run


def spread(value: Any, have: Axes, want: Axes) -> Any:
    """`value` over axes `have` as a view that broadcasts over axes `want`, which includes them."""
    if have == want or not have:
        return value
    order = tuple(have.index(a) for a in want if a in have)
    if order != tuple(range(len(have))):
        value = value.transpose(order)
    return value[tuple(slice(None) if a in have else None for a in want)]


def aligned(code: Code, want: Axes) -> Run:
    """`code.run`, its value spread over `want`."""
    run, have = code.run, code.axes
    if have == want or not have:
        return run
    return lambda f, live: spread(run(f, live), have, want)


def project(live: Live, want: Axes) -> Any:
    """Live lanes as a mask that broadcasts over `want`: a lane counts if any lane that maps to it does."""
    mask, axes = live.mask, live.axes
    gone = tuple(i for i, a in enumerate(axes) if a not in want)
    if gone and isinstance(mask, np.ndarray):
        mask = mask.any(axis=gone)
    return spread(mask, tuple(a for a in axes if a in want), want)


def narrow(live: Live | None, mask: Any, axes: Axes) -> Live | None:
    """Live lanes that also satisfy `mask`."""
    if live is None:
        return None
    both = union(live.axes, axes)
    return Live(spread(live.mask, live.axes, both) & spread(mask, axes, both), both)


ALL = Live(np.True_, ())


def compile_expr(e: Expr, scope: Scope, lanes: Mapping[str, int]) -> Code:
    """The closure for `e` in a statement with these lanes.  AxisError if axes do not fit."""
    kind = kind_of(e, scope.kinds)
    match e:
        case Int(v) | Bool(v):
            return Code((), kind, lambda f, live: v)
        case Float(v):
            constant = np.float32(v)
            return Code((), kind, lambda f, live: constant)
        case Var(name):
            return Code((), kind, _variable(name, scope))
        case Iota(axis):
            numbers = np.arange(lanes[axis], dtype=np.int64)
            return Code((axis,), kind, lambda f, live: numbers)
        case Read(buffer, stage):
            axes = tuple(a for a, _ in read_lanes(buffer, scope))
            if stage is None:
                return Code(axes, kind, lambda f, live: f.read(buffer, 0))
            at = compile_expr(stage, scope, lanes).run
            return Code(axes, kind, lambda f, live: f.read(buffer, at(f, None)))
        case Fetch(tensor, index):
            parts = [compile_expr(i, scope, lanes) for i in index]
            axes = union(*(p.axes for p in parts))
            runs = [aligned(p, axes) for p in parts]
            return Code(axes, kind, lambda f, live: f.gather(tensor, [r(f, live) for r in runs], axes, live))
        case Reduce(op, axis, x):
            return _reduce(op, axis, compile_expr(x, scope, lanes), lanes[axis])
        case Op(name, args):
            return _operator(name, [compile_expr(a, scope, lanes) for a in args], kind, lanes)
    raise TypeError(f"not an expression: {e!r}")


def _variable(name: str, scope: Scope) -> Run:
    if name in scope.constants:
        value = scope.constants[name]
        return lambda f, live: value

    def run(f: Frame, live: Live | None) -> Any:
        try:
            return f.vars[name]
        except KeyError:
            raise f.unbound(name) from None

    return run


def _reduce(op: str, axis: str, x: Code, size: int) -> Code:
    run, axes = x.run, tuple(a for a in x.axes if a != axis)
    if axis not in x.axes:
        if op == "max":
            return x
        times = size if x.kind == "int" else np.float32(size)
        return Code(axes, x.kind, lambda f, live: run(f, live) * times)
    at = x.axes.index(axis)
    fold = np.max if op == "max" else np.sum

    def tile(f: Frame, live: Live | None) -> Any:
        return fold(run(f, live), axis=at)

    if axes:
        return Code(axes, x.kind, tile)
    convert = _SCALAR[x.kind]
    return Code(axes, x.kind, lambda f, live: convert(tile(f, live)))


_SCALAR: dict[Kind, Callable[[Any], Any]] = {"int": int, "bool": bool, "float": np.float32}


def _as_float(code: Code) -> Code:
    """`code` converted to f32, round to nearest even."""
    if code.kind == "float":
        return code
    run = code.run
    if code.axes:
        return Code(code.axes, "float", lambda f, live: run(f, live).astype(np.float32))
    return Code((), "float", lambda f, live: np.float32(run(f, live)))


# Functions of scalars where Python's own differ from NumPy's on arrays.
_TILE: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
    "min": np.minimum,
    "max": np.maximum,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "not": np.logical_not,
    "tanh": np.tanh,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "float": lambda x: x,
}
_PYTHON: dict[str, Callable[..., Any]] = {"min": min, "max": max, "not": operator.not_}
_COMPARES = frozenset({"==", "!=", "<=", "<", ">=", ">"})


def _operator(name: str, args: list[Code], kind: Kind, lanes: Mapping[str, int]) -> Code:
    if name in ("and", "or"):
        return _connective(name, args[0], args[1], lanes=lanes)
    if name == "where":
        return _where(*args, kind=kind, lanes=lanes)
    axes = union(*(a.axes for a in args))
    if name == "uniform":
        seed, offset, *position = (aligned(a, axes) for a in args)

        def draw(f: Frame, live: Live | None) -> Any:
            value = uniform(seed(f, live), offset(f, live), *(p(f, live) for p in position))
            return value if axes else np.float32(value)

        return Code(axes, "float", draw)
    float_operands = kind == "float" or (name in _COMPARES and any(a.kind == "float" for a in args))
    if float_operands:
        args = [_as_float(a) for a in args]
    fn = _TILE[name] if axes or float_operands else _PYTHON.get(name, _TILE[name])
    runs = [aligned(a, axes) for a in args]
    if len(runs) == 1:
        (x,) = runs
        return Code(axes, kind, lambda f, live: fn(x(f, live)))
    x, y = runs
    if name in _COMPARES and not axes:
        return Code(axes, kind, lambda f, live: bool(fn(x(f, live), y(f, live))))
    return Code(axes, kind, lambda f, live: fn(x(f, live), y(f, live)))


def _shape(axes: Axes, lanes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(lanes[a] for a in axes)


def _connective(name: str, a: Code, b: Code, *, lanes: Mapping[str, int]) -> Code:
    """A scalar left operand that decides leaves the right one alone."""
    axes = union(a.axes, b.axes)
    x, y = aligned(a, axes), aligned(b, axes)
    decides = name == "or"
    if not axes:
        if name == "and":
            return Code(axes, "bool", lambda f, live: x(f, live) and y(f, live))
        return Code(axes, "bool", lambda f, live: x(f, live) or y(f, live))
    if not a.axes:
        constant = np.full(_shape(axes, lanes), decides)
        return Code(axes, "bool", lambda f, live: constant if x(f, live) == decides else y(f, live))

    def both(f: Frame, live: Live | None) -> Any:
        left = x(f, live)
        return left & y(f, narrow(live, left, axes))

    return Code(axes, "bool", both if name == "and" else lambda f, live: x(f, live) | y(f, live))


def _where(c: Code, a: Code, b: Code, *, kind: Kind, lanes: Mapping[str, int]) -> Code:
    """A scalar condition leaves the other value alone."""
    if kind == "float":
        a, b = _as_float(a), _as_float(b)
    axes = union(c.axes, a.axes, b.axes)
    test, x, y = aligned(c, axes), aligned(a, axes), aligned(b, axes)
    if c.axes:
        return Code(axes, kind, lambda f, live: np.where(test(f, live), x(f, live), y(f, live)))
    if a.axes == b.axes:
        return Code(axes, kind, lambda f, live: x(f, live) if test(f, live) else y(f, live))
    shape = _shape(axes, lanes)
    return Code(axes, kind, lambda f, live: np.broadcast_to(x(f, live) if test(f, live) else y(f, live), shape))


assert set(_TILE) | {"and", "or", "where", "uniform"} == set(OPS)
