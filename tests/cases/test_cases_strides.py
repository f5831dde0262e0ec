"""Strides: the same values in any layout, each tensor on its own, give the same bits; gradients have strides of their own."""

import numpy as np
import pytest
import torch
from case_kit import spec

B, M, N, H, D = 2, 21, 35, 2, 32
TEXT = spec("mask k <= q + N - M")


def heads_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def every_second_row(x):
    return torch.stack([x, torch.full_like(x, float("nan"))], 2).flatten(1, 2)[:, ::2]


def slice_of_a_projection(x):
    return torch.cat([torch.full_like(x, float("nan")), x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]]


def one_element_off(x):
    return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)


def batch_last(x):
    return x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3)


def odd_stride_of_one(x):
    """The first of the batch alone, with a stride there that points nowhere."""
    return x[:1].as_strided((1, *x.shape[1:]), (12345677, *x.stride()[1:]))


LAYOUTS = [heads_first, every_second_row, slice_of_a_projection, one_element_off, batch_last]


def inputs(attend):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(B, n, H, D, generator=g).bfloat16().to(attend.device) for n in (M, N, N)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["Q", "K", "V", "O"])
def test_a_layout_changes_no_bit(attend, which, layout):
    """https://github.com/flagos-ai/FlagAttention/issues/45"""
    kernel, tensors = attend.load(TEXT), inputs(attend)
    want, want_lse = kernel(*tensors)
    out = torch.full_like(want, float("nan")), torch.full_like(want_lse, float("nan"))
    if which == "O":
        out = layout(out[0]), out[1]
    else:
        at = "QKV".index(which)
        tensors[at] = layout(tensors[at])
        assert tensors[at].stride() != inputs(attend)[at].stride() or layout is one_element_off
    kernel(*tensors, out=out)
    assert torch.equal(out[0], want) and torch.equal(out[1], want_lse)


@pytest.mark.parametrize("which", range(3))
def test_strides_of_extent_one_mean_nothing(attend, which):
    """https://github.com/flagos-ai/FlagAttention/issues/45"""
    kernel, tensors = attend.load(TEXT), [x[:1] for x in inputs(attend)]
    want = kernel(*tensors)[0]
    tensors[which] = odd_stride_of_one(tensors[which])
    assert torch.equal(kernel(*tensors)[0], want)


def test_a_broadcast_head_is_its_copies(attend):
    """https://github.com/flagos-ai/FlagAttention/issues/45"""
    kernel, (q, k, v) = attend.load(TEXT), inputs(attend)
    k, v = (x[:, :, :1].expand(x.shape) for x in (k, v))
    assert torch.equal(kernel(q, k, v)[0], kernel(q, k.contiguous(), v.contiguous())[0])


@pytest.mark.parametrize("strides", ["rows of the lse", "heads of the lse"])
def test_the_lse_has_strides_of_its_own(attend, strides):
    """https://github.com/flagos-ai/FlagAttention/issues/45"""
    kernel, tensors = attend.load(TEXT), inputs(attend)
    want, want_lse = kernel(*tensors)
    wide = torch.full((B, H, 2 * M), float("nan"), device=attend.device)
    lse = wide[..., :M] if strides == "heads of the lse" else torch.empty(H, B, M, device=attend.device).transpose(0, 1)
    kernel(*tensors, out=(torch.empty_like(want), lse))
    assert torch.equal(lse, want_lse) and wide[..., M:].isnan().all()


def test_biases_and_params_have_strides_of_their_own(attend):
    """https://github.com/flagos-ai/FlagAttention/issues/45"""
    text = spec("bias T[b, h, q, k] : f32", "param keep[b, k] : bool", "score s = s + T[b, h, q, k]", "mask keep[b, k]")
    kernel, tensors = attend.load(text), inputs(attend)
    bias, keep = torch.randn(B, H, M, N).to(attend.device), torch.rand(B, N).to(attend.device) < 0.7
    want = kernel(*tensors, bias, keep)[0]
    flipped = bias.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert torch.equal(kernel(*tensors, flipped, keep.t().contiguous().t())[0], want)
    shared = bias[:1, :1].expand(bias.shape)
    assert torch.equal(kernel(*tensors, shared, keep)[0], kernel(*tensors, shared.contiguous(), keep)[0])


def test_a_last_dimension_with_a_stride_is_refused_by_name(attend):
    """https://github.com/flagos-ai/FlagAttention/issues/45"""
    q, k, v = inputs(attend)
    with pytest.raises(Exception, match=r"last dimension of `K` must be contiguous.*strides"):
        attend.load(TEXT)(q, k.mT.contiguous().mT, v)


GRAD = spec("grad Q, K, V", dtype="f32", d=16)


@pytest.mark.parametrize("cut", [1, 16, 20])
def test_gradients_through_a_slice_do_not_depend_on_earlier_calls(interpret, cut):
    """https://github.com/pytorch/pytorch/issues/146377"""
    kernel = interpret.load(GRAD)
    q, k, v = (torch.randn(1, 40, 2, 16, requires_grad=True) for _ in range(3))
    alone = [x.detach()[:, :-cut].clone().requires_grad_() for x in (k, v)]
    want = torch.autograd.grad(kernel(q, *alone)[0].sum(), (q, *alone))
    kernel(q, k, v)[0].sum().backward()
    for _ in range(2):
        sliced = k[:, :-cut], v[:, :-cut]
        got = torch.autograd.grad(kernel(q, *sliced)[0].sum(), (q, k, v))
        assert torch.equal(got[0], want[0])
        for g, w in zip(got[1:], want[1:], strict=True):
            assert torch.equal(g[:, :-cut], w) and (g[:, -cut:] == 0).all()


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_any_layout(interpret, which, layout):
    """https://github.com/pytorch/pytorch/issues/146377"""
    kernel = interpret.load(GRAD)
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, n, 2, 16, generator=g) for n in (7, 9, 9)]
    d_o = torch.randn(2, 7, 2, 16, generator=g)

    def gradients(given, slope):
        given = [t.detach().requires_grad_() for t in given]
        return torch.autograd.grad(kernel(*given)[0], given, slope)

    want = gradients(tensors, d_o)
    tensors[which] = layout(tensors[which])
    got = gradients(tensors, layout(d_o))
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(got, want, strict=True))
