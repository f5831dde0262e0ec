"""Lengths of packed and padded sequences for random calls, drawn to hit what breaks tile loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from tilec.ir.attention import Attention, Index
from tilec.ir.build import compare
from tilec.ir.expr import Expr, Fetch, Var, walk
from tilec.ir.storage import batch_of
from tilec.oracle.scalar import evaluate

Distribution = Literal["full", "mixed", "random"]
Lengths = Distribution | Mapping[str, Sequence[int]]


def draw_lengths(
    attn: Attention, sizes: Mapping[str, int], rng: np.random.Generator, lengths: Lengths, tile: int
) -> dict[str, list[int]]:
    """Lengths per table of offsets or lengths.

    `full`: every sequence is the longest.  `mixed`: the longest, 0, 1, tile - 1, tile, tile + 1, 2 tile - 1, then
    uniform.  `random`: uniform in 0..longest.  A mapping gives them by index name.  Where an `assume` line or a read of
    a k tensor at q does not hold between the lengths of a sequence, q takes k's length.
    """
    drawn: dict[str, list[int]] = {}
    for i in attn.indices:
        table = i.storage.table
        if table is None or table in drawn:
            continue
        longest = _number(i.extent, sizes)
        count = _number(attn.index(batch_of(attn, i).name).extent, sizes)
        wanted = lengths.get(i.name) if isinstance(lengths, Mapping) else None
        if wanted is None:
            wanted = _draw("mixed" if isinstance(lengths, Mapping) else lengths, longest, count, tile, rng)
        elif len(wanted) != count:
            raise ValueError(f"{table}: {len(wanted)} lengths for {count} sequences")
        drawn[table] = [int(n) for n in wanted]
    if not isinstance(lengths, Mapping):
        _reconcile(attn, sizes, drawn)
    return drawn


def _draw(kind: Distribution, longest: int, count: int, tile: int, rng: np.random.Generator) -> list[int]:
    if kind == "full":
        return [longest] * count
    edges = [longest, 0, 1, tile - 1, tile, tile + 1, 2 * tile - 1] if kind == "mixed" else []
    extra = rng.integers(0, longest + 1, max(0, count - len(edges)))
    return [min(n, longest) for n in [*edges, *map(int, extra)]][:count]


def _reconcile(attn: Attention, sizes: Mapping[str, int], drawn: dict[str, list[int]]) -> None:
    q, k = attn.index(attn.q), attn.index(attn.k)
    if q.storage.table is None or q.storage.table == k.storage.table:
        return
    own = drawn[q.storage.table]
    for b, m in enumerate(own):
        n = drawn[k.storage.table][b] if k.storage.table else _number(k.extent, sizes)
        if not _fits(attn, sizes, (q, m), (k, n)):
            own[b] = min(n, _number(q.extent, sizes))


def _fits(attn: Attention, sizes: Mapping[str, int], q: tuple[Index, int], k: tuple[Index, int]) -> bool:
    env = {**sizes, **{i.extent.name: n for i, n in (q, k) if isinstance(i.extent, Var)}}
    demands = list(attn.assumes)
    if _reads_keys_at_rows(attn):
        demands.append(compare("<=", q[1], k[1]))
    return all(bool(evaluate(a, env, lambda *_: np.asarray(0))) for a in demands)


def _reads_keys_at_rows(attn: Attention) -> bool:
    """True if a score or the mask reads at q what is declared over k (`doc[b, q]` of `param doc[b, k]`)."""
    for e in (attn.mask, *attn.scores):
        for x in walk(e):
            if isinstance(x, Fetch):
                declared = attn.tensor(x.tensor).index
                if any(d is Var(attn.k) and at is Var(attn.q) for d, at in zip(declared, x.index, strict=True)):
                    return True
    return False


def _number(e: Expr, sizes: Mapping[str, int]) -> int:
    return int(evaluate(e, sizes, lambda *_: np.asarray(0)))
