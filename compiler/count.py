"""How many tiles a kernel visits, and how many (row, key) pairs of them are live: exact, from the prover's own bounds.

Tiles outside a segment are dead and full tiles are live by proof, so only the elements of partial tiles are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from tilec.arith.bounds import Bounds
from tilec.arith.evaluate import evaluate
from tilec.arith.segments import TileSegment
from tilec.ir.attention import Attention
from tilec.ir.expr import Fetch, free_vars, walk

ROW_TILE = "m"


@dataclass(frozen=True)
class Counts:
    """Over the whole call: (row tile, key tile) pairs in all, visited, and visited without a mask; live elements, and
    elements of visited tiles.  `problems`: independent (batch, head) problems; `size`: of one tile."""

    problems: int
    tiles: int
    visited: int
    full: int
    live: int
    computed: int

    @property
    def waste(self) -> float:
        """Elements computed per live element."""
        return self.computed / self.live if self.live else 1.0

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "problems": self.problems,
            "tiles": self.tiles,
            "visited": self.visited,
            "full": self.full,
            "live": self.live,
            "computed": self.computed,
        }

    def lines(self) -> list[str]:
        """For a person."""

        def share(n: int) -> str:
            return f"{n:>14,}  {n / self.tiles:6.1%}" if self.tiles else f"{n:>14,}"

        return [
            f"  skipped  {share(self.tiles - self.visited)}",
            f"  masked   {share(self.visited - self.full)}",
            f"  no mask  {share(self.full)}",
            f"  live elements {self.live:,}, {self.waste:.3f} computed for each",
        ]


def count_tiles(
    attn: Attention,
    tile: Mapping[str, int],
    bounds: Bounds,
    segments: tuple[TileSegment, ...],
    sizes: Mapping[str, int],
) -> Counts | None:
    """Counts for these extents; None where what is visited depends on data: a param in the mask, or a seek."""
    if bounds.seeks or any(isinstance(e, Fetch) for e in walk(attn.mask)):
        return None
    size_q, size_k = tile[attn.q], tile[attn.k]
    rows, keys = (evaluate(attn.index(i).extent, sizes) for i in (attn.q, attn.k))
    on = [i for i in attn.outer if i.name in free_vars(attn.mask)]
    problems = 1
    for i in attn.outer:
        problems *= evaluate(i.extent, sizes)
    combinations = [dict(zip([i.name for i in on], at, strict=True)) for at in product(*_ranges(on, sizes))]
    visited = full = live = 0
    for at in combinations:
        for m in range(-(-rows // size_q)):
            env = {**sizes, **at, ROW_TILE: m}
            height = min(size_q, rows - m * size_q)
            for whole, masked in _tiles(segments, env):
                visited += whole + len(masked)
                full += whole
                live += whole * height * size_k
                for j in masked:
                    columns = j * size_k, min(keys, (j + 1) * size_k)
                    live += _live(attn, (m * size_q, m * size_q + height), columns, env)
    each = problems // max(1, len(combinations))
    tiles = -(-rows // size_q) * -(-keys // size_k) * problems
    return Counts(problems, tiles, visited * each, full * each, live * each, visited * each * size_q * size_k)


def _ranges(indices: list[Any], sizes: Mapping[str, int]) -> list[range]:
    return [range(evaluate(i.extent, sizes)) for i in indices]


def _tiles(segments: tuple[TileSegment, ...], env: Mapping[str, int]) -> Iterator[tuple[int, list[int]]]:
    """How many key tiles of one row tile need no mask, and the numbers of those that do, by segment."""
    for s in segments:
        lo, full_lo, full_hi, hi = (evaluate(e, env) for e in (s.lo, s.full_lo, s.full_hi, s.hi))
        yield full_hi - full_lo, [*range(lo, full_lo), *range(full_hi, hi)]


def _live(attn: Attention, rows: tuple[int, int], keys: tuple[int, int], env: Mapping[str, int]) -> int:
    """Live elements of one tile."""
    import numpy as np

    from tilec.oracle.scalar import evaluate as evaluate_array

    q = np.arange(*rows)[:, None]
    k = np.arange(*keys)[None, :]
    shape = rows[1] - rows[0], keys[1] - keys[0]

    def none(tensor: str, index: Any) -> Any:
        raise AssertionError(f"the mask reads {tensor}")

    values = evaluate_array(attn.mask, {**env, attn.q: q, attn.k: k}, none)
    return int(np.broadcast_to(values, shape).sum())
