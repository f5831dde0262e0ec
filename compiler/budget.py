"""How much shared memory the tiles of a schedule take: the sum that `explain` shows and E0803 refuses.

    TMA targets      Q stays in shared memory for the whole loop; K and V have one tile per stage each
    other NVIDIA     the same, but one of the stages is already in registers
    AMD              Q passes through before the loop and stays in registers; one of the stages is in registers

    weights          pass through shared memory between the products: on AMD where more warps than 32-row strips share a row
                     tile, on NVIDIA in f32, whose products take no matrix instruction

The sums are what Triton 3.6 allocates for the loop this compiler writes, but for 1 KB of barriers and reductions on NVIDIA, and
one more tile of keys on AMD where it stages masked loads; with one stage it may let K and V share a place.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.attention import BYTES, Attention
from tilec.ir.expr import Int
from tilec.targets import Target

ROWS_OF_WARP = 32  # of an MFMA tile


@dataclass(frozen=True)
class Budget:
    """`parts`: (what, bytes each, how many).  `limit`: what a block of the target can have."""

    parts: tuple[tuple[str, int, int], ...]
    limit: int

    @property
    def total(self) -> int:
        return sum(size * count for _, size, count in self.parts)

    @property
    def fits(self) -> bool:
        return self.total <= self.limit

    def __str__(self) -> str:
        terms = [f"{what} {f'{count} x ' if count != 1 else ''}{size:,}" for what, size, count in self.parts]
        return " + ".join(terms) + f" = {self.total:,} of {self.limit:,} bytes"


def width(attn: Attention, index: str) -> int | None:
    """Extent of an index padded to the power of two a tile has, or None while it is a symbol."""
    extent = attn.index(index).extent
    return max(16, 1 << (extent.value - 1).bit_length()) if isinstance(extent, Int) else None


def shared_memory(
    attn: Attention, target: Target, q: int, k: int, stages: int, warps: int | None = None
) -> Budget | None:
    """The sum for tiles of `q` query rows and `k` keys; None while a head dim is a symbol.

    `warps` None: as few as the rows need, so that no weights pass between them."""
    keys: dict[str, int] = {}
    queries = 0
    for (query, key), d in zip(attn.pairs, attn.contracted, strict=True):
        size = width(attn, d)
        if size is None:
            return None
        queries += q * size * BYTES[attn.tensor(query).dtype]
        keys[key] = k * size * BYTES[attn.tensor(key).dtype]
    if attn.value not in keys:
        size = width(attn, attn.feature)
        if size is None:
            return None
        keys[attn.value] = k * size * BYTES[attn.tensor(attn.value).dtype]
    copies = stages if "tma" in target.features else max(1, stages - 1)
    parts = [(name, size, copies) for name, size in keys.items()]
    if target.vendor != "amd":
        parts.insert(0, ("queries", queries, 1))
    elif queries > sum(size * count for _, size, count in parts):
        parts = [("queries", queries, 1)]
    element = BYTES[attn.tensor(attn.value).dtype]
    if stages > 1 and target.vendor == "amd" and warps is not None and warps * ROWS_OF_WARP > q:
        parts.append(("weights", q * k * element, 1))
    if stages > 1 and target.vendor != "amd" and element == 4:
        parts.append(("weights", q * (k + 1) * element, 1))
    return Budget(tuple(parts), target.shared_memory)
