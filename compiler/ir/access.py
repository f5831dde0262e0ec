"""Tile accesses as closures: slots, tiles of global tensors in and out, and the product of two tiles.

A tile of a tensor whose index is base + lane number in every dimension, and which lies inside, is a slice; anything else is
a gather or scatter with every live lane checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.ir import axes as ax
from tilec.ir.axes import Axes, AxisError, Lanes, Scope
from tilec.ir.evaluate import ALL, Code, Live, Run, aligned, compile_expr, spread
from tilec.ir.expr import Expr, Iota, Op
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


def part_of(e: Expr) -> tuple[Expr | None, str | None] | None:
    """`e` as base + iota(axis): (base or None, axis or None); None if two lane numbers meet."""
    match e:
        case Iota(axis):
            return None, axis
        case Op("+" | "-" as sign, (x, y)):
            left, right = part_of(x), part_of(y)
            if left is None or right is None or (right[1] is not None and (left[1] is not None or sign == "-")):
                return None
            along = left[1] or right[1]
            if along is None:
                return e, None
            if left[0] is None and right[0] is not None and sign == "-":
                return Op("neg", (right[0],)), along
            bases = [b for b in (left[0], right[0]) if b is not None]
            return (Op(sign, (bases[0], bases[1])) if len(bases) == 2 else bases[0] if bases else None), along
    return e, None


Parts = list[tuple[Run, str | None]]


def box(index: tuple[Expr, ...], scope: Scope, lanes: Mapping[str, int]) -> Parts | None:
    """Index expressions as base + lane number of distinct axes, or None if one has another form."""
    out: Parts = []
    for e in index:
        part = part_of(e)
        if part is None:
            return None
        base, axis = part
        code = Code((), "int", lambda f, live: 0) if base is None else compile_expr(base, scope, lanes)
        if code.axes or (axis is not None and any(axis == a for _, a in out)):
            return None
        out.append((code.run, axis))
    return out


def fetch(s: Load | Copy, scope: Scope) -> Callable[[Any], Any]:
    """Reads the tile that a Load or Copy moves: `other` (0 for a Copy) where `where` is false."""
    dst = ax.slot_lanes(s.dst, scope)
    want = tuple(a for a, _ in dst)
    other = s.other if isinstance(s, Load) else None
    lanes = ax.lanes_of(scope, dict(dst), *s.index, s.where, other)
    index = [into(compile_expr(i, scope, lanes), want) for i in s.index]
    parts = box(s.index, scope, lanes)
    have = () if parts is None else tuple(a for _, a in parts if a is not None)
    test = None if s.where is None else compile_expr(s.where, scope, lanes)
    fill = None if other is None else into(compile_expr(other, scope, lanes), want)
    if test is not None:
        ax.within(test.axes, want)

    def run(f: Any) -> Any:
        live, mask = None, None
        if test is not None:
            flags = test.run(f, ALL)
            if not np.all(flags):
                live, mask = Live(flags, test.axes), spread(flags, test.axes, want)
        source = f.tensors[s.tensor]
        at = None if parts is None else [(base(f, live), a) for base, a in parts]
        if at is not None and source.holds(at, lanes):
            value = spread(source.load_box(at, lanes), have, want)
        else:
            value = source.gather([i(f, live) for i in index], want, live)
        if mask is None:
            return value
        return np.where(mask, value, source.zero if fill is None else fill(f, None))

    return run


def store(s: Store, scope: Scope) -> Callable[[Any], None]:
    """Writes the lanes of a Store to its tensor."""
    lanes = ax.lanes_of(scope, {}, s.value, *s.index, s.where)
    shape = tuple(ax.lanes_along(a, lanes, scope) for a in s.axes)
    index = [into(compile_expr(i, scope, lanes), s.axes) for i in s.index]
    code = compile_expr(s.value, scope, lanes)
    value = into(code, s.axes)
    test = None if s.where is None else compile_expr(s.where, scope, lanes)
    if test is not None:
        ax.within(test.axes, s.axes)
    parts = box(s.index, scope, lanes)
    have = () if parts is None else tuple(a for _, a in parts if a is not None)
    boxed = aligned(code, have) if set(have) == set(s.axes) else None

    def run(f: Any) -> None:
        live, mask = None, np.True_
        if test is not None:
            flags = test.run(f, ALL)
            if not np.all(flags):
                live, mask = Live(flags, test.axes), spread(flags, test.axes, s.axes)
        target = f.tensors[s.tensor]
        if live is None and boxed is not None and parts is not None:
            at = [(base(f, live), a) for base, a in parts]
            if target.holds(at, lanes):
                f.stored(target, target.store_box(at, lanes, boxed(f, live), f.uid))
                return
        everywhere = np.broadcast_to(mask, shape)
        f.stored(target, target.store([i(f, live) for i in index], value(f, live), everywhere, f.uid))

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
