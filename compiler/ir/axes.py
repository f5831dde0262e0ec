"""Axes, lanes and kinds of what stands in a role, known before it runs: shared by `ir.verify` and `ir.interp`.

Within one statement an axis has one number of lanes, which its slots and the buffers it reads agree on; only where neither
has the axis do all buffers in scope decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from tilec.ir.attention import BYTES, FLOAT_DTYPES
from tilec.ir.expr import Expr, Int, Iota, Kind, Op, Read, Reduce, Var, children, kind_of, walk
from tilec.ir.nodes import Buffer, Let, Program, Role, Slot, Stmt
from tilec.ir.nodes import walk as walk_statements

Axes = tuple[str, ...]
Lanes = tuple[tuple[str, int], ...]  # (axis, lanes), in order


class AxisError(ValueError):
    """Axes or lane counts of a statement do not fit, or cannot be known."""


@dataclass
class Scope:
    """What is known of names in one role: kinds, lanes of each buffer, tile constants."""

    kinds: Mapping[str, Kind]
    sizes: Mapping[str, Lanes]
    constants: Mapping[str, int]
    agreed: dict[str, int] = field(init=False)  # lanes of axes on which all buffers in scope agree

    def __post_init__(self) -> None:
        seen: dict[str, set[int]] = {}
        for lanes in self.sizes.values():
            for axis, size in lanes:
                seen.setdefault(axis, set()).add(size)
        self.agreed = {axis: min(s) for axis, s in seen.items() if len(s) == 1}


def kind_of_dtype(dtype: str) -> Kind:
    """Kind of the values a buffer or tensor of this dtype holds."""
    return "float" if dtype in FLOAT_DTYPES else "bool" if dtype == "bool" else "int"


def constant(e: Expr, constants: Mapping[str, int]) -> int | None:
    """Value of an integer expression over tile constants; None if it is none."""
    match e:
        case Int(v):
            return v
        case Var(name):
            return constants.get(name)
        case Op("neg", (x,)):
            value = constant(x, constants)
            return None if value is None else -value
        case Op(name, (x, y)):
            a, b = constant(x, constants), constant(y, constants)
            if a is None or b is None or (name in ("//", "%") and b == 0):
                return None
            match name:
                case "+":
                    return a + b
                case "-":
                    return a - b
                case "*":
                    return a * b
                case "//":
                    return a // b
                case "%":
                    return a % b
                case "min":
                    return min(a, b)
                case "max":
                    return max(a, b)
    return None


def buffer_lanes(buffers: tuple[Buffer, ...], constants: Mapping[str, int]) -> dict[str, Lanes]:
    """Lanes along each axis of each buffer.  AxisError where a size is not a positive constant."""
    out: dict[str, Lanes] = {}
    for b in buffers:
        lanes = []
        for a in b.axes:
            size = constant(a.size, constants)
            if size is None or size <= 0:
                raise AxisError(f"axis {a.name} of {b.name} has size {a.size}, which is no positive constant")
            lanes.append((a.name, size))
        out[b.name] = tuple(lanes)
    return out


def stage_bytes(b: Buffer, constants: Mapping[str, int]) -> int:
    """Bytes of one stage as it lies in memory: a layout may have room for more `columns` than the last axis has lanes."""
    (lanes,) = buffer_lanes((b,), constants).values()
    sizes = [n for _, n in lanes]
    columns = dict(b.layout.params).get("columns") if b.layout else None
    if columns is not None:
        sizes[-1] = int(columns)
    return prod(sizes, start=BYTES[b.dtype])


def scope_of(p: Program, role: Role) -> Scope:
    """The scope of a role's body.  AxisError where the size of a buffer is unknown."""
    constants = dict(p.tile)
    buffers = (*p.buffers, *role.buffers)
    kinds = {t.name: kind_of_dtype(t.dtype) for t in p.tensors} | {b.name: kind_of_dtype(b.dtype) for b in buffers}
    return Scope(infer_kinds(role.body, kinds), buffer_lanes(buffers, constants), constants)


def infer_kinds(body: tuple[Stmt, ...], known: Mapping[str, Kind]) -> dict[str, Kind]:
    """Kinds of the role's scalars beside `known` ones: the widest of what each is given; int by default."""
    kinds = dict(known)
    rank: dict[Kind, int] = {"bool": 0, "int": 1, "float": 2}
    lets = [s for s in walk_statements(body) if isinstance(s, Let)]
    for _ in range(len(lets) + 1):
        given: dict[str, Kind] = {}
        for s in lets:
            kind = kind_of(s.value, kinds)
            given[s.name] = max(kind, given.get(s.name, kind), key=rank.__getitem__)
        if all(kinds.get(n) == k for n, k in given.items()):
            break
        kinds.update(given)
    return kinds


def union(*groups: Axes) -> Axes:
    """Axes of several values, in order of first mention."""
    return tuple(dict.fromkeys(a for g in groups for a in g))


def axes_of(e: Expr, scope: Scope) -> Axes:
    """Axes of a value.  AxisError where it reads a buffer that is not in scope."""
    match e:
        case Iota(axis):
            return (axis,)
        case Read(buffer, _):
            return tuple(a for a, _ in read_lanes(buffer, scope))
        case Reduce(_, axis, x):
            return tuple(a for a in axes_of(x, scope) if a != axis)
    return union(*(axes_of(c, scope) for c in children(e)))


def read_lanes(buffer: str, scope: Scope) -> Lanes:
    """Lanes of a buffer in scope; AxisError if there is none of that name."""
    if buffer not in scope.sizes:
        raise AxisError(f"there is no buffer {buffer} here")
    return scope.sizes[buffer]


def lanes_of(scope: Scope, fixed: Mapping[str, int], *exprs: Expr | None) -> dict[str, int]:
    """Lanes along each axis of one statement: those of its slots (`fixed`) and of the buffers it reads."""
    out = dict(fixed)
    parts = [x for e in exprs if e is not None for x in walk(e)]
    for x in parts:
        for axis, size in read_lanes(x.buffer, scope) if isinstance(x, Read) else ():
            if out.setdefault(axis, size) != size:
                raise AxisError(f"axis {axis} has {out[axis]} lanes, but {size} in {x}")
    for x in parts:
        if isinstance(x, Iota | Reduce):
            lanes_along(x.axis, out, scope)
    return out


def lanes_along(axis: str, lanes: dict[str, int], scope: Scope) -> int:
    """Lanes along an axis of a statement, found from the scope if nothing in the statement says."""
    if axis not in lanes:
        if axis not in scope.agreed:
            raise AxisError(f"the number of lanes along {axis} is not known here")
        lanes[axis] = scope.agreed[axis]
    return lanes[axis]


def slot_lanes(s: Slot, scope: Scope) -> Lanes:
    """Lanes of a slot: those of its windows, else of its buffer."""
    lanes = dict(read_lanes(s.buffer, scope))
    for w in s.windows:
        if w.axis not in lanes:
            raise AxisError(f"{s.buffer} has no axis {w.axis}")
        size = constant(w.size, scope.constants)
        if size is None or size <= 0:
            raise AxisError(f"the window of {s.buffer} has size {w.size}, which is no positive constant")
        lanes[w.axis] = size
    return tuple(lanes.items())


def within(axes: Axes, want: Axes) -> None:
    """AxisError if a value has axes that its destination lacks."""
    if extra := [a for a in axes if a not in want]:
        raise AxisError(f"the value has axes {', '.join(extra)}, which the destination lacks")


def contracted(dst: Lanes, a: Lanes, b: Lanes) -> Axes:
    """Axes that an Mma contracts: those of both operands that the destination lacks.  AxisError if the axes do not fit."""
    sizes: dict[str, int] = {}
    for axis, n in (*a, *b, *dst):
        if sizes.setdefault(axis, n) != n:
            raise AxisError(f"axis {axis} has {sizes[axis]} and {n} lanes in one mma")
    left, right, out = ({x for x, _ in lanes} for lanes in (a, b, dst))
    if stray := [x for x in sizes if (x in out) != (x in left or x in right) and x not in left & right]:
        raise AxisError(f"axis {stray[0]} of an mma is neither contracted nor in both an operand and the destination")
    gone = tuple(x for x in sizes if x in left & right and x not in out)
    if not gone:
        raise AxisError("the operands of an mma share no axis to contract")
    return gone
