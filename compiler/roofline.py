"""The least time a forward call can take on a target, by what it must compute and move.

Four resources, each at the rate of the target's table; the slowest is the bound:

    matrix    2 (D + Dv) FLOP per live (row, key) pair, at the rate of the operands' dtype and the sustained clock
    special   one exp2 per live pair, and one more for each transcendental in the score lines
    memory    every input once, every output once

Work on dead elements of partial tiles is not in it: it is a bound, not a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilec.arith.evaluate import evaluate
from tilec.ir.attention import BYTES, Attention
from tilec.ir.expr import Op, walk
from tilec.ir.storage import memory_dims
from tilec.targets import Target

TRANSCENDENTAL = ("exp", "exp2", "log", "log2", "tanh", "sqrt")


@dataclass(frozen=True)
class Roofline:
    """Seconds each resource is needed for; `bound` names the slowest.  `dtypes`: of the operands of the products."""

    flops: int
    exps: int
    bytes: int
    matrix: float
    special: float
    memory: float
    dtypes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return max(self.matrix, self.special, self.memory)

    @property
    def bound(self) -> str:
        times = {"matrix": self.matrix, "special functions": self.special, "memory": self.memory}
        return max(times, key=lambda name: times[name])

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def ridge(self) -> float:
        """FLOP per byte at which products and memory take equally long."""
        return self.intensity * self.memory / self.matrix if self.matrix else 0.0


def moved_bytes(attn: Attention, sizes: Mapping[str, int]) -> int:
    """Bytes of all inputs and outputs in memory, each counted once."""
    total = 0
    for t in attn.tensors:
        elements = 1
        for dim in memory_dims(attn, t):
            elements *= evaluate(dim, sizes)
        total += elements * BYTES[t.dtype]
    return total


def roofline(attn: Attention, target: Target, sizes: Mapping[str, int], live: int) -> Roofline | None:
    """The bound for `live` live pairs in all; None where the target has no speed rows (cpu).

    `sizes`: every symbol of the call, those of storage included.  The products run in the dtype of the queries and of
    the values; KeyError if the target has no matrix unit for one of them."""
    if not target.modelled:
        return None
    first = sum(evaluate(attn.index(d).extent, sizes) for d in attn.contracted)
    second = evaluate(attn.index(attn.feature).extent, sizes)
    score_dtype, value_dtype = attn.tensor(attn.pairs[0][0]).dtype, attn.tensor(attn.value).dtype
    exps = live * (1 + sum(isinstance(e, Op) and e.name in TRANSCENDENTAL for s in attn.scores for e in walk(s)))
    size = moved_bytes(attn, sizes)
    return Roofline(
        flops=2 * live * (first + second),
        exps=exps,
        bytes=size,
        matrix=2 * live * (first / target.peak(score_dtype) + second / target.peak(value_dtype)),
        special=exps / (target.special * target.units * target.sustained_clock),
        memory=size / target.bandwidth,
        dtypes=tuple(dict.fromkeys((score_dtype, value_dtype))),
    )
