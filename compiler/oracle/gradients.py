"""Gradients of an attention, by the chain rule written out: the oracle of the derived backward pass.

For one softmax matrix, with dO and dL the gradients of the output and the LSE (FlashAttention's backward, Dao et al. 2022,
appendix B, with the LSE's own gradient added):

    dV    = (P * keep / (1 - p))^T dO
    dP    = (dO V^T) * keep / (1 - p)
    delta = rowsum(dO * O)
    dS    = P * (dP - delta + dL)              dZ = -sum over rows of exp(Z - L) * (delta - dL)       (the sink Z)

then back through the score lines, each multiplying by its derivative and adding to what it reads.  A gradient is summed over
every index that its tensor lacks; a value that is also a key gets both contributions.  Rows with no live key, and lanes that
are not live, contribute exactly 0, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.arith.derivative import derivative, reads
from tilec.ir.attention import Attention
from tilec.ir.expr import Fetch
from tilec.oracle.layout import Problem, bind
from tilec.oracle.weights import EXACT, SCORE, Arithmetic, Dropping, Weights, attend, contract, lines, weigh

Array = NDArray[Any]


def gradients(
    attn: Attention,
    inputs: Mapping[str, Array],
    d_output: Array,
    d_lse: Array | None = None,
    *,
    names: tuple[str, ...] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
    arithmetic: Arithmetic = EXACT,
) -> dict[str, Array]:
    """Gradients by name, each in the memory shape of its tensor; storage of no sequence gets 0.

    `d_output`, `d_lse`: gradients of the outputs, in their memory shapes.  `names`: by default those of the `grad` lines.
    Raises NoDerivative for a score line that has none, and what `exact.evaluate` raises.
    """
    call = bind(attn, inputs, sizes)
    if names is None:
        names = attn.gradient.names if attn.gradient else ()
    wanted = {name: np.zeros(call.shape(name), arithmetic.real) for name in names}
    for problem in call.problems():
        _Backward(problem, arithmetic, Dropping(seed, offset), wanted).run(d_output, d_lse)
    return {name: arithmetic.rounded(array, attn.tensor(name).dtype) for name, array in wanted.items()}


class _Backward:
    """The backward of one softmax matrix, adding into `wanted`."""

    def __init__(self, problem: Problem, arithmetic: Arithmetic, dropping: Dropping, wanted: dict[str, Array]) -> None:
        self.problem = problem
        self.arithmetic = arithmetic
        self.wanted = wanted
        self.weights: Weights = weigh(problem, arithmetic, dropping)

    def run(self, d_output: Array, d_lse: Array | None) -> None:
        problem, weights, real = self.problem, self.weights, self.arithmetic.real
        attn = problem.call.attn
        alive = ~weights.dead[:, None]
        d_out = d_output[problem.place(attn.output, attn.q, attn.feature)[0]].astype(real)
        d_out = np.where(alive, d_out, 0)
        lse_slope: Array = np.zeros(problem.rows, real)
        if d_lse is not None and attn.lse is not None:
            lse_slope = np.where(weights.dead, 0, d_lse[problem.place(attn.lse, attn.q)[0]].astype(real))
        # The output as a backward pass reads it from memory, and the LSE it recomputes the weights from.
        out = self.arithmetic.rounded(attend(problem, weights, self.arithmetic), attn.tensor(attn.output).dtype)
        lse = np.where(weights.dead, 0, weights.lse)[:, None]
        keep: Array = weights.keep / real(1 - attn.dropout.p) if attn.dropout else weights.keep
        with np.errstate(all="ignore"):
            p: Array = np.where(weights.live, np.exp(weights.scores[-1] - lse), 0).astype(real)
            delta: Array = np.where(weights.dead, 0, (d_out * out).sum(axis=1, dtype=real))
            value = problem.matrix(attn.value, attn.k, attn.feature, real)
            d_p: Array = np.where(weights.live, d_out @ value.T * keep, 0)
            d_s = np.where(weights.live, p * (d_p - (delta - lse_slope)[:, None]), 0).astype(real)
        self._value(self.arithmetic.rounded(p * keep, attn.tensor(attn.output).dtype), d_out)
        self._sink(lse[:, 0], delta - lse_slope)
        self._queries_and_keys(self._through_lines(d_s))

    def _value(self, p: Array, d_out: Array) -> None:
        attn, problem = self.problem.call.attn, self.problem
        if attn.value in self.wanted:
            d_v = contract(p.T, self.weights.live.T, d_out) * problem.factor(attn.value, self.arithmetic.real)
            self._add(attn.value, problem.place(attn.value, attn.k, attn.feature)[0], d_v)

    def _sink(self, lse: Array, slope: Array) -> None:
        sink, attn = self.weights.sink, self.problem.call.attn
        if attn.sink is not None and sink is not None and attn.sink.tensor in self.wanted:
            with np.errstate(all="ignore"):
                d_z = np.where(self.weights.dead, 0, -np.exp(sink - lse) * slope).sum()
            self._fetched(attn.sink, np.asarray(d_z)[None, None])

    def _through_lines(self, d_s: Array) -> Array:
        """From the gradient of the last score to that of the dot products."""
        problem, real, live = self.problem, self.arithmetic.real, self.weights.live
        for line, before in reversed(list(zip(lines(problem), self.weights.scores[:-1], strict=True))):
            for read in reads(line):
                if read.tensor in self.wanted:
                    slope = problem.evaluate(derivative(line, read), real, live, s=before)
                    self._fetched(read, _times(d_s, slope, live))
            d_s = _times(d_s, problem.evaluate(derivative(line, SCORE), real, live, s=before), live)
        return d_s

    def _queries_and_keys(self, d_dot: Array) -> None:
        attn, problem, real = self.problem.call.attn, self.problem, self.arithmetic.real
        live = self.weights.live
        for (query, key), d in zip(attn.pairs, attn.contracted, strict=True):
            g = self.arithmetic.rounded(d_dot, attn.tensor(key).dtype)
            if query in self.wanted:
                d_q = contract(g, live, problem.matrix(key, attn.k, d, real)) * problem.factor(query, real)
                self._add(query, problem.place(query, attn.q, d)[0], d_q)
            if key in self.wanted:
                d_k = contract(g.T, live.T, problem.matrix(query, attn.q, d, real)) * problem.factor(key, real)
                self._add(key, problem.place(key, attn.k, d)[0], d_k)

    def _fetched(self, read: Fetch, values: Array) -> None:
        """Adds the gradient of a read, given per lane, to the elements it read."""
        problem, real = self.problem, self.arithmetic.real
        at = tuple(problem.evaluate(i, real, self.weights.live) for i in read.index)
        where, inside = problem.locate(problem.call.attn.tensor(read.tensor), at)
        self._add(read.tensor, where, np.where(inside, values, 0))

    def _add(self, name: str, where: tuple[Array, ...], values: Array) -> None:
        """Adds `values` at a memory index, first summed over the axes along which the index does not move."""
        shape = np.broadcast_shapes(*(w.shape for w in where)) if where else ()
        padded = (1,) * (values.ndim - len(shape)) + shape
        still = tuple(i for i, n in enumerate(padded) if n == 1 and values.shape[i] != 1)
        np.add.at(self.wanted[name], where, values.sum(axis=still, keepdims=True).reshape(shape))


def _times(d_s: Array, slope: Array, live: Array) -> Array:
    """d_s * slope; 0 in lanes that are not live or whose weight is 0, even where the slope is infinite."""
    with np.errstate(all="ignore"):
        product: Array = np.where(live & (d_s != 0), d_s * slope, 0)
    return product
