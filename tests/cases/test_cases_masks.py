"""Masks: which side they align to, how many keys a window holds, tiles of every shape, and the same mask in both passes."""

import numpy as np
import pytest
import torch
from case_kit import close, dense, positions, spec

BOTTOM_RIGHT = "mask k <= q + N - M"
TOP_LEFT = "mask k <= q"
PAIRS = [(2, 5), (5, 2), (48, 24), (40, 70)]


@pytest.mark.parametrize(("m", "n"), PAIRS)
@pytest.mark.parametrize("mask", [BOTTOM_RIGHT, TOP_LEFT])
def test_the_text_alone_says_how_causal_aligns(attend, mask, m, n):
    """https://github.com/Dao-AILab/flash-attention/issues/1778"""
    r = attend(spec(mask), {"B": 1, "M": m, "N": n})
    dead = max(0, m - n) if mask is BOTTOM_RIGHT else 0
    assert (r.o[:, :dead] == 0).all() and np.isneginf(r.lse[..., :dead]).all()
    assert (r.o[:, dead:] != 0).any(-1).all() and np.isfinite(r.lse[..., dead:]).all()


def test_rows_before_the_first_key_have_no_gradient_and_give_none(interpret):
    """https://github.com/Dao-AILab/flash-attention/issues/1778"""
    attend = interpret.load(spec(BOTTOM_RIGHT, "grad Q, K, V"))
    q, k, v = (torch.randn(1, s, 2, 32).bfloat16().requires_grad_() for s in (5, 2, 2))
    d_o = torch.randn(1, 5, 2, 32).bfloat16()
    grads = torch.autograd.grad(attend(q, k, v)[0], (q, k, v), d_o)
    assert (grads[0][:, :3] == 0).all() and all(g.isfinite().all() for g in grads)
    d_o[:, :3] = 1000.0
    again = torch.autograd.grad(attend(q, k, v)[0], (q, k, v), d_o)
    assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 41])
def test_a_window_holds_the_keys_it_says(attend, window):
    """https://github.com/huggingface/transformers/issues/39408"""
    s = 40
    text = spec(f"mask k <= q + N - M and k > q + N - M - {window}", heads=1, d=16, e=s, dtype="f32")
    q, k = np.zeros((1, s, 1, 16), np.float32), np.zeros((1, s, 1, 16), np.float32)
    v = np.eye(s, dtype=np.float32)[None, :, None]  # feature j is one-hot at key j: it shows whether key j is live
    r = attend(text, {"B": 1, "M": s, "N": s}, inputs={"Q": q, "K": k, "V": v})
    live = (r.o[0, :, 0] > 0).sum(-1)
    assert live.tolist() == [min(i + 1, window) for i in range(s)]
    for keys in sorted({min(max(n, 1), s) for n in (window - 1, window, window + 1)}):
        one = attend(text, {"B": 1, "M": 1, "N": keys}, inputs={"Q": q[:, :1], "K": k[:, :keys], "V": v[:, :keys]})
        assert (one.o > 0).sum() == min(keys, window)


@pytest.mark.parametrize("window", [40, 41, 1000])
def test_a_window_no_shorter_than_the_sequence_is_plain_causal(attend, window):
    """https://github.com/huggingface/transformers/issues/39408"""
    sizes = {"B": 1, "M": 40, "N": 40}
    wide = attend(spec(f"mask k <= q and k > q - {window}"), sizes)
    assert np.array_equal(wide.o, attend(spec(TOP_LEFT), sizes).o)


@pytest.mark.parametrize(
    "mask", ["mask k <= q and true", "mask k <= q and q - k < 1000000", "mask not k > q", "mask k < q + 1 or false"]
)
def test_every_way_to_say_unbounded_gives_the_same_bits(attend, mask):
    """https://github.com/NVIDIA/TransformerEngine/issues/3528"""
    sizes = {"B": 2, "M": 35, "N": 35}
    want, got = attend(spec(TOP_LEFT), sizes), attend(spec(mask), sizes)
    assert np.array_equal(want.o, got.o) and np.array_equal(want.lse, got.lse)


@pytest.mark.parametrize("bound", [-1, -7])
def test_a_negative_bound_is_no_sentinel(attend, bound):
    """https://github.com/NVIDIA/TransformerEngine/issues/3528"""
    sizes = {"B": 1, "M": 20, "N": 20}
    empty = attend(spec(f"mask k <= q and q - k <= {bound}"), sizes)
    assert (empty.o == 0).all() and np.isneginf(empty.lse).all()
    ahead = attend(spec(f"mask q - k <= {bound}"), sizes)
    assert [int(np.isfinite(x)) for x in ahead.lse[0, 0]] == [int(20 - q + bound > 0) for q in range(20)]


TILES = [(64, 16), (16, 64), (32, 32), (128, 64), (64, 128)]


@pytest.mark.parametrize("mask", [BOTTOM_RIGHT, "mask k <= q and k > q - 50 or k < 3", "mask abs(q - k) <= 20"])
def test_every_shape_of_tiles_gives_the_answer(attend, mask):
    """https://github.com/jax-ml/jax/pull/17314"""
    outputs = [attend(spec(mask, heads=1, tile=tile), {"B": 1, "M": 130, "N": 150}).o for tile in TILES]
    assert all(np.allclose(o, outputs[0], atol=0.04) for o in outputs)


MASKS = {
    "none": ("true", lambda q, k: k >= 0),
    "causal": ("k <= q + N - M", lambda q, k: k <= q + 3),
    "window": ("k <= q and k > q - 7", lambda q, k: (k <= q) & (k > q - 7)),
    "prefix": ("k <= q or k < 5", lambda q, k: (k <= q) | (k < 5)),
    "dilated": ("k <= q and (q - k) % 3 == 0", lambda q, k: (k <= q) & ((q - k) % 3 == 0)),
    "chunked": ("k // 8 == q // 8", lambda q, k: k // 8 == q // 8),
    "ahead": ("k > q", lambda q, k: k > q),
}


@pytest.mark.parametrize("name", MASKS)
def test_both_passes_have_the_mask_of_the_spec(interpret, name):
    """https://github.com/triton-lang/triton/issues/5660"""
    text, predicate = MASKS[name]
    attend = interpret.load(spec(f"mask {text}", "grad Q, K, V", d=16, dtype="f32"))
    tensors = [torch.randn(2, s, 2, 16, requires_grad=True) for s in (20, 23, 23)]
    d_o = torch.randn(2, 20, 2, 16)
    want = dense(*tensors, predicate(*positions(20, 23)))[0]
    got = attend(*tensors)[0]
    assert close(got, want, 1e-5)
    grads = [torch.autograd.grad(o, tensors, d_o.to(o.dtype)) for o in (got, want)]
    assert all(close(a, b, 1e-5) for a, b in zip(*grads, strict=True))
