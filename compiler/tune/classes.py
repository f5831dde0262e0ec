"""What kind of work a mask makes, by sampling its closed-form bounds: decides the block order and keys the tuning record.

full      every row sees nearly every key
growing   later rows see more keys (causal, prefix): the last eighth of the rows at least twice what the first sees
narrow    a row tile sees less than a quarter of the keys (windows, chunks), or how many depends on data (documents)
even      anything else
"""

from __future__ import annotations

from typing import Literal

from tilec.arith.bounds import k_bounds
from tilec.arith.evaluate import evaluate
from tilec.ir.attention import Attention
from tilec.ir.build import add
from tilec.ir.expr import Var
from tilec.passes.prove_mask import normal_of

MaskClass = Literal["full", "growing", "narrow", "even"]

SAMPLE = 8192  # rows and keys of the sampled sequence
ROWS = 128  # of a sampled tile


def mask_class(attn: Attention) -> MaskClass:
    """The class of the kernel's mask."""
    first, keys = Var(f"{attn.q}_first"), Var(f"{attn.k}_extent")
    bounds = k_bounds(normal_of(attn), first, add(first, ROWS - 1), keys, attn.assumes)
    if bounds.seeks:
        return "narrow"
    extents = dict.fromkeys((*attn.extents, keys.name), SAMPLE)

    def seen(row: int) -> float:
        total = 0
        for p in bounds.pieces:
            lo, hi = (int(evaluate(e, {**extents, first.name: row})) for e in (p.live.lo, p.live.hi))
            total += max(0, hi - lo)
        return total / SAMPLE

    try:
        early, late = seen(SAMPLE // 8), seen(SAMPLE - ROWS)
    except (KeyError, ValueError, TypeError):  # bounds over params or named scalars: how much they see is unknown
        return "even"
    if max(early, late) < 0.25:
        return "narrow"
    if late > 2 * early:
        return "growing"
    return "full" if min(early, late) > 0.9 else "even"
