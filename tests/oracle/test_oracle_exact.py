"""The exact oracle's outputs against torch in float64, and their values at the edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle_specs import BOTTOM_RIGHT, attention, mla, op
from oracle_torch import bottom_right, dense, f64, heads_first, leaf

from tilec.ir.expr import FALSE, Float, Var
from tilec.ir.philox import uniform
from tilec.oracle.exact import dead_rows, evaluate
from tilec.oracle.inputs import make_inputs

SIZES = {"B": 2, "M": 37, "N": 53}
CLOSE = {"rtol": 0, "atol": 1e-12}


def torch_inputs(inputs, group=1):
    q_, k_, v_ = (leaf(inputs[n]) for n in "QKV")
    return heads_first(q_), heads_first(k_, group), heads_first(v_, group)


def check(attn, inputs, out, lse):
    got = evaluate(attn, inputs)
    np.testing.assert_allclose(got["O"], f64(out.transpose(1, 2)), **CLOSE)
    np.testing.assert_allclose(got["L"], f64(lse), **CLOSE)


@pytest.mark.parametrize(("m", "n"), [(37, 53), (53, 37), (1, 64), (64, 1), (5, 5)])
def test_causal_gqa_against_sdpa(m, n):
    attn = attention(BOTTOM_RIGHT, heads=8, group=4)
    inputs = make_inputs(attn, {"B": 2, "M": m, "N": n})
    tq, tk, tv = torch_inputs(inputs, 4)
    live = bottom_right(m, n)
    expected = torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, attn_mask=live)
    expected = torch.where(live.any(-1)[:, None], expected, 0.0)
    np.testing.assert_allclose(evaluate(attn, inputs)["O"], f64(expected.transpose(1, 2)), **CLOSE)


@pytest.mark.parametrize("style", ["normal", "shifted", "onehot", "position"])
def test_styles_and_value_width(style):
    attn = attention(BOTTOM_RIGHT, features=24)
    inputs = make_inputs(attn, SIZES, style=style)
    tq, tk, tv = torch_inputs(inputs)
    got, (out, lse) = evaluate(attn, inputs), dense(tq @ tk.mT / 4.0, bottom_right(37, 53), tv)
    np.testing.assert_allclose(got["O"], f64(out.transpose(1, 2)), rtol=0, atol=1e-10)
    np.testing.assert_allclose(got["L"], f64(lse), rtol=1e-14, atol=1e-12)


def test_scores_masks_params_and_sink():
    """softcap, ALiBi, a bias matrix and documents, with a sink, in the order of the lines."""
    attn = attention(
        "param slope[h] : f32",
        "bias Bt[b, h, q, k] : f32",
        "param doc[b, k] : i32 nondecreasing",
        "sink Z[h] : f32",
        "score s = 5.0 * tanh(s / 5.0)",
        "score s = s - slope[h] * (q + (N - M) - k)",
        "score s = s + Bt[b, h, q, k]",
        "mask doc[b, q] == doc[b, k] and k <= q",
    )
    inputs = make_inputs(attn, {**SIZES, "M": 40, "N": 53})
    tq, tk, tv = torch_inputs(inputs)
    rows, cols = torch.arange(40)[:, None], torch.arange(53)[None, :]
    logits = 5.0 * torch.tanh(tq @ tk.mT / 4.0 / 5.0)
    logits = logits - leaf(inputs["slope"])[:, None, None] * (rows + 13 - cols) + leaf(inputs["Bt"])
    doc = torch.from_numpy(inputs["doc"])
    live = (doc[:, None, :40, None] == doc[:, None, None, :]) & (cols <= rows)
    check(attn, inputs, *dense(logits, live, tv, sink=leaf(inputs["Z"])[:, None, None]))


def test_latent_attention_adds_pairs_and_reuses_keys():
    attn = mla()
    inputs = make_inputs(attn, SIZES)
    ql, qr = (heads_first(leaf(inputs[n])) for n in ("Q", "Qr"))
    c, r = (leaf(inputs[n])[:, None] for n in "CR")
    logits = (ql @ c.mT + qr @ r.mT) / 24**0.5
    check(attn, inputs, *dense(logits, bottom_right(37, 53), c))


@pytest.mark.parametrize("order", ["bhqd", "qbhd", "hbqd", "qhbd"])
def test_any_order_of_dimensions(order):
    plain, other = attention(BOTTOM_RIGHT), attention(BOTTOM_RIGHT, order=order)
    inputs = make_inputs(plain, SIZES)
    axes = ["bqhd".index(c) for c in order]
    moved = {n: np.transpose(x, axes) for n, x in inputs.items()}
    got = evaluate(other, moved)
    np.testing.assert_array_equal(got["O"], np.transpose(evaluate(plain, inputs)["O"], axes))


def test_descales_multiply_the_stored_values():
    attn = attention(scaled=True, dtype="e4m3", out="bf16", group=2)
    inputs = make_inputs(attn, SIZES)
    tq, tk, tv = torch_inputs(inputs, 2)
    qs = leaf(inputs["qs"])[:, :, None, None]
    ks, vs = (leaf(inputs[n]).repeat_interleave(2, 1)[:, :, None, None] for n in ("ks", "vs"))
    check(attn, inputs, *dense((tq * qs) @ (tk * ks).mT / 4.0, torch.ones(37, 53, dtype=torch.bool), tv * vs))


def test_dropout_keeps_the_lse_and_the_documented_bits():
    attn = attention(BOTTOM_RIGHT, "dropout 0.25")
    inputs = make_inputs(attn, SIZES)
    tq, tk, tv = torch_inputs(inputs)
    at = np.ix_(range(2), range(4), range(37), range(53))
    keep = torch.from_numpy(uniform(9, 4, *at) >= np.float32(0.25)).double() / 0.75
    out, lse = dense(tq @ tk.mT / 4.0, bottom_right(37, 53), tv, keep=keep)
    got = evaluate(attn, inputs, seed=9, offset=4)
    np.testing.assert_allclose(got["O"], f64(out.transpose(1, 2)), **CLOSE)
    np.testing.assert_allclose(got["L"], f64(lse), **CLOSE)
    assert not np.array_equal(got["O"], evaluate(attn, inputs, seed=9, offset=5)["O"])


@pytest.mark.parametrize("sizes", [{"N": 0}, {"M": 0}, {"B": 0}, {"N": 0, "M": 0}])
@pytest.mark.parametrize("sink", [False, True])
def test_empty_extents(sizes, sink):
    attn = attention(BOTTOM_RIGHT, *(["sink Z[h] : f32"] if sink else []))
    inputs = make_inputs(attn, {**SIZES, **sizes})
    got = evaluate(attn, inputs)
    full = {**SIZES, **sizes}
    assert got["O"].shape == (full["B"], full["M"], 4, 16)
    assert not got["O"].any()
    assert np.all(got["L"] == -np.inf)


def test_rows_without_live_keys_are_zero_even_with_a_sink():
    attn = attention("sink Z[h] : f32", "mask k <= q + N - M and q != 30")
    inputs = make_inputs(attn, {"B": 1, "M": 40, "N": 25})
    got, dead = evaluate(attn, inputs), dead_rows(attn, inputs)
    expected = np.array([r < 15 or r == 30 for r in range(40)])
    assert np.array_equal(dead, np.broadcast_to(expected[None, :, None, None], dead.shape))
    assert not got["O"][dead].any()
    assert np.array_equal(got["L"] == -np.inf, np.broadcast_to(expected, (1, 4, 40)))


K, Q, S = Var("k"), Var("q"), Var("s")


def test_a_false_mask_weighs_nothing_under_any_score():
    plain = attention("mask k != 3")
    attn = plain.with_(scores=(op("where", op("==", K, 3), Float(np.inf), S),))
    inputs = make_inputs(attn, SIZES)
    np.testing.assert_array_equal(evaluate(attn, inputs)["O"], evaluate(plain, inputs)["O"])
    assert not evaluate(attn.with_(mask=FALSE), inputs)["O"].any()


def test_scores_of_minus_infinity_weigh_like_a_false_mask():
    masked = attention("sink Z[h] : f32", "mask not (k == 3 or q == 5)")
    barred = op("where", op("or", op("==", K, 3), op("==", Q, 5)), Float(-np.inf), S)
    attn = attention("sink Z[h] : f32").with_(scores=(barred,))
    inputs = make_inputs(attn, SIZES)
    for name, array in evaluate(masked, inputs).items():
        np.testing.assert_array_equal(evaluate(attn, inputs)[name], array)


def test_a_nan_reaches_the_rows_that_see_it():
    attn = attention("mask k <= q")
    inputs = make_inputs(attn, {"B": 1, "M": 12, "N": 12})
    clean = evaluate(attn, inputs)
    for name, sees in (("Q", [7]), ("K", range(7, 12)), ("V", range(7, 12))):
        array = inputs[name].astype(np.float64)
        array[0, 7, 2, 0] = np.nan
        got = evaluate(attn, {**inputs, name: array})["O"]
        hit = np.isnan(got).any(axis=(0, 3))
        assert np.array_equal(np.argwhere(hit), [[r, 2] for r in sees]), name
        np.testing.assert_array_equal(got[0][~hit], clean["O"][0][~hit])


def test_reads_outside_a_param_matter_only_in_live_lanes():
    lines = ("param near[d] : f32", "score s = s + near[q - k]")
    attn = attention(*lines, "mask k <= q and q - k < 16")
    inputs = make_inputs(attn, {"B": 1, "M": 30, "N": 30})
    tq, tk, tv = torch_inputs(inputs)
    apart = torch.arange(30)[:, None] - torch.arange(30)[None, :]
    near = leaf(inputs["near"])[apart.clamp(0, 15)]
    check(attn, inputs, *dense(tq @ tk.mT / 4.0 + near, (apart >= 0) & (apart < 16), tv))
    with pytest.raises(IndexError, match="near"):
        evaluate(attention(*lines), inputs)


def grouped(e):
    return op("//", Var("h"), Var("G")) if e is op("//", Var("h"), 4) else e


def test_a_group_size_is_read_off_the_shapes():
    fixed = attention(heads=8, group=4)
    symbolic = fixed.with_(tensors=tuple(replace(t, index=tuple(map(grouped, t.index))) for t in fixed.tensors))
    inputs = make_inputs(fixed, SIZES)
    np.testing.assert_array_equal(evaluate(symbolic, inputs)["O"], evaluate(fixed, inputs)["O"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x | {"K": x["K"][:, :-1]}, "V: a dimension of 53 where N"),
        (lambda x: x | {"K": x["K"][0]}, "K: expected"),
        (lambda x: {n: a for n, a in x.items() if n != "V"}, "V is missing"),
        (lambda x: x | {"K": x["K"][:, :, :1]}, "K: a dimension of 1 where 4"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, message):
    attn = attention()
    with pytest.raises(ValueError, match=message):
        evaluate(attn, change(make_inputs(attn, SIZES)))
