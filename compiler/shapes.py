"""Extents to try a kernel on, where the user gave none: small, and on both sides of every tile edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.arith.evaluate import evaluate
from tilec.ir.attention import Attention
from tilec.ir.expr import Int, Op, Var, free_vars, walk
from tilec.ir.storage import batch_of, rows_symbol

ROWS_AND_KEYS = ((1, 1), (17, 40), (64, 64), (100, 130), (129, 129))
BATCH = 2
FEATURES = 64


def _multiple(attn: Attention, symbol: str) -> int:
    """What the extent must be a multiple of: group sizes that divide the index it belongs to."""
    indices = {i.name for i in attn.indices if i.extent is Var(symbol)}
    out = 1
    for t in attn.tensors:
        for e in (x for i in t.index for x in walk(i)):
            match e:
                case Op("//", (Var(name), Int(group))) if name in indices:
                    out = max(out, group)
    return out


def _fixed(attn: Attention) -> dict[str, int]:
    """Sizes of every symbol but those of rows and keys."""
    moving = free_vars(attn.index(attn.q).extent) | free_vars(attn.index(attn.k).extent)
    features = {*attn.contracted, attn.feature}
    out = {}
    for i in attn.indices:
        if isinstance(i.extent, Var) and i.extent.name not in moving:
            name = i.extent.name
            out[name] = FEATURES if i.name in features else BATCH * _multiple(attn, name)
    return out


def small_shapes(attn: Attention, given: Mapping[str, int] | None = None) -> Iterator[dict[str, int]]:
    """Extents for every symbol of `attn` that satisfy its `assume` lines, those of `given` as they are; distinct."""
    seen: set[tuple[tuple[str, int], ...]] = set()
    q, k = attn.index(attn.q).extent, attn.index(attn.k).extent
    for m, n in ROWS_AND_KEYS:
        chosen = _fixed(attn) | {e.name: v for e, v in ((k, n), (q, m)) if isinstance(e, Var)} | dict(given or {})
        sizes = {name: chosen[name] for name in (*attn.extents, *(n for n in chosen if n not in attn.extents))}
        key = tuple(sorted(sizes.items()))
        if key not in seen and all(evaluate(a, sizes) for a in attn.assumes):
            seen.add(key)
            yield sizes


def call_sizes(attn: Attention, sizes: Mapping[str, int]) -> dict[str, int]:
    """`sizes` with the symbols that storage adds (see `ir.storage`), every sequence being at its longest."""
    out = dict(sizes)
    for index in (attn.index(attn.q), attn.index(attn.k)):
        rows = rows_symbol(index)
        if isinstance(rows, Var) and index.storage.kind != "dense":
            extent = evaluate(index.extent, sizes)
            batch = evaluate(attn.index(batch_of(attn, index).name).extent, sizes)
            out[rows.name] = extent * batch if index.storage.kind == "packed" else extent
    for t in attn.tensors:
        if t.paged is not None and t.page:
            index = attn.index(attn.k)
            pages = -(-evaluate(index.extent, sizes) // t.page)
            out[f"{t.paged.tensor}_width"] = pages
            out[f"{t.name}_pages"] = pages * evaluate(attn.index(batch_of(attn, index).name).extent, sizes)
    return out
