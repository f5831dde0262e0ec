"""Memory of the interpreter: tiles (buffers) that know what was written to them, and bounds-checked global tensors.

Floats of every dtype are held as float32 arrays whose values lie on the dtype's grid: a store rounds once, to nearest even,
through ml_dtypes; NaN for what fp8 cannot hold.  Integers are int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilec.ir.attention import FLOAT_DTYPES
from tilec.ir.axes import kind_of_dtype
from tilec.ir.errors import CallError, OutOfBounds, Undefined
from tilec.ir.evaluate import Live, project
from tilec.ir.expr import Kind

Box = tuple[tuple[int, int], ...]  # [lo, hi) per axis


def storage_dtype(dtype: str, target: str) -> np.dtype[Any]:
    """The NumPy dtype with this dtype's grid; `e4m3` and `e5m2` are FNUZ on gfx942, OCP elsewhere."""
    if dtype in ("e4m3", "e5m2"):
        dtype += "fnuz" if target.startswith("gfx94") else "ocp"
    return _STORAGE[dtype]


_STORAGE: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "e4m3ocp": np.dtype(ml_dtypes.float8_e4m3fn),
    "e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "e5m2ocp": np.dtype(ml_dtypes.float8_e5m2),
    "e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}


def rounding(dtype: str, target: str) -> Callable[[Any], Any] | None:
    """Rounds float32 values to the dtype's grid; None if that is the identity."""
    if dtype not in FLOAT_DTYPES or dtype == "f32":
        return None
    grid = storage_dtype(dtype, target)

    def to_grid(x: Any) -> Any:
        return np.asarray(x, dtype=np.float32).astype(grid).astype(np.float32)

    return to_grid


_HELD: dict[Kind, type] = {"float": np.float32, "int": np.int64, "bool": np.bool_}


class Tile:
    """One buffer: an array per stage and, per stage, whether it was written (None, all, or a mask of lanes)."""

    def __init__(self, name: str, axes: tuple[tuple[str, int], ...], stages: int, dtype: str, target: str) -> None:
        self.name = name
        self.axes = tuple(a for a, _ in axes)
        self.shape = tuple(n for _, n in axes)
        self.stages = stages
        self.kind = kind_of_dtype(dtype)
        self.round = rounding(dtype, target)
        self.data: list[Any] = [None] * stages
        self.defined: list[Any] = [None] * stages
        self.peers: tuple[Tile, ...] = ()  # buffers in the same memory: a write here destroys their contents
        self.whole: Box = tuple((0, n) for n in self.shape)

    def check_stage(self, stage: int) -> None:
        """OutOfBounds if there is no such stage."""
        if not 0 <= stage < self.stages:
            raise OutOfBounds(f"stage {stage} of {self.name}, which has {self.stages}")

    def read(self, stage: int, box: Box | None = None) -> Any:
        """Values of a stage, or of a box of it; a scalar buffer gives a scalar."""
        defined = self.defined[stage]
        if defined is not True:
            part = defined if box is None or defined is None else defined[_slices(box)]
            if part is None or not np.all(part):
                label = f"{self.name}[{stage}]" if self.stages > 1 else self.name
                raise Undefined(
                    f"{label} is read, but {'parts of it were' if part is not None else 'it was'} never written"
                )
        data = self.data[stage]
        return data if box is None or not self.shape else data[_slices(box)]

    def write(self, stage: int, value: Any, box: Box | None = None) -> None:
        """Stores a value that broadcasts over the stage's (or the box's) lanes, rounded to the dtype."""
        for peer in self.peers:
            peer.defined = [None] * peer.stages
        if self.round is not None:
            value = self.round(value)
        if not self.shape:
            self.data[stage] = np.float32(value) if self.kind == "float" else value
            self.defined[stage] = True
            return
        held = _HELD[self.kind]
        if box is None or box == self.whole:
            if not isinstance(value, np.ndarray) or value.shape != self.shape or value.dtype != held:
                value = np.broadcast_to(np.asarray(value, dtype=held), self.shape)
            self.data[stage] = value
            self.defined[stage] = True
            return
        fresh = np.empty(self.shape, held) if self.data[stage] is None else self.data[stage].copy()
        fresh[_slices(box)] = value
        self.data[stage] = fresh
        if self.defined[stage] is not True:
            mask = np.zeros(self.shape, np.bool_) if self.defined[stage] is None else self.defined[stage].copy()
            mask[_slices(box)] = True
            self.defined[stage] = True if mask.all() else mask


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in box)


Part = tuple[int, str | None]  # base and axis of one index: base + 0, 1, 2, … along the axis


class Tensor:
    """One global tensor of a run.  Inputs are held rounded to their grid; outputs are the caller's array itself."""

    def __init__(self, name: str, mode: str, dtype: str, dims: tuple[int, ...], array: Any, target: str) -> None:
        if not isinstance(array, np.ndarray):
            raise CallError(f"tensor {name} is not a NumPy array")
        if array.shape != dims:
            raise CallError(f"tensor {name} has shape {array.shape}, but the program expects {dims}")
        self.name, self.mode, self.shape = name, mode, dims
        self.kind = kind_of_dtype(dtype)
        self.zero = _ZERO[self.kind]
        self.round = rounding(dtype, target)
        self.array: Any = array
        if mode != "out":
            held: Any = array.astype(_HELD[self.kind])
            self.array = held if self.round is None or array.dtype == storage_dtype(dtype, target) else self.round(held)
        self.owner = np.zeros(dims, np.int32) if mode == "out" else None  # who stored each element, 0 for nobody

    def _held(self, value: Any) -> Any:
        if self.mode == "out":
            return value.astype(_HELD[self.kind])
        return value

    def scalar(self, index: list[Any], live: bool) -> Any:
        """One element, as a Python or float32 scalar."""
        if not live:
            index = [0] * len(index)
            if 0 in self.shape:
                return self.zero
        for d, (i, n) in enumerate(zip(index, self.shape, strict=True)):
            if not 0 <= i < n:
                raise self.outside(d, i)
        value = self.array[tuple(index)]
        return np.float32(value) if self.kind == "float" else value.item()

    def gather(self, index: list[Any], axes: tuple[str, ...], live: Live | None) -> Any:
        """Elements at index arrays that broadcast over `axes`; dead lanes read element 0."""
        if not axes:
            dead = live is not None and not np.any(live.mask)
            return self.scalar(index, not dead)
        mask = None if live is None else project(live, axes)
        safe = [self._clamped(d, i, mask) for d, i in enumerate(index)]
        if 0 in self.shape:
            return np.zeros(np.broadcast_shapes(*(np.shape(i) for i in safe)), _HELD[self.kind])
        return self._held(self.array[tuple(np.broadcast_arrays(*safe))])

    def _clamped(self, d: int, i: Any, mask: Any) -> Any:
        n = self.shape[d]
        good = (i >= 0) & (i < n)
        if np.all(good):
            return i
        bad = ~np.asarray(good) if mask is None else ~np.asarray(good) & mask
        if np.any(bad):
            raise self.outside(d, np.broadcast_to(i, np.shape(bad))[bad][0] if np.ndim(bad) else i)
        return np.where(good, i, 0)

    def holds(self, parts: list[Part], sizes: dict[str, int]) -> bool:
        """Whether a box, one range per dimension, lies inside the tensor."""
        return all(
            base >= 0 and base + (1 if axis is None else sizes[axis]) <= n
            for (base, axis), n in zip(parts, self.shape, strict=True)
        )

    def load_box(self, parts: list[Part], sizes: dict[str, int]) -> Any:
        """A box that lies inside, over the axes of its ranged dimensions in their order."""
        where = tuple(base if axis is None else slice(base, base + sizes[axis]) for base, axis in parts)
        return self._held(self.array[where])

    def store(self, index: list[Any], value: Any, mask: Any, who: int) -> int:
        """Scatter at index arrays that broadcast with `value` and `mask`; returns another writer of a stored element, or 0."""
        if self.round is not None:
            value = self.round(value)
        shape = np.broadcast_shapes(*(np.shape(i) for i in index), np.shape(value), np.shape(mask))
        keep = np.broadcast_to(mask, shape)
        flat = []
        for d, i in enumerate(index):
            at = np.broadcast_to(i, shape)[keep]
            bad = (at < 0) | (at >= self.shape[d])
            if bad.any():
                raise self.outside(d, at[bad][0])
            flat.append(at)
        if not keep.any():
            return 0
        where = tuple(flat)
        self.array[where] = np.broadcast_to(value, shape)[keep]
        assert self.owner is not None
        return self._own(where, who)

    def store_box(self, parts: list[Part], sizes: dict[str, int], value: Any, who: int) -> int:
        """As `store`, of a box that lies inside; `value` is over the axes of its ranged dimensions in their order."""
        if self.round is not None:
            value = self.round(value)
        where = tuple(base if axis is None else slice(base, base + sizes[axis]) for base, axis in parts)
        self.array[where] = value
        return self._own(where, who)

    def _own(self, where: tuple[Any, ...], who: int) -> int:
        assert self.owner is not None
        before = self.owner[where]
        others = (before != 0) & (before != who)
        if np.any(others):
            return int(np.asarray(before)[others].flat[0])
        self.owner[where] = who
        return 0

    def outside(self, d: int, i: Any) -> OutOfBounds:
        """The error for index `i` in dimension `d`."""
        return OutOfBounds(f"index {int(i)} in dimension {d} of {self.name}, whose extent there is {self.shape[d]}")


_ZERO: dict[Kind, Any] = {"float": np.float32(0), "int": 0, "bool": False}
