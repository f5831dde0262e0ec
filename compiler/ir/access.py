"""Tile accesses as closures: slots, tiles of global tensors in and out, and the product of two tiles.

A tile of a tensor whose indices count up along one axis each, and which lies inside, is a slice; anything else is
a gather or scatter with every live lane checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.ir import axes as ax
from tilec.ir.axes import Axes, AxisError, Lanes, Scope
from tilec.ir.evaluate import ALL, Code, Live, Run, aligned, compile_expr, spread
from tilec.ir.expr import Expr
from tilec.ir.memory import Box
from tilec.ir.nodes import Copy, Load, Slot, Store


def scalar(e: Expr, scope: Scope) -> Run:
    """A value without axes."""
    code = compile_expr(e, scope, ax.lanes_of(scope, {}, e))
    if code.axes:
        raise AxisError(f"{e} must be a scalar, but has axes {', '.join(code.axes)}")
    return code.run


@dataclass(frozen=True)
class Place:
    """A compiled slot: which stage and box of which buffer."""

    buffer: str
    stage: Run | None
    starts: tuple[Run | None, ...]  # per axis, None if it has no window
    lanes: Lanes

    @property
    def axes(self) -> Axes:
        return tuple(a for a, _ in self.lanes)

    def locate(self, f: Any) -> tuple[int, Box | None]:
        """Stage number and box (None for the whole tile)."""
        stage = 0 if self.stage is None else self.stage(f, None)
        if not any(self.starts):
            return stage, None
        box = []
        for start, (_, size) in zip(self.starts, self.lanes, strict=True):
            lo = 0 if start is None else start(f, None)
            box.append((lo, lo + size))
        return stage, tuple(box)


def place(s: Slot, scope: Scope) -> Place:
    """The slot's place."""
    lanes = ax.slot_lanes(s, scope)
    windows = {w.axis: scalar(w.start, scope) for w in s.windows}
    stage = None if s.stage is None else scalar(s.stage, scope)
    return Place(s.buffer, stage, tuple(windows.get(a) for a, _ in lanes), lanes)


def into(code: Code, want: Axes) -> Run:
    """`code` spread over the lanes `want`, which must include its axes."""
    ax.within(code.axes, want)
    return aligned(code, want)


Parts = list[tuple[int, str | None]]


def runs_along(index: list[Code]) -> Callable[[list[Any]], Parts | None]:
    """Recognises a box among index values: (first, axis) per dimension, if each is a scalar or counts up along its own axis."""
    along = [c.axes[0] if c.axes else None for c in index]
    used = [a for a in along if a is not None]
    if any(len(c.axes) > 1 for c in index) or len(set(used)) < len(used):
        return lambda values: None

    def parts(values: list[Any]) -> Parts | None:
        out: Parts = []
        for value, axis in zip(values, along, strict=True):
            if axis is None:
                out.append((value, None))
                continue
            if value[-1] - value[0] != len(value) - 1 or not (value[1:] - value[:-1] == 1).all():
                return None
            out.append((int(value[0]), axis))
        return out

    return parts


def fetch(s: Load | Copy, scope: Scope) -> Callable[[Any], Any]:
    """Reads the tile that a Load or Copy moves: `other` (0 for a Copy) where `where` is false."""
    dst = ax.slot_lanes(s.dst, scope)
    want = tuple(a for a, _ in dst)
    other = s.other if isinstance(s, Load) else None
    lanes = ax.lanes_of(scope, dict(dst), *s.index, s.where, other)
    index = [compile_expr(i, scope, lanes) for i in s.index]
    parts = runs_along(index)
    test = None if s.where is None else compile_expr(s.where, scope, lanes)
    fill = None if other is None else into(compile_expr(other, scope, lanes), want)
    for code in (*index, *(() if test is None else (test,))):
        ax.within(code.axes, want)

    def run(f: Any) -> Any:
        live, mask = None, None
        if test is not None:
            flags = test.run(f, ALL)
            if not np.all(flags):
                live, mask = Live(flags, test.axes), spread(flags, test.axes, want)
        source = f.tensors[s.tensor]
        numbers = [i.run(f, live) for i in index]
        at = parts(numbers)
        if at is not None and source.holds(at, lanes):
            value = spread(source.load_box(at, lanes), tuple(a for _, a in at if a is not None), want)
        else:
            value = source.gather([spread(n, i.axes, want) for n, i in zip(numbers, index, strict=True)], want, live)
        if mask is None:
            return value
        return np.where(mask, value, source.zero if fill is None else fill(f, None))

    return run


def store(s: Store, scope: Scope) -> Callable[[Any], None]:
    """Writes the lanes of a Store to its tensor."""
    lanes = ax.lanes_of(scope, {}, s.value, *s.index, s.where)
    shape = tuple(ax.lanes_along(a, lanes, scope) for a in s.axes)
    index = [compile_expr(i, scope, lanes) for i in s.index]
    code = compile_expr(s.value, scope, lanes)
    test = None if s.where is None else compile_expr(s.where, scope, lanes)
    for c in (code, *index, *(() if test is None else (test,))):
        ax.within(c.axes, s.axes)
    parts = runs_along(index)

    def run(f: Any) -> None:
        live, mask = None, np.True_
        if test is not None:
            flags = test.run(f, ALL)
            if not np.all(flags):
                live, mask = Live(flags, test.axes), spread(flags, test.axes, s.axes)
        target = f.tensors[s.tensor]
        numbers = [i.run(f, live) for i in index]
        value = code.run(f, live)
        at = parts(numbers) if live is None else None
        have = () if at is None else tuple(a for _, a in at if a is not None)
        if at is not None and len(have) == len(s.axes) and target.holds(at, lanes):
            f.stored(target, target.store_box(at, lanes, spread(value, code.axes, have), f.uid))
            return
        where = np.broadcast_to(mask, shape)
        at_lanes = [spread(n, i.axes, s.axes) for n, i in zip(numbers, index, strict=True)]
        f.stored(target, target.store(at_lanes, spread(value, code.axes, s.axes), where, f.uid))

    return run


def contraction(dst: Place, a: Place, b: Place) -> Callable[[Any, Any], Any]:
    """The product of two tiles over `dst`'s axes; f32 sums in an unspecified order."""
    gone = ax.contracted(dst.lanes, a.lanes, b.lanes)
    if len(a.axes) == len(b.axes) == len(dst.axes) == 2 and len(gone) == 1:
        swap = dst.axes[0] not in a.axes
        first, second = (b, a) if swap else (a, b)
        flip_first, flip_second = first.axes[1] != gone[0], second.axes[0] != gone[0]

        def product(x: Any, y: Any) -> Any:
            left, right = (y, x) if swap else (x, y)
            return (left.T if flip_first else left) @ (right.T if flip_second else right)

        return product
    letters = {axis: chr(ord("a") + i) for i, axis in enumerate(ax.union(a.axes, b.axes))}
    form = ",".join("".join(letters[x] for x in p.axes) for p in (a, b))
    form += "->" + "".join(letters[x] for x in dst.axes)
    return lambda x, y: np.einsum(form, x, y, optimize=True)
