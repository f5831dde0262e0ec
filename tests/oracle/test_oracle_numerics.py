"""The rule that compares with a target: what must pass does, and each planted mistake fails."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from oracle_specs import BOTTOM_RIGHT, attention

from tilec.oracle.dtypes import numpy_dtype
from tilec.oracle.exact import evaluate, gradients
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import (
    check,
    evaluate_rounded,
    gradients_rounded,
    verify,
    verify_gradients,
)
from tilec.oracle.units import Units

SIZES = {"B": 2, "M": 70, "N": 90}
SINK = "sink Z[h] : f32"
DTYPES = [("bf16", "bf16"), ("f16", "f16"), ("f32", "f32"), ("e4m3", "bf16"), ("e5m2", "f16")]


def blockwise(attn, inputs, block=16):
    """Causal attention with an online softmax over key blocks in f32, as a kernel does it; a different order of everything."""
    dtype = inputs["V"].dtype
    q, k, v = (inputs[n].astype(np.float32).transpose(0, 2, 1, 3) for n in "QKV")
    m, n = q.shape[2], k.shape[2]
    live = np.arange(n)[None, :] <= np.arange(m)[:, None] + n - m
    top = np.full((*q.shape[:3], 1), -np.inf, np.float32)
    total, out = np.zeros_like(top), np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    log2e = np.float32(1.4426950408889634)
    for start in range(0, n, block):
        at = np.s_[start : start + block]
        s = np.where(live[:, at], (q @ k[:, :, at].swapaxes(2, 3)) * np.float32(0.25) * log2e, -np.inf).astype(
            np.float32
        )
        new = np.maximum(top, s.max(-1, keepdims=True))
        safe = np.where(new == -np.inf, 0, new)
        p, shrink = np.exp2(s - safe), np.exp2(top - safe)
        total = total * shrink + p.sum(-1, keepdims=True)
        out = out * shrink + p.astype(dtype).astype(np.float32) @ v[:, :, at]
        top = new
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, top / log2e + np.log(total))
    out = out / np.where(total == 0, 1, total)
    storage = numpy_dtype(attn.tensor("O").dtype)
    return {"O": out.transpose(0, 2, 1, 3).astype(storage), "L": lse[..., 0].astype(np.float32)}


@pytest.mark.parametrize("style", ["normal", "shifted", "onehot", "position"])
@pytest.mark.parametrize(("dtype", "out"), DTYPES)
@pytest.mark.parametrize(("m", "n"), [(70, 90), (90, 70), (1, 1), (2, 65)])
def test_an_online_softmax_passes(dtype, out, style, m, n):
    attn = attention(BOTTOM_RIGHT, dtype=dtype, out=out)
    inputs = make_inputs(attn, {"B": 2, "M": m, "N": n}, style=style)
    for report in verify(attn, inputs, blockwise(attn, inputs)).values():
        assert report.ok, str(report)


MISTAKES = {
    "one key too many": BOTTOM_RIGHT.replace("N - M", "N - M + 1"),
    "one key too few": BOTTOM_RIGHT.replace("N - M", "N - M - 1"),
    "top left": "mask k <= q",
    "no mask": "",
}


@pytest.mark.parametrize("style", ["normal", "position"])
@pytest.mark.parametrize(("dtype", "out"), DTYPES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_mask_fails(dtype, out, style, mistake):
    attn = attention(BOTTOM_RIGHT, dtype=dtype, out=out)
    wrong = attention(*filter(None, [MISTAKES[mistake]]), dtype=dtype, out=out)
    inputs = make_inputs(attn, SIZES, style=style)
    reports = verify(attn, inputs, evaluate_rounded(wrong, inputs))
    assert not reports["O"].ok and not reports["L"].ok


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda o: o * 1.02, "error"),
        (lambda o: np.where(np.arange(16) == 15, np.roll(o, 1, -1), o), "error"),
        (lambda o: np.roll(o, 1, axis=2), "error"),
        (lambda o: np.where(o == o[1, 69, 3, 7], np.nan, o), "not finite"),
        (lambda o: np.where(o == o[0, 3, 0, 0], np.inf, o), "not finite"),
        (lambda o: o[:, :-1], "shape"),
    ],
    ids=["scale", "features", "heads", "nan", "inf", "shape"],
)
def test_wrong_values_fail(change, complaint):
    attn = attention(BOTTOM_RIGHT)
    inputs = make_inputs(attn, SIZES)
    got = evaluate_rounded(attn, inputs)["O"]
    assert verify(attn, inputs, {"O": got})["O"].ok
    report = verify(attn, inputs, {"O": change(got)})["O"]
    assert not report.ok and complaint in report.complaint and "FAIL" in str(report)


def test_dead_rows_must_be_zero_and_their_lse_minus_infinity():
    attn = attention(BOTTOM_RIGHT, SINK)
    inputs = make_inputs(attn, {"B": 1, "M": 40, "N": 30})
    got = evaluate_rounded(attn, inputs)
    assert all(r.ok for r in verify(attn, inputs, got).values())
    got["O"][0, 4, 1, 2] = 1e-7
    got["L"][0, 1, 4] = -1e30
    reports = verify(attn, inputs, got)
    assert "no live key" in reports["O"].complaint and reports["O"].worst == (0, 4, 1, 2)
    assert "not finite" in reports["L"].complaint and reports["L"].worst == (0, 1, 4)


def test_a_nan_of_the_inputs_must_arrive_where_it_belongs():
    attn = attention("mask k <= q")
    inputs = make_inputs(attn, {"B": 1, "M": 20, "N": 20})
    inputs["V"][0, 9, 0, 0] = np.nan
    got = evaluate_rounded(attn, inputs)["O"]
    assert verify(attn, inputs, {"O": got})["O"].ok
    assert not verify(attn, inputs, {"O": np.nan_to_num(got)})["O"].ok


def test_the_rounded_computation_rounds():
    for dtype, out in DTYPES:
        attn = attention(BOTTOM_RIGHT, dtype=dtype, out=out)
        inputs = make_inputs(attn, SIZES)
        near, true = evaluate_rounded(attn, inputs), evaluate(attn, inputs)
        storage = numpy_dtype(attn.tensor("O").dtype)
        np.testing.assert_array_equal(near["O"].astype(storage).astype(np.float32), near["O"])
        error = np.abs(near["O"] - true["O"]).max()
        low, high = {"bf16": (1e-3, 2e-2), "f16": (1e-4, 2e-3), "f32": (1e-8, 1e-5)}.get(dtype, (1e-2, 0.3))
        assert low < error < high, dtype


def test_fnuz_rounds_the_weights_to_its_own_numbers():
    attn = attention(dtype="e4m3", out="bf16", scaled=True)
    inputs = make_inputs(attn, SIZES, fnuz=True)
    assert inputs["V"].dtype == ml_dtypes.float8_e4m3fnuz
    ocp = {n: x.astype(ml_dtypes.float8_e4m3fn) if n in "QKV" else x for n, x in inputs.items()}
    theirs, ours = (evaluate_rounded(attn, ocp, units=Units(fnuz=f))["O"] for f in (True, False))
    assert not np.array_equal(theirs, ours)
    for name, array in evaluate_rounded(attn, inputs, units=Units(fnuz=True)).items():
        assert check(array, evaluate(attn, inputs)[name], array, name=name).ok


def test_weights_of_dropout_round_like_others():
    attn = attention(BOTTOM_RIGHT, "dropout 0.3")
    inputs = make_inputs(attn, SIZES)
    got = evaluate_rounded(attn, inputs, seed=5)
    assert all(r.ok for r in verify(attn, inputs, got, seed=5).values())
    assert not verify(attn, inputs, got, seed=6)["O"].ok


@pytest.mark.parametrize("style", ["normal", "shifted", "onehot", "position"])
@pytest.mark.parametrize(("m", "n"), [(70, 90), (33, 1), (90, 70)])
def test_gradients_in_bf16(style, m, n):
    """Those of a computation that differs in rounding only pass; a softmax gradient without its delta fails."""
    attn = attention(BOTTOM_RIGHT, SINK, "grad Q, K, V, Z", group=2)
    inputs = make_inputs(attn, {"B": 2, "M": m, "N": n}, style=style)
    rng = np.random.default_rng(1)
    d_out = rng.standard_normal((2, m, 4, 16)).astype(ml_dtypes.bfloat16)
    d_lse = rng.standard_normal((2, 4, m)).astype(np.float32)
    near = gradients_rounded(attn, inputs, d_out, d_lse)
    exactly = gradients(attn, inputs, d_out, d_lse)
    stored = {x: y.astype(inputs[x].dtype) for x, y in exactly.items()}
    for got in (near, stored):
        for report in verify_gradients(attn, inputs, d_out, got, d_lse).values():
            assert report.ok, str(report)
    if style == "normal" and n > 1:
        without = gradients_rounded(attn, inputs, d_out, None)
        reports = verify_gradients(attn, inputs, d_out, without, d_lse)
        assert reports["V"].ok and not any(reports[x].ok for x in ("Q", "K", "Z"))


def test_one_element_may_round_the_other_way():
    exact = np.array([1.0 + 2.0**-8 + 1e-9])
    near = np.array([1.0 + 2.0**-7])
    assert check(np.array([1.0], ml_dtypes.bfloat16), exact, near).ok
    assert not check(np.array([1.0 - 2.0**-6], ml_dtypes.bfloat16), exact, near).ok


def test_many_small_errors_fail_by_their_mean_square():
    exact = np.random.default_rng(0).standard_normal(100_000)
    near = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    drifted = (exact * (1 + 1.5 * 2.0**-8)).astype(ml_dtypes.bfloat16)
    report = check(drifted, exact, near)
    assert "on the whole" in report.complaint and report.error_max <= report.allowed_max
