"""Dense causal attention in float64, and running the hand-written programs of `programs/` against it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np

from tilec.ir.interp import Order, run
from tilec.ir.nodes import Program
from tilec.ir.parse import parse_program

FOLDER = Path(__file__).with_name("programs")
HEAD = 128


def read(name: str) -> str:
    return (FOLDER / f"{name}.tp").read_text(encoding="utf-8")


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """O [b, q, h, d] and the natural log of the denominators [b, h, q]; bottom-right causal; a row without keys: 0, -inf."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.astype(np.float64) for x in (q, k.repeat(group, 2), v.repeat(group, 2)))
    rows, keys = q.shape[1], k.shape[1]
    live = np.arange(keys) <= np.arange(rows)[:, None] + keys - rows
    s = np.where(live, np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(HEAD), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.where(live.any(-1)[:, None], s.max(-1, keepdims=True, initial=-np.inf), 0)
        top = np.where(np.isinf(top), 0, top)
        e = np.exp(s - top)
        total = e.sum(-1, keepdims=True)
        p = np.where(total > 0, e / total, 0)
        return np.einsum("bhqk,bkhd->bqhd", p, v), (np.log(total) + top)[..., 0]


@dataclass(frozen=True)
class Case:
    """One call: extents, and heads per key head."""

    rows: int
    keys: int
    batch: int = 1
    heads: int = 2
    group: int = 1
    extra: dict[str, int] = field(default_factory=dict)

    def inputs(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.rows * 1000 + self.keys)

        def random(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)

        return {
            "Q": random(self.batch, self.rows, self.heads, HEAD),
            "K": random(self.batch, self.keys, self.heads // self.group, HEAD),
            "V": random(self.batch, self.keys, self.heads // self.group, HEAD),
            "O": np.full((self.batch, self.rows, self.heads, HEAD), np.nan, ml_dtypes.bfloat16),
            "L": np.full((self.batch, self.heads, self.rows), np.nan, np.float32),
        }

    def run(self, p: Program, seed: int = 0, order: Order = Order()) -> dict[str, np.ndarray]:  # noqa: B008
        tensors = self.inputs()
        extents = {"B": self.batch, "H": self.heads, "M": self.rows, "N": self.keys, **self.extra}
        run(p, tensors, extents, seed=seed, schedule=order)
        return tensors

    def check(self, p: Program, seed: int = 0, order: Order = Order()) -> None:  # noqa: B008
        """Runs and compares: bf16 rounding of P and O allows 2**-7 of an output of size about 1."""
        got = self.run(p, seed, order)
        o, log_sum = dense(got["Q"], got["K"], got["V"])
        np.testing.assert_allclose(got["O"].astype(np.float64), o, rtol=2**-7, atol=2**-7)
        np.testing.assert_allclose(got["L"].astype(np.float64), log_sum, rtol=1e-5, atol=1e-5)


def edited(text: str, *edits: tuple[str, str]) -> Program:
    """The program with each `old` replaced everywhere by `new`; every edit must hit."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return parse_program(text)
