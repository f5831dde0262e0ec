"""What kind of work a kernel makes: keys of the tuning records; that of the mask also decides the block order.

Masks, by sampling their closed-form bounds:

full      every row sees nearly every key
growing   later rows see more keys (causal, prefix): the last eighth of the rows at least twice what the first sees
narrow    a row tile sees less than a quarter of the keys (windows, chunks), or how many depends on data (documents)
even      anything else

Scores, by what an element costs beside its exponential:

plain       no score line
arithmetic  vector operations
special     another transcendental function (soft caps)

Lengths, by keys of a sequence: short up to 1024, middle up to 4096, long.  Lengths are no part of a binary, so a kernel has
a class only where its text gives the number.
"""

from __future__ import annotations

from typing import Literal

from tilec.arith.bounds import k_bounds
from tilec.arith.evaluate import evaluate
from tilec.ir.attention import Attention
from tilec.ir.build import add
from tilec.ir.expr import Int, Op, Var, walk
from tilec.passes.prove_mask import normal_of

MaskClass = Literal["full", "growing", "narrow", "even"]
ScoreClass = Literal["plain", "arithmetic", "special"]
LengthClass = Literal["short", "middle", "long"]

SAMPLE = 8192  # rows and keys of the sampled sequence
ROWS = 128  # of a sampled tile
SHORT, MIDDLE = 1024, 4096  # keys
TRANSCENDENTAL = ("exp", "exp2", "log", "log2", "tanh", "sqrt")


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


def data_decides(attn: Attention) -> bool:
    """Whether it depends on tensors which keys a row tile sees: bounds through a nondecreasing param."""
    first, keys = Var(f"{attn.q}_first"), Var(f"{attn.k}_extent")
    return bool(k_bounds(normal_of(attn), first, add(first, ROWS - 1), keys, attn.assumes).seeks)


def score_class(attn: Attention) -> ScoreClass:
    """The class of the kernel's score lines."""
    if any(isinstance(e, Op) and e.name in TRANSCENDENTAL for line in attn.scores for e in walk(line)):
        return "special"
    return "arithmetic" if attn.scores else "plain"


def length_class(keys: int) -> LengthClass:
    """The class of sequences of so many keys."""
    return "short" if keys <= SHORT else "middle" if keys <= MIDDLE else "long"


def known_length(attn: Attention) -> LengthClass | None:
    """The class of the kernel's sequences, where its text says how many keys they have."""
    extent = attn.index(attn.k).extent
    return length_class(extent.value) if isinstance(extent, Int) else None
