"""Rows: without a live key, far from zero, in f32, and with probabilities in 8 bits."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
import torch
from case_kit import close, dense, positions, spec

from tilec.aot import compile_all
from tilec.frontend import read_text
from tilec.oracle import exact

BANDED = ("param alive[b, k] : bool", "mask alive[b, k] and k <= q and q - k <= 1")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("slope", [0.0, 1.0, 1e4])
def test_a_row_without_keys_spoils_no_gradient(interpret, dtype, slope):
    """https://github.com/pytorch/pytorch/issues/41508"""
    attend = interpret.load(spec(*BANDED, "sink Z[h] : f32", "grad Q, K, V, Z", heads=1, d=16, dtype=dtype))
    torch_dtype = torch.float32 if dtype == "f32" else torch.bfloat16
    q, k, v = (torch.randn(2, 4, 1, 16).to(torch_dtype).requires_grad_() for _ in range(3))
    z = torch.randn(1, requires_grad=True)
    alive = torch.tensor([[True, True, False, False], [False, False, True, True]])  # kills row 3, and rows 0 and 1
    d_o = torch.randn(2, 4, 1, 16).to(torch_dtype)
    dead = torch.tensor([[0, 0, 0, 1], [1, 1, 0, 0]], dtype=torch.bool)
    d_o[dead] *= slope
    out, lse = attend(q, k, v, alive, z)
    assert (out[dead] == 0).all() and torch.equal(lse[:, 0].isneginf(), dead)
    grads = torch.autograd.grad(out, (q, k, v, z), d_o)
    rows, cols = positions(4, 4)
    live = (alive[:, None, None] & (cols <= rows) & (rows - cols <= 1)).expand(2, 1, 4, 4)
    wanted = torch.autograd.grad(dense(q, k, v, live, sink=z)[0], (q, k, v, z), d_o.double())
    assert (grads[0][dead] == 0).all()
    assert all(close(a, b, 1e-5 if dtype == "f32" else 2e-2) for a, b in zip(grads, wanted, strict=True))


KILLERS = {
    "single rows": ("param off[q] : bool", "mask not off[q] and k <= q"),
    "whole tiles": ("mask k <= q and k >= 40",),
    "every row": ("mask k > q + N + M",),
    "documents": ("param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k < q"),
    "a window that ends early": ("mask q - k >= 30 and q - k < 40",),
}


@pytest.mark.parametrize("sink", [(), ("sink Z[h] : f32",)])
@pytest.mark.parametrize("name", KILLERS)
def test_dead_rows_are_zero_under_any_mask(attend, name, sink):
    """https://github.com/pytorch/pytorch/issues/41508"""
    r = attend(spec(*KILLERS[name], *sink), {"B": 1, "M": 70, "N": 70})
    dead = exact.dead_rows(r.attn, r.inputs)
    assert dead.any() and (r.o[dead] == 0).all()
    assert np.array_equal(np.isneginf(r.lse), dead[..., 0].transpose(0, 2, 1))


def merge(parts):
    """O and L of partitions of the keys as one, by the LSE: weights exp(l - max), 0 where a partition is empty."""
    most = np.maximum.reduce([lse for _, lse in parts])
    base = np.where(np.isneginf(most), 0, most)
    weights = [np.exp(lse - base)[..., None].transpose(0, 2, 1, 3) for _, lse in parts]
    total = sum(weights)
    out = sum(w * o for w, (o, _) in zip(weights, parts, strict=True)) / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        return out, base + np.log(total[..., 0].transpose(0, 2, 1))


@pytest.mark.parametrize("cuts", [(0, 0), (0, 20), (0, 20, 20), (0, 7, 7, 20), tuple(range(21))])
def test_partitions_merge_by_their_lse_also_empty_ones(attend, cuts):
    """https://github.com/flashinfer-ai/flashinfer/issues/4051"""
    text = spec(dtype="f32", d=16)
    n = cuts[-1]
    whole = attend(text, {"B": 1, "M": 3, "N": n})
    parts = []
    for first, last in pairwise(cuts):
        own = {t: whole.inputs[t][:, first:last] for t in ("K", "V")}
        outputs = attend.call(text, {**whole.inputs, **own})
        parts.append((outputs["O"], outputs["L"]))
        if first == last:
            assert (parts[-1][0] == 0).all() and np.isneginf(parts[-1][1]).all()
    o, lse = merge(parts)
    assert np.allclose(o, whole.o, atol=1e-5) and np.allclose(lse, whole.lse, atol=1e-5)
    live = [p for p in parts if not np.isneginf(p[1]).any()]
    if len(live) == 1:
        assert np.array_equal(o, live[0][0]) and np.array_equal(lse, live[0][1])


def shifted(shift, m, n, heads, group, d=64):
    """Queries of 4 and keys near -4, with every logit moved by `shift` through channel 0; exact in bf16."""
    rng = np.random.default_rng(1)
    q = np.full((1, m, heads, d), 4, np.float32)
    k = -4 + 0.05 * rng.standard_normal((1, n, heads // group, d))
    k[..., 0] = shift * d**0.5 / 4
    return {"Q": q.astype(ml_dtypes.bfloat16), "K": k.astype(ml_dtypes.bfloat16)}


@pytest.mark.parametrize(
    "mask", ["mask k <= q + N - M", "mask k <= q + N - M and k > q + N - M - 15", "mask k % 32 >= 16"]
)
def test_a_constant_added_to_every_logit_changes_nothing(attend, mask):
    """https://github.com/Dao-AILab/flash-attention/issues/2082"""
    sizes = {"B": 1, "M": 22, "N": 112}
    text = spec(mask, heads=7, group=7, d=64, tile=(32, 32))
    results = [attend(text, sizes, inputs=shifted(s, 22, 112, 7, 7)) for s in (0, -1000, -128, 128, 1000)]
    for r in results[1:]:
        assert np.allclose(r.o, results[0].o, atol=0.02)


@pytest.mark.parametrize("style", ["shifted", "onehot"])
@pytest.mark.parametrize("mask", ["mask true", "mask k <= q + N - M", "mask q - k >= 20", "mask q // 24 == k // 24"])
def test_rows_of_large_logits(attend, mask, style):
    """https://github.com/Dao-AILab/flash-attention/issues/2082"""
    attend(spec(mask), {"B": 1, "M": 50, "N": 60}, style=style)


def test_f32_is_ieee_f32(attend):
    """https://github.com/pytorch/pytorch/issues/161022"""
    rng = np.random.default_rng(0)
    inputs = {n: 4 * rng.standard_normal((1, 48, 2, 64)).astype(np.float32) for n in ("Q", "K")}
    r = attend(spec(dtype="f32", d=64), {"B": 1, "M": 48, "N": 48}, inputs=inputs)
    assert np.abs(r.o - exact.evaluate(r.attn, r.inputs)["O"]).max() < 1e-4  # TF32 is off by 1e-2 here


@pytest.mark.parametrize("target", ["sm80", "sm90", "sm100", "gfx942", "gfx950"])
def test_the_precision_of_products_is_in_the_source(target):
    """https://github.com/pytorch/pytorch/issues/161022"""
    for dtype, exactly in (("f32", True), ("bf16", False)):
        read = read_text(spec(dtype=dtype))
        made = compile_all(read, read.kernels[0], target, "triton")[-1]
        (text,) = (t for n, t in made.sources.items() if n.endswith(".py"))
        dots = [line for line in text.splitlines() if "tl.dot" in line]
        assert dots and all(('input_precision="ieee"' in line) == exactly for line in dots)
        assert "tf32" not in text.lower()


EIGHT = """kernel eight {
  index  b : B, h : 6, q : M, k : N lengths n, d : 64
  query  Q[b, q, h, d]      : e4m3 scaled qs[b, h]
  key    K[b, k, h // 6, d] : e4m3 scaled ks[b, h // 6] paged pages[b, k // 16]
  value  V[b, k, h // 6, d] : e4m3 scaled vs[b, h // 6] paged pages[b, k // 16]
  output O[b, q, h, d]      : bf16
  scale  1 / sqrt(64)
}
schedule eight on any { tile q = 16, k = 32 }
"""


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100])
def test_8_bit_probabilities_stay_in_range_as_the_maximum_rises(attend, keys):
    """https://github.com/Dao-AILab/flash-attention/issues/2577"""
    rng = np.random.default_rng(keys)
    pages = -(-keys // 16)
    q = np.ones((1, 1, 6, 64))
    k = 0.25 * rng.standard_normal((pages, 16, 1, 64)) + 0.02 * np.arange(pages * 16).reshape(pages, 16, 1, 1)
    scales = {"qs": rng.choice([0.5, 1, 2], (1, 6)), "ks": np.full((1, 1), 0.5), "vs": np.full((1, 1), 2.0)}
    inputs = {n: x.astype(ml_dtypes.float8_e4m3fn) for n, x in (("Q", q), ("K", k))}
    inputs |= {n: x.astype(np.float32) for n, x in scales.items()}
    inputs["pages"] = np.arange(pages, dtype=np.int32)[None]
    v = rng.standard_normal((pages, 16, 1, 64)) + 1
    inputs["V"] = v.astype(ml_dtypes.float8_e4m3fn)
    r = attend(EIGHT, {"B": 1, "M": 1, "N": pages * 16}, inputs=inputs, lengths={"k": [keys]})
    assert cosine(r.o, exact.evaluate(r.attn, r.inputs)["O"]) > 0.998
