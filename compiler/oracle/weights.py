"""The softmax weights of one problem (dot products, score lines, mask, sink, dropout) and the rows they give.

The same steps serve two arithmetics.  EXACT is float64 throughout.  A target's rounding is float32 with the probabilities
rounded to the value's dtype, as `numerics` documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.expr import Expr, Op, Var
from tilec.oracle.layout import Problem
from tilec.oracle.scalar import Real, evaluate

Array = NDArray[Any]
SCORE = Var("s")


def identity(x: Array, dtype: str) -> Array:
    """No rounding."""
    return x


def matmul(a: Array, b: Array, dtype: str) -> Array:
    """a @ b."""
    out: Array = a @ b
    return out


@dataclass(frozen=True)
class Arithmetic:
    """`real`: type of scores and accumulators; `rounded(x, dtype)`: x after a trip through a storage dtype, as `real`;
    `product(a, b, dtype)`: a @ b of operands that were stored as `dtype`; `tanh`: that of the score lines."""

    real: Real = np.float64
    rounded: Callable[[Array, str], Array] = identity
    product: Callable[[Array, Array, str], Array] = matmul
    tanh: Callable[[Array], Array] = np.tanh


EXACT = Arithmetic()


@dataclass(frozen=True)
class Dropping:
    """Key of the generator for one call; see `ir.philox`."""

    seed: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Weights:
    """Rows by columns.  `scores[i]` is what enters line i, the last one what the softmax sees.

    A live lane whose score is -inf counts as not live: its weight is 0 either way, and a row of nothing else is dead.
    `shifted` is exp(s - maximum) in live lanes and 0 elsewhere; `total` its row sum with the sink; `keep` is 1 or 0.
    """

    scores: tuple[Array, ...]
    live: Array
    dead: Array  # [rows]
    maximum: Array  # [rows], finite in dead rows too
    shifted: Array
    total: Array  # [rows]
    keep: Array
    sink: Array | None  # the sink's logit

    @property
    def lse(self) -> Array:
        """log(den), [rows]; -inf in dead rows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = np.where(self.dead, self.maximum.dtype.type(-np.inf), self.maximum + np.log(self.total))
        return found


def lines(problem: Problem) -> tuple[Expr, ...]:
    """The scale and the score lines, each over Var("s")."""
    attn = problem.call.attn
    return (Op("*", (attn.scale, SCORE)), *attn.scores)


def weigh(problem: Problem, arithmetic: Arithmetic, dropping: Dropping) -> Weights:
    """The weights of every (row, column) of a problem."""
    attn, real = problem.call.attn, arithmetic.real
    shape = (problem.rows, problem.cols)
    live = np.broadcast_to(problem.evaluate(attn.mask, real), shape)
    s = np.zeros(shape, real)
    with np.errstate(all="ignore"):
        for (query, key), d in zip(attn.pairs, attn.contracted, strict=True):
            q, k = problem.matrix(query, attn.q, d, real), problem.matrix(key, attn.k, d, real)
            s = s + arithmetic.product(q, k.T, attn.tensor(key).dtype)
        scores = [s]
        for line in lines(problem):
            s = np.broadcast_to(problem.evaluate(line, real, live, arithmetic.tanh, s=s), shape).astype(real)
            scores.append(s)
        live = live & (s != -np.inf)
        dead = ~live.any(axis=1)
        sink = None if attn.sink is None else problem.evaluate(attn.sink, real)
        start = real(-np.inf) if sink is None else sink
        maximum = np.where(live, s, -np.inf).max(axis=1, initial=-np.inf)
        maximum = np.where(dead, 0, np.maximum(maximum, start)).astype(real)
        shifted = np.where(live, np.exp(s - maximum[:, None]), 0).astype(real)
        total = shifted.sum(axis=1, dtype=real)
        if sink is not None:
            total = total + np.where(dead, 0, np.exp(sink - maximum))
    return Weights(tuple(scores), live, dead, maximum, shifted, total.astype(real), kept(problem, dropping, real), sink)


def kept(problem: Problem, dropping: Dropping, real: Real) -> Array:
    """1 where dropout keeps a weight, else 0; without dropout a single 1."""
    attn = problem.call.attn
    if attn.dropout is None:
        return np.ones((1, 1), real)
    b, h = attn.dropout_words
    words = (Var("seed"), Var("offset"), b, h, Var(attn.q), Var(attn.k))
    env = problem.env(seed=dropping.seed, offset=dropping.offset)
    drawn = evaluate(Op("uniform", words), env, problem.call.table, np.float32)
    return (drawn >= np.float32(attn.dropout.p)).astype(real)


def contract(weights: Array, live: Array, values: Array, product: Callable[[Array, Array], Array] = np.matmul) -> Array:
    """product(weights, values) where a value counts only in live lanes, so that a NaN or infinity elsewhere reaches nothing."""
    wild: Array = np.logical_not(np.isfinite(values).all(axis=1))
    if not wild.any():
        return product(weights, values)
    out: Array = product(weights, np.where(wild[:, None], 0, values).astype(values.dtype))
    with np.errstate(invalid="ignore", over="ignore"):
        for j in np.flatnonzero(wild):
            out = out + np.where(live[:, j, None], weights[:, j, None] * values[j], 0)
    return out


def attend(problem: Problem, weights: Weights, arithmetic: Arithmetic) -> Array:
    """The output rows of one problem, [rows, features], before they are rounded to the output's dtype."""
    attn = problem.call.attn
    value = problem.matrix(attn.value, attn.k, attn.feature, arithmetic.real)
    dtype = attn.tensor(attn.value).dtype
    p = arithmetic.rounded(weights.shifted * weights.keep, dtype)
    total = weights.total if attn.dropout is None else weights.total * arithmetic.real(1 - attn.dropout.p)
    with np.errstate(divide="ignore", invalid="ignore"):
        summed = contract(p, weights.live, value, lambda a, b: arithmetic.product(a, b, dtype))
        rows: Array = summed / np.where(weights.dead, 1, total)[:, None]
    return np.where(weights.dead[:, None], 0, rows)
