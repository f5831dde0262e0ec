"""Random inputs of a call: every tensor and table, in the call's memory layout, with dead storage poisoned.

Styles of the values:

    normal     independent standard normals
    shifted    the logits of even rows are moved by +1000 and of odd rows by -1000, through one channel of a pair
    onehot     heavy-tailed channels and large queries: most rows are close to one-hot
    position   V encodes where it lies: feature 0 counts keys, feature 1 batch and heads, so that a wrong address shows

Pages are permuted, unused block-table entries are -1, and memory that belongs to no sequence holds NaN (a large number,
in integers).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilec.ir.attention import FLOAT_DTYPES, Attention, Tensor
from tilec.ir.expr import Var, free_vars
from tilec.ir.storage import batch_of, dimension, rows_symbol
from tilec.oracle.dtypes import numpy_dtype
from tilec.oracle.layout import Call, Problem
from tilec.oracle.lengths import Lengths, draw_lengths

Array = NDArray[Any]
Style = Literal["normal", "shifted", "onehot", "position"]
SHIFT = 1000.0
POISON = 0x5EADBEEF
SPARE_PAGES = 3


def make_inputs(
    attn: Attention,
    sizes: Mapping[str, int],
    seed: int = 0,
    style: Style = "normal",
    *,
    lengths: Lengths = "mixed",
    tile: int = 64,
    tail: int = 0,
    fnuz: bool = False,
    given: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Inputs by name, in call order.

    `sizes`: every symbol; of packed and padded indices, the longest length.  `lengths`: a distribution, or lengths by
    index name (see `draw_lengths`); `tile`: whose edges "mixed" lengths straddle; `tail`: rows of poison after the last
    packed sequence; `fnuz`: gfx942's fp8 encodings; `given`: params, biases and sinks to take as they are.
    Raises KeyError for a size that is missing, ValueError for a wrong number of lengths.
    """
    rng = np.random.default_rng(seed)
    symbols = dict(sizes)
    arrays = dict(given or {})
    for table, own in draw_lengths(attn, sizes, rng, lengths, tile).items():
        for i in attn.indices:
            if i.storage.table == table:
                packed = i.storage.kind == "packed"
                symbols[str(rows_symbol(i))] = sum(own) + tail if packed else Call(attn, {}, sizes).number(i.extent)
                arrays[table] = np.asarray(np.cumsum([0, *own]) if packed else own, np.int32)
    for t in attn.inputs:
        if t.paged is not None:
            _draw_pages(Call(attn, arrays, symbols), t, arrays, symbols, rng)
    call = Call(attn, arrays, symbols)
    for t in attn.inputs:
        if t.name not in arrays:
            arrays[t.name] = _tensor(call, t, rng, style, fnuz)
    return {t.name: arrays[t.name] for t in attn.inputs}


def _draw_pages(
    call: Call, t: Tensor, arrays: dict[str, Array], symbols: dict[str, int], rng: np.random.Generator
) -> None:
    """The block table of a paged tensor, shared by all tensors that read it, and how many pages the pool has."""
    attn, paged = call.attn, t.paged
    assert paged is not None and t.page is not None
    pool = f"{t.name}_pages"
    if paged.tensor not in arrays:
        lead = [call.number(dimension(attn, e)) for e in paged.index[:-1]]
        batch = batch_of(attn, attn.index(attn.k)).name
        width = ceil(call.number(attn.index(attn.k).extent) / t.page)
        table = np.full((*lead, width), -1, np.int32)
        used = np.zeros(table.shape, np.bool_)
        for at in np.ndindex(*lead):
            own = call.length(attn.k, {batch: at[[str(e) for e in paged.index].index(batch)]})
            used[at][: ceil(own / t.page)] = True
        pages = int(used.sum()) + SPARE_PAGES
        table[used] = rng.permutation(pages)[: int(used.sum())]
        arrays[paged.tensor] = table
        symbols[f"{paged.tensor}_width"] = width
        symbols[pool] = pages
    else:
        symbols.setdefault(pool, max(int(arrays[paged.tensor].max(initial=-1)) + 1, SPARE_PAGES))


def _tensor(call: Call, t: Tensor, rng: np.random.Generator, style: Style, fnuz: bool) -> Array:
    """One tensor: poison, overwritten sequence by sequence with values of the style."""
    attn = call.attn
    shape, dtype = call.shape(t.name), numpy_dtype(t.dtype, fnuz=fnuz)
    rows = [attn.index(e.name) for e in t.index if isinstance(e, Var) and attn.index(e.name).storage.kind != "dense"]
    batch = batch_of(attn, rows[0]).name if rows else None
    if batch is None or Var(batch) not in t.index:
        grids = np.ix_(*map(np.arange, shape))
        return np.broadcast_to(_values(call, t, grids, rng, style), shape).astype(dtype)
    memory = np.full(shape, np.nan if t.dtype in FLOAT_DTYPES else POISON if dtype.kind == "i" else 1, dtype)
    for b in range(call.number(attn.index(batch).extent)):
        problem = Problem(call, {batch: b}, call.length(attn.q, {batch: b}), call.length(attn.k, {batch: b}))
        grids = np.ix_(*(_lanes(problem, e, batch) for e in t.index))
        where, _ = problem.locate(t, grids)
        if prod(np.broadcast_shapes(*(g.shape for g in grids))):
            memory[where] = _values(call, t, grids, rng, style).astype(dtype)
    return memory


def _lanes(problem: Problem, e: Any, batch: str) -> Array:
    match e:
        case Var(name) if name == batch:
            return np.asarray([problem.at[batch]])
        case Var(name):
            return np.arange(problem.extent(name))
        case _:
            return np.arange(problem.call.number(dimension(problem.call.attn, e)))


def _values(call: Call, t: Tensor, grids: tuple[Array, ...], rng: np.random.Generator, style: Style) -> Array:
    """Values of a block of a tensor; `grids`: the logical position along each of its dimensions."""
    attn = call.attn
    shape = np.broadcast_shapes(*(g.shape for g in grids)) if grids else ()
    where = {str(e): g for e, g in zip(t.index, grids, strict=True)}
    if t.dtype not in FLOAT_DTYPES:
        return _whole_numbers(call, t, shape, rng)
    normal: Array = np.asarray(rng.standard_normal(shape))
    if t.slot == "table":
        return rng.uniform(0.5, 1.5, shape)
    if t.slot == "param":
        return _param(attn, t, where, normal, shape)
    if t.slot not in ("query", "key", "value"):
        return normal
    if style == "position" and t.name == attn.value:
        return _position(attn, t, where, shape)
    if style == "onehot" and t.slot in ("query", "key"):
        normal = np.clip(rng.standard_t(2, shape), -30, 30) * (4 if t.slot == "query" else 1)
    pair = _shifted_pair(attn)
    if style == "shifted" and t.name in attn.pairs[pair]:
        channel = where[attn.contracted[pair]]
        sign = 1 - 2 * (where[attn.q] % 2) if t.slot == "query" else 1
        normal = np.where(channel == 0, sign * _shift(call), normal)
    return normal


def _shifted_pair(attn: Attention) -> int:
    """The pair that carries the shift: one whose key is not the value too, if there is one."""
    return next((n for n, (_, key) in enumerate(attn.pairs) if key != attn.value), 0)


def _shift(call: Call) -> float:
    """The root of SHIFT over the scale, so that the product of two is a logit of SHIFT."""
    scale = call.attn.scale
    factor = float(Problem(call, {}, 0, 0).evaluate(scale, np.float64))
    return sqrt(SHIFT / abs(factor)) if factor else sqrt(SHIFT)


def _position(attn: Attention, t: Tensor, where: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    """Whole numbers that the dtype holds exactly; small ones if the tensor is a key as well."""
    modulus = {"e4m3": 16, "e5m2": 8}.get(t.dtype, 251)
    k, feature = where[attn.k], where[attn.feature]
    others = [g for name, g in where.items() if name not in (attn.k, attn.feature)]
    head: Array = np.zeros((1,) * len(shape), np.int64)
    for g in others:
        head = head * 37 + g
    mixed = (k + 3 * head + 7 * feature) % min(17, modulus)
    value = np.where(feature == 0, k % modulus, np.where(feature == 1, head % modulus, mixed))
    return value / (64 if t.slot == "key" else 1)


def _param(attn: Attention, t: Tensor, where: Mapping[str, Array], normal: Array, shape: tuple[int, ...]) -> Array:
    """Slopes 2**(-8 (h + 1) / H) where neither q nor k is read (usable as a divisor too), else normals."""
    names = set().union(*(free_vars(e) for e in t.index)) if t.index else set()
    if names & {attn.q, attn.k}:
        return np.abs(normal) if "nonnegative" in t.facts else normal
    if not where:
        return np.asarray(0.5)
    last = list(where.values())[-1]
    return np.broadcast_to(2.0 ** (-8.0 * (last + 1) / max(shape[-1], 1)), shape)


def _whole_numbers(call: Call, t: Tensor, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Document numbers if nondecreasing, a permutation if unique, else small labels along q or k, or positions."""
    attn = call.attn
    along = next((n for n, e in enumerate(t.index) if free_vars(e) & {attn.q, attn.k}), len(shape) - 1)
    if t.dtype == "bool":
        return rng.random(shape) < 0.7
    if "nondecreasing" in t.facts:
        return np.cumsum(rng.random(shape) < 1 / 24, axis=along)
    if "unique" in t.facts:
        return np.argsort(rng.random(shape), axis=along)
    if any(free_vars(e) & {attn.q, attn.k} for e in t.index):
        return rng.integers(0, 4, shape)
    longest = call.number(attn.index(attn.k).extent)
    return np.asarray(rng.integers(0, longest + 1, shape))
