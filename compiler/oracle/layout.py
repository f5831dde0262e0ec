"""Between a call's memory and logical positions: dense, packed, padded and paged storage by NumPy gather and scatter.

`ir.storage` says where an element lies; this file evaluates what it says over whole index arrays, and checks every address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.attention import FLOAT_DTYPES, Attention, Tensor
from tilec.ir.expr import Expr, Fetch, Int, Op, Var, free_vars
from tilec.ir.storage import batch_of, length_of, memory_dims, read_at
from tilec.ir.storage import dimension as dimension_of
from tilec.oracle.scalar import Function, Real, evaluate

Array = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One call's arrays by name, as they lie in memory, and every symbol's value: the spec's and those storage adds."""

    attn: Attention
    arrays: Mapping[str, Array]
    sizes: Mapping[str, int]

    def shape(self, name: str) -> tuple[int, ...]:
        """The memory shape of a tensor, outputs included."""
        return tuple(self.number(dim) for dim in memory_dims(self.attn, self.attn.tensor(name)))

    def number(self, e: Expr) -> int:
        """An integer expression over the call's symbols."""
        return int(evaluate(e, self.sizes, self.table))

    def table(self, name: str, index: tuple[Array, ...]) -> Array:
        """Elements of a table by memory index."""
        return self.arrays[name][index].astype(np.int64)

    def problems(self) -> Iterator[Problem]:
        """One per element of the outer indices (batch, heads, …), in row-major order of their declaration."""
        attn = self.attn
        outer = [i.name for i in attn.outer]
        for values in product(*(range(self.number(attn.index(n).extent)) for n in outer)):
            at = dict(zip(outer, values, strict=True))
            yield Problem(self, at, self.length(attn.q, at), self.length(attn.k, at))

    def length(self, name: str, at: Mapping[str, int]) -> int:
        """Positions of index `name` in the sequence that `at` names."""
        return int(evaluate(length_of(self.attn, self.attn.index(name)), {**self.sizes, **at}, self.table))


@dataclass(frozen=True)
class Problem:
    """The rows and columns of one softmax matrix: `at` fixes the outer indices, `rows` = M and `cols` = N of this sequence."""

    call: Call
    at: Mapping[str, int]
    rows: int
    cols: int

    def env(self, **more: Any) -> dict[str, Any]:
        """Variables of the scores and the mask: `q` along axis 0, `k` along axis 1, outer indices and extents as numbers."""
        attn = self.call.attn
        own = {attn.q: self.rows, attn.k: self.cols}
        lengths = {e.name: n for i, n in own.items() if isinstance(e := attn.index(i).extent, Var)}
        rows, cols = np.arange(self.rows)[:, None], np.arange(self.cols)[None, :]
        return {**self.call.sizes, **lengths, **self.at, attn.q: rows, attn.k: cols, **more}

    def evaluate(self, e: Expr, real: Real, live: Array | None = None, tanh: Function = np.tanh, **more: Any) -> Array:
        """An expression over this problem's lanes.  A fetch outside its tensor reads 0, and NaN if it is a float, in a
        lane that is not live; in a live lane, or where `live` is not given, it raises IndexError."""

        def lookup(name: str, index: tuple[Array, ...]) -> Array:
            tensor = self.call.attn.tensor(name)
            where, inside = self.locate(tensor, index)
            if not inside.all() and (live is None or bool((live & ~inside).any())):
                raise IndexError(f"{Fetch(name, tensor.index)} is read outside its extent at {dict(self.at)}")
            return np.where(inside, *self._elements(tensor, where, real))

        return evaluate(e, self.env(**more), lookup, real, tanh)

    def matrix(self, name: str, row: str, col: str, real: Real) -> Array:
        """The logical rows of a query, key, value or output-shaped tensor, [extent of `row`, extent of `col`], descaled."""
        tensor = self.call.attn.tensor(name)
        where, shape = self.place(name, row, col)
        values = np.broadcast_to(self._elements(tensor, where, real)[0], shape)
        return values if tensor.scaled is None else values * self.factor(name, real)

    def factor(self, name: str, real: Real) -> Array:
        """The descale factor of a scaled tensor; 1 of any other."""
        scaled = self.call.attn.tensor(name).scaled
        return np.asarray(1, real) if scaled is None else self.evaluate(scaled, real)

    def place(self, name: str, row: str, col: str | None = None) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Memory index arrays of a tensor read at its declared indices, and the shape they broadcast to."""
        call, tensor = self.call, self.call.attn.tensor(name)
        extents = [self.extent(i) for i in (row, col) if i is not None]
        lanes = np.ix_(*(np.arange(n) for n in extents))
        env = self.env(**{i: lane for i, lane in zip((row, col), lanes, strict=False) if i is not None})
        where, inside = self.locate(tensor, tuple(evaluate(e, env, call.table) for e in tensor.index))
        if not inside.all():
            raise IndexError(f"{name}: shape {call.shape(name)} does not hold {dict(self.at)}")
        return where, tuple(extents)

    def extent(self, index: str) -> int:
        """The extent of an index in this problem: its own length for `q` and `k`."""
        own = {self.call.attn.q: self.rows, self.call.attn.k: self.cols}
        return own[index] if index in own else self.call.number(self.call.attn.index(index).extent)

    def locate(self, tensor: Tensor, at: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array]:
        """Memory index arrays of logical index `at`, and where `at` is inside; lanes outside get index 0 or the last."""
        inside: Array = np.asarray(True)
        clipped: dict[str, Any] = {}
        for i, (e, v) in enumerate(zip(tensor.index, at, strict=True)):
            size = self._bound(tensor, e)
            inside = inside & (v >= 0) & (v < size)
            clipped[f"at{i}"] = np.clip(v, 0, max(size - 1, 0))
        shape = self.call.shape(tensor.name)
        if not inside.any():
            return tuple(np.zeros_like(inside, np.int64) for _ in shape), inside
        places = [evaluate(e, clipped, self.call.table) for e in _addresses(self.call.attn, tensor.name)]
        for place, size in zip(places, shape, strict=True):
            if bool((inside & ((place < 0) | (place >= size))).any()):
                raise IndexError(f"{tensor.name}: the tables lead outside its memory shape {shape} at {dict(self.at)}")
        return tuple(np.clip(p, 0, max(s - 1, 0)) for p, s in zip(places, shape, strict=True)), inside

    def _bound(self, tensor: Tensor, e: Expr) -> int:
        if isinstance(e, Var) and e.name in (self.call.attn.q, self.call.attn.k):
            return self.rows if e.name == self.call.attn.q else self.cols
        return self.call.number(dimension_of(self.call.attn, e)) if tensor.slot != "table" else 2**62

    def _elements(self, tensor: Tensor, where: tuple[Array, ...], real: Real) -> tuple[Array, Array]:
        """The elements at a memory index, and what stands for one that is outside."""
        memory = self.call.arrays[tensor.name]
        to = real if tensor.dtype in FLOAT_DTYPES else np.bool_ if tensor.dtype == "bool" else np.int64
        outside: Array = np.asarray(np.nan if tensor.dtype in FLOAT_DTYPES else 0, to)
        if memory.size == 0:
            return outside, outside
        return np.asarray(memory[where]).astype(to), outside


@lru_cache(maxsize=256)
def _addresses(attn: Attention, name: str) -> tuple[Expr, ...]:
    tensor = attn.tensor(name)
    if tensor.slot == "table":
        return tuple(Var(f"at{i}") for i in range(len(tensor.index)))
    return read_at(attn, tensor, tuple(Var(f"at{i}") for i in range(len(tensor.index))))


def bind(attn: Attention, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> Call:
    """The call's symbols, read off the shapes of its arrays; `sizes` adds those that no shape shows.

    Raises ValueError for a missing input, a wrong rank, or shapes that contradict one another.
    """
    known: dict[str, int] = dict(sizes or {})
    arrays = {t.name: np.asarray(inputs[t.name]) for t in attn.inputs if t.name in inputs}
    dims: list[tuple[str, Expr, int]] = []
    for t in attn.inputs:
        if t.name not in arrays:
            raise ValueError(f"{t.name} is missing")
        expected, shape = memory_dims(attn, t), arrays[t.name].shape
        if len(expected) != len(shape):
            raise ValueError(f"{t.name}: expected [{', '.join(map(str, expected))}], got shape {shape}")
        dims += [(t.name, e, n) for e, n in zip(expected, shape, strict=True)]
    for _, e, n in dims:
        match e:
            case Var(name) | Op("+", (Var(name), Int(1))):
                known.setdefault(name, n if isinstance(e, Var) else n - 1)
    for _, e, n in dims:
        match e:  # the group size in `h // G`, once H is known
            case Op("//", (extent, Var(group))) if group not in known and n and free_vars(extent) <= known.keys():
                known[group] = int(evaluate(extent, known, lambda *_: np.asarray(0))) // n
    call = Call(attn, arrays, known)
    for name, e, n in dims:
        if not free_vars(e) <= known.keys() or call.number(e) != n:
            raise ValueError(f"{name}: a dimension of {n} where {e} was expected, with {known}")
    return call


def sequences(call: Call, tensor: Tensor) -> str | None:
    """The batch index of a tensor that is packed, padded or paged; None of a dense one."""
    for e in tensor.index:
        if isinstance(e, Var) and call.attn.index(e.name).storage.kind != "dense":
            return batch_of(call.attn, call.attn.index(e.name)).name
    return None
