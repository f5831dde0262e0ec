"""Heads: groups of any size, and head dimensions of any size."""

import numpy as np
import pytest
import torch
from case_kit import close, dense, positions, spec


@pytest.mark.parametrize(
    ("heads", "group"), [(12, 6), (9, 3), (7, 7), (28, 7), (40, 5), (5, 5), (8, 4), (18, 9), (6, 1)]
)
@pytest.mark.parametrize(("m", "mask"), [(1, "mask true"), (5, "mask k <= q + N - M")])
def test_a_head_reads_the_key_head_of_its_group(attend, heads, group, m, mask):
    """https://github.com/pytorch/pytorch/issues/151359"""
    n, d = 20, 16
    v = np.broadcast_to(np.arange(heads // group, dtype=np.float32)[:, None], (1, n, heads // group, d)).copy()
    r = attend(spec(mask, heads=heads, group=group, d=d, dtype="f32"), {"B": 1, "M": m, "N": n}, inputs={"V": v})
    assert np.allclose(r.o, (np.arange(heads) // group)[:, None])


@pytest.mark.parametrize(("heads", "group"), [(12, 6), (9, 3), (5, 5)])
def test_the_size_of_a_group_may_be_a_symbol(attend, heads, group):
    """https://github.com/pytorch/pytorch/issues/151359"""
    text = spec("mask k <= q + N - M", heads="H", group="G", d=16)
    sizes = {"B": 1, "M": 3, "N": 20, "H": heads}
    attend(text, sizes, constants={"G": group})


@pytest.mark.parametrize(("heads", "group"), [(12, 6), (9, 3), (7, 7)])
def test_gradients_of_keys_are_sums_over_the_group(interpret, heads, group):
    """https://github.com/pytorch/pytorch/issues/151359"""
    attend = interpret.load(spec("mask k <= q + N - M", "grad Q, K, V", heads=heads, group=group, d=16, dtype="f32"))
    tensors = [
        torch.randn(1, s, h, 16, requires_grad=True) for s, h in ((5, heads), (9, heads // group), (9, heads // group))
    ]
    rows, cols = positions(5, 9)
    outs = attend(*tensors)[0], dense(*tensors, cols <= rows + 4)[0]
    d_o = torch.randn(1, 5, heads, 16)
    grads = [torch.autograd.grad(o, tensors, d_o.to(o.dtype)) for o in outs]
    assert all(close(a, b, 1e-5) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize(
    ("d", "e"), [(33, 33), (40, 40), (72, 72), (129, 128), (192, 128), (64, 128), (96, 24), (8, 8)]
)
def test_any_head_dimension(attend, d, e):
    """https://github.com/tile-ai/tilelang-ascend/issues/1669"""
    attend(spec(heads=4, group=2, d=d, e=e, dtype="f16"), {"B": 1, "M": 20, "N": 30})


@pytest.mark.parametrize(("d", "e"), [(33, 33), (40, 40), (129, 128)])
def test_both_passes_scale_by_the_head_dimension_of_the_spec(interpret, d, e):
    """https://github.com/tile-ai/tilelang-ascend/issues/1669"""
    attend = interpret.load(spec("grad Q, K, V", heads=4, group=2, d=d, e=e, dtype="f32"))
    shapes = (1, 6, 4, d), (1, 9, 2, d), (1, 9, 2, e)
    tensors = [torch.randn(s, requires_grad=True) for s in shapes]
    want = torch.autograd.grad(dense(*tensors, torch.tensor(True))[0].sum(), tensors)
    got = torch.autograd.grad(attend(*tensors)[0].sum(), tensors)  # a gradient of stride 0
    assert all(close(a, b, 1e-5) for a, b in zip(got, want, strict=True))


def test_a_scale_is_what_the_spec_says_and_1_if_it_says_nothing(attend):
    """https://github.com/tile-ai/tilelang-ascend/issues/1669"""
    sizes = {"B": 1, "M": 5, "N": 7}
    text = spec(d=33, dtype="f32")
    for scale in ("scale 0.5", "scale 1", ""):
        r = attend(text.replace("scale  1 / sqrt(33)", scale), sizes)
        s = np.einsum("bqhd,bkhd->bhqk", *(r.inputs[n].astype(np.float64) for n in "QK")) * (
            0.5 if "0.5" in scale else 1
        )
        assert np.allclose(r.lse, np.log(np.exp(s).sum(-1)), atol=1e-4)
