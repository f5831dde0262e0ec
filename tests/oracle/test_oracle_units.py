"""Arithmetic of targets' units: what they drop, and how much at most."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_specs import BOTTOM_RIGHT, attention

from tilec.oracle.exact import evaluate
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import evaluate_rounded
from tilec.oracle.units import Units, cut_product, short_product, short_tanh, units_of
from tilec.targets import target

RNG = np.random.default_rng(0)
LEFT, RIGHT = RNG.standard_normal((70, 100)).astype(np.float32), RNG.standard_normal((100, 9)).astype(np.float32)
EXACT = LEFT.astype(np.float64) @ RIGHT


def test_short_sums_keep_13_bits_below_the_largest_addend():
    a, b = np.ones((1, 2), np.float32), np.array([[256.0], [2.0**-5 + 2.0**-6]], np.float32)
    assert short_product(a, b)[0, 0] == 256 + 2.0**-5
    assert Units(short_sums=True).product(a, b, "e5m2")[0, 0] == 256 + 2.0**-5
    assert Units(short_sums=True).product(a, b, "bf16")[0, 0] == 256 + 2.0**-5 + 2.0**-6


def test_short_sums_carry_over_in_steps_of_32():
    error = np.abs(short_product(LEFT, RIGHT) - EXACT)
    assert 1e-5 < error.max() < 100 * np.abs(LEFT[:, :, None] * RIGHT).max() * 2.0**-12


@pytest.mark.parametrize("sign", [1, -1])
def test_cut_sums_go_towards_zero(sign):
    a, b = np.ones((1, 32), np.float32), np.zeros((32, 1), np.float32)
    b[0], b[16] = sign, sign * 2.0**-23 * 0.75
    assert cut_product(a, b)[0, 0] == sign
    b[17] = b[16]  # 16 terms are added before the cut
    assert cut_product(a, b)[0, 0] == sign * (1 + 2.0**-23)
    assert Units(cut_sums=True).product(a, b, "f16")[0, 0] == cut_product(a, b)[0, 0]


def test_cut_sums_lose_at_most_a_unit_in_each_step():
    found = cut_product(LEFT, RIGHT)
    near = np.abs(LEFT @ RIGHT - EXACT).max()
    steps = -(-100 // 16)
    largest = np.abs(LEFT[:, :, None] * RIGHT).sum(axis=1).max()
    assert near < np.abs(found - EXACT).max() < steps * largest * 2.0**-23


def test_short_tanh_is_good_to_2_to_the_minus_11():
    x = np.linspace(-6, 6, 10_001).astype(np.float32)
    exact = np.tanh(x.astype(np.float64))
    error = np.abs(short_tanh(x) - exact)[x != 0] / np.abs(exact)[x != 0]
    assert 2.0**-12 < error.max() < 2.0**-11 * (1 + 1e-3)
    assert short_tanh(x).dtype == np.float32 and short_tanh(np.float32([0, np.inf])).tolist() == [0, 1]


def test_scores_take_the_tanh_of_the_units():
    attn = attention(BOTTOM_RIGHT, "score s = 5 * tanh(s / 5)")
    inputs = make_inputs(attn, {"B": 1, "M": 9, "N": 13})
    exact = evaluate(attn, inputs)["L"]
    far, near = (
        np.abs(evaluate_rounded(attn, inputs, units=Units(short_tanh=t))["L"] - exact).max() for t in (True, False)
    )
    assert near < 1e-5 < far < 5 * 2.0**-10


def test_targets_say_what_their_units_do():
    assert units_of(target("sm90")) == Units(short_sums=True, cut_sums=True, short_tanh=True)
    assert units_of(target("sm80")) == Units(cut_sums=True, short_tanh=True)
    assert units_of(target("gfx942")) == Units(fnuz=True)
    assert units_of(target("cpu")) == Units()
