"""The oracle's gradients against torch autograd and central differences, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle_specs import BOTTOM_RIGHT, attention, mla, op
from oracle_torch import bottom_right, dense, f64, heads_first, leaf

from tilec.arith.derivative import NoDerivative
from tilec.ir.expr import Float, Var
from tilec.ir.philox import uniform
from tilec.oracle.exact import evaluate, gradients
from tilec.oracle.inputs import make_inputs

SIZES = {"B": 2, "M": 21, "N": 34}


def compare(attn, inputs, forward, names, *, lse=True, **options):
    """`forward(leaves)` gives O [B, H, M, E] and L; gradients of random dO and dL must agree to 1e-10."""
    rng = np.random.default_rng(5)
    leaves = {n: leaf(x) if x.dtype.kind != "i" else torch.from_numpy(x) for n, x in inputs.items()}
    out, found_lse = forward(leaves)
    d_out = rng.standard_normal(f64(out.transpose(1, 2)).shape)
    d_lse = rng.standard_normal(f64(found_lse).shape) if lse else None
    alive = found_lse > -torch.inf
    loss = (out * torch.from_numpy(d_out).transpose(1, 2)).sum()
    if d_lse is not None:
        loss = loss + (torch.where(alive, found_lse, 0.0) * torch.from_numpy(d_lse)).sum()
    wanted = torch.autograd.grad(loss, [leaves[n] for n in names])
    got = gradients(attn, inputs, d_out, d_lse, names=names, **options)
    for name, expected in zip(names, wanted, strict=True):
        assert expected.abs().max() > 0
        np.testing.assert_allclose(got[name], f64(expected), rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize(("m", "n"), [(21, 34), (34, 21)])
def test_causal_gqa_with_and_without_the_gradient_of_the_lse(m, n, lse):
    attn = attention(BOTTOM_RIGHT, heads=8, group=4, features=24)
    inputs = make_inputs(attn, {**SIZES, "M": m, "N": n})

    def forward(x):
        tq, tk, tv = heads_first(x["Q"]), heads_first(x["K"], 4), heads_first(x["V"], 4)
        return dense(tq @ tk.mT / 4.0, bottom_right(m, n), tv)

    compare(attn, inputs, forward, ("Q", "K", "V"), lse=lse)


def test_softcap_slopes_biases_tables_and_a_sink():
    attn = attention(
        "param slope[h] : f32",
        "bias Bt[b, h, q, k] : f32",
        "bias shared[q, k] : f32",
        "param near[h, d] : f32",
        "param heat[d] : f32",
        "sink Z[h] : f32",
        "scale 0.5",
        "score s = s * heat[3]",
        "score s = 5.0 * tanh(s / 5.0)",
        "score s = s - slope[h] * abs(q - k)",
        "score s = s + Bt[b, h, q, k] + shared[q, k] * s",
        "score s = s + near[h, q - k]",
        "mask k <= q and q - k < 16",
    )
    inputs = make_inputs(attn, SIZES)
    apart = torch.arange(21)[:, None] - torch.arange(34)[None, :]

    def forward(x):
        tq, tk, tv = (heads_first(x[n]) for n in "QKV")
        z = 5.0 * torch.tanh(tq @ tk.mT * (x["heat"][3] * 0.5) / 5.0)
        z = z - x["slope"][:, None, None] * apart.abs()
        z = z + x["Bt"] + x["shared"] * z
        z = z + x["near"][:, apart.clamp(0, 15)]
        return dense(z, (apart >= 0) & (apart < 16), tv, sink=x["Z"][:, None, None])

    compare(attn, inputs, forward, ("Q", "K", "V", "slope", "Bt", "shared", "near", "heat", "Z"))


def test_every_score_function_chains():
    attn = attention(
        "score s = log(exp(min(s, 1.5)) + sqrt(s ** 2 + abs(s)))",
        "score s = where(s > 0.5, max(s, 2.0 * (s - 0.6)), s / (2 + s))",
        BOTTOM_RIGHT,
    )
    inputs = make_inputs(attn, SIZES)

    def forward(x):
        tq, tk, tv = (heads_first(x[n]) for n in "QKV")
        z = tq @ tk.mT / 4.0
        z = torch.log(torch.exp(z.clamp(max=1.5)) + torch.sqrt(z**2 + z.abs()))
        z = torch.where(z > 0.5, torch.maximum(z, 2.0 * (z - 0.6)), z / (2 + z))
        return dense(z, bottom_right(21, 34), tv)

    compare(attn, inputs, forward, ("Q", "K", "V"))


def test_a_value_that_is_a_key_gets_both_contributions():
    attn = mla()
    inputs = make_inputs(attn, SIZES)

    def forward(x):
        c, r = x["C"][:, None], x["R"][:, None]
        z = (heads_first(x["Q"]) @ c.mT + heads_first(x["Qr"]) @ r.mT) / 24**0.5
        return dense(z, bottom_right(21, 34), c)

    compare(attn, inputs, forward, ("Q", "Qr", "C", "R"))


def test_dropout_and_descales():
    attn = attention(BOTTOM_RIGHT, "dropout 0.4", scaled=True, dtype="e4m3", out="bf16", group=2)
    inputs = make_inputs(attn, SIZES)
    keep = torch.from_numpy(uniform(3, 0, *np.ix_(range(2), range(4), range(21), range(34))) >= np.float32(0.4))

    def forward(x):
        qs = x["qs"][:, :, None, None]
        ks, vs = (x[n].repeat_interleave(2, 1)[:, :, None, None] for n in ("ks", "vs"))
        tq, tk, tv = heads_first(x["Q"]) * qs, heads_first(x["K"], 2) * ks, heads_first(x["V"], 2) * vs
        return dense(tq @ tk.mT / 4.0, bottom_right(21, 34), tv, keep=keep.double() / 0.6)

    compare(attn, inputs, forward, ("Q", "K", "V"), seed=3)


@pytest.mark.parametrize("style", ["shifted", "onehot"])
def test_large_logits_against_autograd(style):
    attn = attention(BOTTOM_RIGHT)
    inputs = make_inputs(attn, SIZES, style=style)

    def forward(x):
        tq, tk, tv = (heads_first(x[n]) for n in "QKV")
        return dense(tq @ tk.mT / 4.0, bottom_right(21, 34), tv)

    compare(attn, inputs, forward, ("Q", "K", "V"))


def test_against_central_differences():
    attn = attention(
        "param slope[h] : f32",
        "sink Z[h] : f32",
        "score s = s - slope[h] * (q - k)",
        "score s = tanh(s)",
        "grad Q, K, V, slope, Z",
        BOTTOM_RIGHT,
        heads=2,
        group=2,
        depth=4,
    )
    inputs = {n: x.astype(np.float64) for n, x in make_inputs(attn, {"B": 1, "M": 5, "N": 4}).items()}
    rng = np.random.default_rng(2)
    outs = evaluate(attn, inputs)
    weight = {n: rng.standard_normal(x.shape) for n, x in outs.items()}

    def loss(changed):
        got = evaluate(attn, changed)
        return sum((np.where(np.isfinite(got[n]), got[n], 0) * w).sum() for n, w in weight.items())

    grads = gradients(attn, inputs, weight["O"], weight["L"])
    assert set(grads) == {"Q", "K", "V", "slope", "Z"}
    step = 1e-6
    for name, grad in grads.items():
        for at in np.ndindex(*grad.shape):
            moved = [inputs | {name: inputs[name].copy()} for _ in range(2)]
            moved[0][name][at] += step
            moved[1][name][at] -= step
            assert grad[at] == pytest.approx((loss(moved[0]) - loss(moved[1])) / (2 * step), abs=1e-8), (name, at)


def test_dead_rows_add_nothing_whatever_their_gradient_holds():
    attn = attention(BOTTOM_RIGHT, "sink Z[h] : f32", "grad Q, K, V, Z")
    inputs = make_inputs(attn, {"B": 1, "M": 12, "N": 5})
    rng = np.random.default_rng(0)
    d_out, d_lse = rng.standard_normal((1, 12, 4, 16)), rng.standard_normal((1, 4, 12))
    expected = gradients(attn, inputs, d_out, d_lse)
    d_out[:, :7], d_lse[..., :7] = np.nan, np.inf
    poisoned = {n: x.astype(np.float64) for n, x in inputs.items()}
    poisoned["Q"][:, :7] = np.nan
    for name, grad in gradients(attn, poisoned, d_out, d_lse).items():
        np.testing.assert_array_equal(grad, expected[name])
    assert not expected["Q"][:, :7].any() and expected["Q"][:, 7:].any()


def test_a_key_that_no_row_sees_reaches_nothing():
    attn = attention("mask k != 2", "grad Q, K, V")
    inputs = {n: x.astype(np.float64) for n, x in make_inputs(attn, SIZES).items()}
    d_out = np.random.default_rng(0).standard_normal((2, 21, 4, 16))
    expected = gradients(attn, inputs, d_out)
    for name in "KV":
        inputs[name][:, 2] = np.nan
    for name, grad in gradients(attn, inputs, d_out).items():
        np.testing.assert_array_equal(grad, expected[name])
    assert not expected["K"][:, 2].any() and not expected["V"][:, 2].any()


def test_an_infinite_slope_of_a_lane_without_weight_is_nothing():
    """sqrt at 0 in a lane that is not live, and a score of -inf in one that is."""
    k, s = Var("k"), Var("s")
    scores = (
        op("where", op("==", k, 1), Float(0.0), s),
        op("sqrt", op("abs", s)),
        op("where", op("==", k, 2), Float(-np.inf), s),
    )
    attn = attention("mask k != 1", "grad Q, K, V").with_(scores=scores)
    inputs = make_inputs(attn, SIZES)
    for grad in gradients(attn, inputs, np.ones((2, 21, 4, 16))).values():
        assert np.isfinite(grad).all() and grad.any()


@pytest.mark.parametrize("sizes", [{"N": 0}, {"M": 0}, {"B": 0}])
def test_empty_extents(sizes):
    attn = attention("sink Z[h] : f32", "grad Q, K, V, Z")
    full = {**SIZES, **sizes}
    inputs = make_inputs(attn, full)
    grads = gradients(attn, inputs, np.ones((full["B"], full["M"], 4, 16)), np.ones((full["B"], 4, full["M"])))
    for name, grad in grads.items():
        assert grad.shape == inputs[name].shape and not grad.any()


def test_a_line_without_derivative_is_refused():
    attn = attention("grad Q").with_(scores=(op("//", Var("s"), 2),))
    with pytest.raises(NoDerivative):
        gradients(attn, make_inputs(attn, SIZES), np.ones((2, 21, 4, 16)))
