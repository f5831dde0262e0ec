"""Scores: what order they come in, that masks win over any of them, biases of every shape, and gradients through them."""

import numpy as np
import pytest
import torch
from case_kit import close, dense, positions, spec

S = 40
POSITIONS = np.arange(S, dtype=np.int32)[None]
MASKS = {
    "causal": ((), "k <= q", {}),
    "window": ((), "k <= q and k > q - 9", {}),
    "document": (("param doc[b, k] : i32 nondecreasing",), "doc[b, q] == doc[b, k]", {"doc": POSITIONS // 11}),
    "padding": (("param keep[b, k] : bool",), "keep[b, k]", {"keep": POSITIONS % 5 > 0}),
}


def live_keys(name, row):
    q, k = np.full(S, row), np.arange(S)
    rules = {"causal": k <= q, "window": (k <= q) & (k > q - 9), "document": q // 11 == k // 11, "padding": k % 5 > 0}
    return rules[name]


@pytest.mark.parametrize("cap", [1, 15, 50])
@pytest.mark.parametrize("name", MASKS)
def test_no_score_brings_a_masked_key_back(attend, name, cap):
    """https://github.com/Dao-AILab/flash-attention/pull/1025"""
    lines, mask, given = MASKS[name]
    text = spec(*lines, f"score s = {cap} * tanh(s / {cap})", f"mask {mask}")
    r = attend(text, {"B": 1, "M": S, "N": S}, inputs=given)
    for row in (0, 10, 39):
        other = {n: r.inputs[n].copy() for n in "KV"}
        for n in "KV":
            other[n][:, ~live_keys(name, row)] = 7.0
        again = attend.call(text, {**r.inputs, **other})
        assert np.array_equal(again["O"][:, row], r.outputs["O"][:, row])
        assert np.array_equal(again["L"][..., row], r.outputs["L"][..., row])


@pytest.mark.parametrize("cap", [1, 15])
@pytest.mark.parametrize("name", MASKS)
def test_gradients_through_a_soft_cap(interpret, name, cap):
    """https://github.com/Dao-AILab/flash-attention/pull/1025"""
    lines, mask, given = MASKS[name]
    attend = interpret.load(
        spec(*lines, f"score s = {cap} * tanh(s / {cap})", f"mask {mask}", "grad Q, K, V", dtype="f32")
    )
    tensors = [(3 * torch.randn(1, S, 2, 32)).requires_grad_() for _ in range(3)]
    live = torch.stack([torch.from_numpy(live_keys(name, row)) for row in range(S)])
    outs = (
        attend(*tensors, *(torch.from_numpy(x) for x in given.values()))[0],
        dense(*tensors, live, score=lambda s: cap * torch.tanh(s / cap))[0],
    )
    d_o = torch.randn(1, S, 2, 32)
    grads = [torch.autograd.grad(o, tensors, d_o.to(o.dtype)) for o in outs]
    assert close(*outs, 1e-4) and all(close(a, b, 1e-4) for a, b in zip(*grads, strict=True))


def test_lines_apply_from_top_to_bottom(attend):
    """https://github.com/Dao-AILab/flash-attention/pull/1025"""
    sizes, slope = {"B": 1, "M": 9, "N": 9}, "param slope[h] : f32"
    cap, bias = "score s = 2 * tanh(s / 2)", "score s = s - slope[h] * abs(q - k)"
    one = attend(spec(slope, cap, bias), sizes)
    two = attend(spec(slope, bias, cap), sizes, inputs=one.inputs)
    assert np.abs(one.lse - two.lse).max() > 0.01


SLOPES = {"per head": "slope[h]", "per batch and head": "slope[b, h]"}


@pytest.mark.parametrize("mask", ["mask true", "mask k <= q + N - M"])
@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("rows", [1, 3])
def test_distance_counts_from_the_aligned_position(attend, rows, name, mask):
    """https://github.com/Dao-AILab/flash-attention/issues/907"""
    read = SLOPES[name]
    text = spec(f"param {read} : f32", f"score s = s - {read} * abs(q + N - M - k)", mask, heads=6, dtype="f32")
    whole = attend(text, {"B": 2, "M": 24, "N": 24})
    step = attend.call(text, {**whole.inputs, "Q": whole.inputs["Q"][:, -rows:]})
    assert np.allclose(step["O"], whole.o[:, -rows:], atol=1e-5)


def test_decoding_step_by_step_is_the_whole(attend):
    """https://github.com/Dao-AILab/flash-attention/issues/907"""
    lines = "param slope[h] : f32", "score s = s - slope[h] * abs(q + N - M - k)", "mask k <= q + N - M"
    whole = attend(spec(*lines, dtype="f32"), {"B": 1, "M": 20, "N": 20})
    for t in (0, 1, 15, 16, 19):
        now = {"Q": whole.inputs["Q"][:, t : t + 1]} | {n: whole.inputs[n][:, : t + 1] for n in "KV"}
        step = attend.call(spec(*lines, dtype="f32"), {**whole.inputs, **now})
        assert np.allclose(step["O"][:, 0], whole.o[:, t], atol=1e-5)


B, H, M, N = 2, 3, 13, 7
BIASES = {  # declaration, read, its shape, how it spreads over [B, H, M, N]
    "all": ("T[b, h, q, k]", "T[b, h, q, k]", (B, H, M, N), lambda t: t),
    "shared by batch and heads": ("T[q, k]", "T[q, k]", (M, N), lambda t: t),
    "shared by the batch": ("T[h, q, k]", "T[h, q, k]", (H, M, N), lambda t: t),
    "of keys": ("T[b, k]", "T[b, k]", (B, N), lambda t: t[:, None, None]),
    "of rows": ("T[h, q]", "T[h, q]", (H, M), lambda t: t[..., None]),
    "of heads": ("T[h]", "T[h]", (H,), lambda t: t[:, None, None]),
    "by distance": (
        "T[h, t]", "T[h, q - k + N - 1]", (H, M + N - 1),
        lambda t: t[:, torch.arange(M)[:, None] - torch.arange(N) + N - 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", BIASES)
def test_biases_of_every_shape(attend, name, causal):
    """https://github.com/pytorch/pytorch/issues/145208"""
    declared, read, shape, _ = BIASES[name]
    more = ", t : R" if "t]" in declared else ""
    lines = (f"param {declared} : f32", f"score s = s + {read}", *(["mask k <= q"] if causal else []))
    bias = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    attend(spec(*lines, heads=H, more=more), {"B": B, "M": M, "N": N, "R": M + N - 1}, inputs={"T": bias})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", BIASES)
def test_the_gradient_of_a_bias_has_its_shape_and_sums_what_it_served(interpret, name, causal):
    """https://github.com/pytorch/pytorch/issues/145208"""
    declared, read, shape, spread = BIASES[name]
    more = ", t : R" if "t]" in declared else ""
    lines = (
        f"param {declared} : f32",
        f"score s = s + {read}",
        *(["mask k <= q"] if causal else []),
        "grad Q, K, V, T",
    )
    attend = interpret.load(spec(*lines, heads=H, d=16, dtype="f32", more=more))
    tensors = [torch.randn(B, n, H, 16, requires_grad=True) for n in (M, N, N)]
    bias = torch.randn(shape, requires_grad=True)
    rows, cols = positions(M, N)
    live = (cols <= rows) if causal else torch.ones(M, N, dtype=torch.bool)
    outs = attend(*tensors, bias), dense(*tensors, live, score=lambda s: s + spread(bias.double()))
    d_o, d_lse = torch.randn(B, M, H, 16), torch.randn(B, H, M)
    grads = [torch.autograd.grad(o, (*tensors, bias), (d_o.to(o[0].dtype), d_lse.to(o[1].dtype))) for o in outs]
    assert grads[0][-1].shape == shape
    assert all(close(a, b, 1e-4) for a, b in zip(*grads, strict=True))


def test_the_gradient_of_an_expanded_bias_is_summed(interpret):
    """https://github.com/pytorch/pytorch/issues/145208"""
    attend = interpret.load(spec("bias T[b, h, q, k] : f32", "score s = s + T[b, h, q, k]", "grad T", dtype="f32"))
    q, k, v = (torch.randn(B, n, 2, 32) for n in (M, N, N))
    small = torch.randn(M, N, requires_grad=True)
    got = torch.autograd.grad(attend(q, k, v, small.expand(B, 2, M, N))[0].square().sum(), small)[0]
    want = torch.autograd.grad(
        dense(q, k, v, torch.tensor(True), score=lambda s: s + small.double())[0].square().sum(), small
    )
    assert close(got, want[0], 1e-4)


@pytest.mark.parametrize("loss", ["mean of the lse", "both outputs"])
def test_a_loss_on_the_lse_reaches_queries_and_keys(interpret, loss):
    """https://github.com/Dao-AILab/flash-attention/issues/1817"""
    attend = interpret.load(spec("mask k <= q", "sink Z[h] : f32", "grad Q, K, V, Z", group=2, dtype="f32"))
    q, k, v = (torch.randn(1, 64, h, 32, requires_grad=True) for h in (2, 1, 1))
    z = torch.randn(2, requires_grad=True)
    rows, cols = positions(64, 64)

    def gradients(o, lse):
        value = lse.mean() if loss == "mean of the lse" else o.sum() + lse.sum()
        return torch.autograd.grad(value, (q, k, v, z), allow_unused=True, materialize_grads=True)

    got, want = gradients(*attend(q, k, v, z)), gradients(*dense(q, k, v, cols <= rows, sink=z))
    assert all(close(a, b, 1e-4) for a, b in zip(got, want, strict=True))
    assert all((g != 0).any() for g in (got[0], got[1], got[3]))
