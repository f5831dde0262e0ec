"""The exact oracle: an attention's outputs and gradients in float64, by the meaning stated in `ir.attention`.

Dense softmax matrices, one outer element at a time; a few thousand rows by columns are fine.  Storage, masks, sinks and
dropout follow the spec; tiles, online softmax and schedules do not exist here.  Positions of memory that belong to no
sequence (rows past a length, packed rows past the last offset) have O = 0, L = -inf and zero gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.attention import Attention
from tilec.oracle.gradients import gradients
from tilec.oracle.layout import Call, bind
from tilec.oracle.weights import EXACT, Arithmetic, Dropping, attend, weigh

__all__ = ["dead_rows", "evaluate", "evaluate_and_dead", "gradients"]

Array = NDArray[Any]


def evaluate(
    attn: Attention,
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
    arithmetic: Arithmetic = EXACT,
) -> dict[str, Array]:
    """Outputs by name, in the memory shapes of the call: the output, and the LSE if the attention declares one.

    `inputs`: every tensor and table of the call by name; `sizes`: symbols that no shape shows; `seed`, `offset`: of
    dropout.  Raises ValueError for shapes that do not fit, IndexError for a live read outside a tensor.
    """
    call = bind(attn, inputs, sizes)
    return _outputs(call, arithmetic, Dropping(seed, offset))[0]


def evaluate_and_dead(
    attn: Attention,
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[dict[str, Array], Array]:
    """What `evaluate` and `dead_rows` give, of one computation."""
    return _outputs(bind(attn, inputs, sizes), EXACT, Dropping(seed, offset))


def dead_rows(attn: Attention, inputs: Mapping[str, Array], *, sizes: Mapping[str, int] | None = None) -> Array:
    """True where the output must be exactly 0: rows with no live key and rows of no sequence; the output's memory shape."""
    return _outputs(bind(attn, inputs, sizes), EXACT, Dropping())[1]


def _outputs(call: Call, arithmetic: Arithmetic, dropping: Dropping) -> tuple[dict[str, Array], Array]:
    attn = call.attn
    out = np.zeros(call.shape(attn.output), arithmetic.real)
    lse = None if attn.lse is None else np.full(call.shape(attn.lse), -np.inf, arithmetic.real)
    dead = np.ones(out.shape, np.bool_)
    for problem in call.problems():
        weights = weigh(problem, arithmetic, dropping)
        where = problem.place(attn.output, attn.q, attn.feature)[0]
        out[where] = attend(problem, weights, arithmetic)
        dead[where] = weights.dead[:, None]
        if lse is not None and attn.lse is not None:
            lse[problem.place(attn.lse, attn.q)[0]] = weights.lse
    outputs = {attn.output: arithmetic.rounded(out, attn.tensor(attn.output).dtype)}
    if lse is not None and attn.lse is not None:
        outputs[attn.lse] = arithmetic.rounded(lse, attn.tensor(attn.lse).dtype)
    return outputs, dead
