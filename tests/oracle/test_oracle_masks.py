"""Masks of the language against plain predicates: the weights are read out through values that are an identity matrix."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_specs import attention

from tilec.oracle.exact import evaluate
from tilec.oracle.inputs import make_inputs

N = 24
MASKS = {
    "k <= q + N - M": lambda q, k, m: k <= q + N - m,
    "k <= q and (q - k < 7 or k < 3)": lambda q, k, m: k <= q and (q - k < 7 or k < 3),
    "abs(q - k) <= 8 and (q - k) % 4 == 0": lambda q, k, m: abs(q - k) <= 8 and (q - k) % 4 == 0,
    "q // 5 == k // 5": lambda q, k, m: q // 5 == k // 5,
    "k // 4 <= q // 4": lambda q, k, m: k // 4 <= q // 4,
    "k < prefix[b] or k <= q": lambda q, k, m: k < 6 or k <= q,
    "not (q < 9 and k > 12)": lambda q, k, m: not (q < 9 and k > 12),
    "(k - q) // 3 < 1 and (k - q - 2) % 3 != 0": lambda q, k, m: (k - q) // 3 < 1 and (k - q - 2) % 3 != 0,
    "0 <= q - k < 5": lambda q, k, m: 0 <= q - k < 5,
    "true": lambda q, k, m: True,
}


@pytest.mark.parametrize("m", [5, 24, 40])
@pytest.mark.parametrize("mask", MASKS)
def test_live_lanes(mask, m):
    lines = [f"mask {mask}"] + (["param prefix[b] : i32"] if "prefix" in mask else [])
    attn = attention(*lines, heads=1, features=N)
    given = {"prefix": np.asarray([6], np.int32)}
    inputs = make_inputs(attn, {"B": 1, "M": m, "N": N}, given=given)
    inputs["V"] = np.eye(N, dtype=np.float32)[None, :, None, :]
    weights = evaluate(attn, inputs)["O"][0, :, 0]
    expected = np.array([[MASKS[mask](q, k, m) for k in range(N)] for q in range(m)])
    assert np.array_equal(weights != 0, expected)
    alive = expected.any(1)
    np.testing.assert_allclose(weights.sum(1), alive, rtol=0, atol=1e-13)
