"""Native kernels of many head dims on a Hopper GPU: against float64, on ragged sizes, strided inputs and poisoned outputs.

Inputs are slices of one fused tensor, outputs of a wider one whose other elements must stay as they were.
"""

from functools import cache

import numpy as np
import pytest
import torch
from float64 import attention, causal

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.skipif(not hopper, reason="needs a Hopper GPU"),
    pytest.mark.watchdog(60),
]

H, GROUP = 4, 2
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ROUNDING = {"bf16": 4e-3, "f16": 8e-4}  # relative RMS: weights and outputs rounded once each, 2.3e-3 and 3e-4 measured
CAUSAL = "mask k <= q + N - M"
WIDTHS = [
    *((d, d) for d in (32, 40, 64, 72, 80, 96, 104, 112, 128, 136, 160, 184, 192, 208, 240, 256)),
    *((192, 128), (128, 192), (64, 256), (96, 40), (40, 136)),
]
SIZES = [(128, 128), (300, 300), (257, 400), (333, 200), (1, 129), (700, 64)]


def spec(d, e, mask, dtype):
    return f"""
kernel widths {{
  index  b : B, h : {H}, q : M, k : N, d : {d}, e : {e}
  query  Q[b, q, h, d] : {dtype}
  key    K[b, k, h // {GROUP}, d] : {dtype}
  value  V[b, k, h // {GROUP}, e] : {dtype}
  output O[b, q, h, e] : {dtype}
  lse    L[b, h, q] : f32
  scale  1 / sqrt({d})
  {mask}
}}
"""


@cache
def compiled(text):
    from tilec.backends.base import Variant
    from tilec.backends.cuda import ALIGNED, BACKEND
    from tilec.backends.cuda.launch import Kernel
    from tilec.frontend import read_text
    from tilec.schedule import EMPTY

    artifact = BACKEND.compile(read_text(text).kernels[0], "sm90", EMPTY, Variant((), ALIGNED))
    return Kernel(artifact, torch.device("cuda", torch.cuda.current_device()))


@pytest.fixture
def run(d, e, mask, dtype):
    """The kernel of a test's parameters, compiled before its time counts."""
    return compiled(spec(d, e, mask, dtype))


def reference(q, k, v, mask):
    return attention(q, k, v, causal(q.shape[1], k.shape[1]) if mask else None)


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, torch.nan, device="cuda", dtype=dtype)


def fused(b, rows, heads, widths, dtype, seed):
    """Slices of one tensor (b, rows, all columns + 16): heads of each width side by side; its last columns are NaN."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    columns = sum(n * w for n, w in zip(heads, widths, strict=True))
    whole = torch.randn(b, rows, columns + 16, device="cuda", generator=generator).to(dtype)
    whole[..., columns:] = torch.nan
    out, at = [], 0
    for n, w in zip(heads, widths, strict=True):
        out.append(whole[..., at : at + n * w].unflatten(-1, (n, w)))
        at += n * w
    return out


@pytest.mark.parametrize("mask", ["", CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("d", "e"), WIDTHS)
def test_a_width_is_right_and_writes_nothing_else(run, d, e, dtype, mask):
    kind = DTYPES[dtype]
    for b, (m, n) in enumerate(SIZES, 1):
        b = 1 + b % 2
        (q,) = fused(b, m, (H,), (d,), kind, m)
        k, v = fused(b, n, (H // GROUP, H // GROUP), (d, e), kind, n + 1)
        whole, lse = poisoned(b, m, H, e + 8, dtype=kind), poisoned(b, H, m)
        tensors = {"Q": q, "K": k, "V": v, "O": whole[..., :e], "L": lse}
        o, expected = reference(q, k, v, mask)
        for blocks in (None, 3):
            whole.fill_(torch.nan), lse.fill_(torch.nan)
            run(run.shape({"B": b, "M": m, "N": n, **({"SMS": blocks} if blocks else {})}), tensors)
            torch.cuda.synchronize()
            error = (whole[..., :e].double() - o).square().mean().sqrt() / o.square().mean().sqrt()
            assert error < ROUNDING[dtype], (m, n, blocks, float(error))
            assert (whole[..., :e].double() - o).abs().max() < 0.03 * o.abs().max(), (m, n, blocks)
            assert whole[..., e:].isnan().all(), (m, n)
            assert torch.equal(lse.isinf(), expected.isinf())
            assert torch.allclose(lse.double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("d", [64, 80])
def test_queries_keys_and_values_of_one_fused_tensor(d):
    """(b, rows, three times the heads, d), as a projection gives them."""
    run = compiled(spec(d, d, CAUSAL, "bf16"))
    b, m = 2, 555
    q, k, v = fused(b, m, (H, H // GROUP, H // GROUP), (d, d, d), torch.bfloat16, d)
    o, lse = poisoned(b, m, H, d, dtype=torch.bfloat16), poisoned(b, H, m)
    run(run.shape({"B": b, "M": m, "N": m}), {"Q": q, "K": k, "V": v, "O": o, "L": lse})
    torch.cuda.synchronize()
    expected, _ = reference(q, k, v, mask=CAUSAL)
    assert (o.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt() < ROUNDING["bf16"]


PAIRS = f"""
kernel latent {{
  index  b : B, h : {H}, q : M, k : N, d : 128, r : 64, e : 128
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  query  Qr[b, q, h, r] : bf16
  key    Kr[b, k, r] : bf16
  value  V[b, k, h, e] : bf16
  output O[b, q, h, e] : bf16
  lse    L[b, h, q] : f32
  scale  1 / sqrt(192)
  {CAUSAL}
}}
"""


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_products_of_two_pairs_add(m, n):
    """Prefill of latent attention: 128 features of each head, and 64 rotated ones whose keys all heads share."""
    run, b = compiled(PAIRS), 2
    q, qr = fused(b, m, (H, H), (128, 64), torch.bfloat16, m)
    k, v, kr = fused(b, n, (H, H, 1), (128, 128, 64), torch.bfloat16, n + 1)
    o, lse = poisoned(b, m, H, 128, dtype=torch.bfloat16), poisoned(b, H, m)
    tensors = {"Q": q, "K": k, "Qr": qr, "Kr": kr[:, :, 0], "V": v, "O": o, "L": lse}
    run(run.shape({"B": b, "M": m, "N": n}), tensors)
    torch.cuda.synchronize()
    joined = torch.cat([q, qr], -1), torch.cat([k, kr.expand(-1, -1, H, -1)], -1)
    expected, l64 = reference(*joined, v, mask=CAUSAL)
    assert (o.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt() < ROUNDING["bf16"]
    assert torch.equal(lse.isinf(), l64.isinf()) and torch.allclose(lse.double(), l64, atol=1e-4, rtol=0)


def test_what_lies_beside_a_row_reaches_nothing():
    """A panel's last columns belong to the next head in memory: NaN there must not matter."""
    d, b, m = 72, 1, 200
    run = compiled(spec(d, d, "", "bf16"))
    (q, k, v) = (torch.randn(b, m, n, d, device="cuda").bfloat16() for n in (H, H // GROUP, H // GROUP))
    k[:, :, 1], v[:, :, 1] = torch.nan, torch.nan
    o, lse = poisoned(b, m, H, d, dtype=torch.bfloat16), poisoned(b, H, m)
    run(run.shape({"B": b, "M": m, "N": m}), {"Q": q, "K": k, "V": v, "O": o, "L": lse})
    torch.cuda.synchronize()
    expected, _ = reference(q[:, :, :GROUP], k[:, :, :1], v[:, :, :1], mask="")
    assert (o[:, :, :GROUP].double() - expected).abs().max() < 0.03
    assert o[:, :, GROUP:].isnan().all()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("e", [64, 72, 128])
def test_outputs_of_another_dtype(e, dtype):
    """Of bf16 inputs; in f32 only the weights are rounded."""
    run = compiled(spec(e, e, CAUSAL, "bf16").replace("O[b, q, h, e] : bf16", f"O[b, q, h, e] : {dtype}"))
    b, m, n = 2, 300, 333
    (q,) = fused(b, m, (H,), (e,), torch.bfloat16, m)
    k, v = fused(b, n, (H // GROUP, H // GROUP), (e, e), torch.bfloat16, n)
    whole, lse = poisoned(b, m, H, e + 8, dtype=DTYPES[dtype]), poisoned(b, H, m)
    run(run.shape({"B": b, "M": m, "N": n}), {"Q": q, "K": k, "V": v, "O": whole[..., :e], "L": lse})
    torch.cuda.synchronize()
    expected, _ = reference(q, k, v, mask=CAUSAL)
    o = whole[..., :e].double()
    assert (o - expected).square().mean().sqrt() / expected.square().mean().sqrt() < 2.5e-3
    assert whole[..., e:].isnan().all()


@pytest.mark.parametrize("d", [64, 128])
def test_dropout_keeps_what_the_interpreter_keeps(d):
    """Weights of one row are read back through values that are the identity: which are zero says the bits."""
    from tilec.ir.philox import uniform

    b, n, p = 2, d, 0.25
    text = spec(d, d, "dropout 0.25", "bf16")
    run = compiled(text)
    m = 300
    (q,) = fused(b, m, (H,), (d,), torch.bfloat16, m)
    (k,) = fused(b, n, (H // GROUP,), (d,), torch.bfloat16, n)
    v = torch.eye(n, d, device="cuda", dtype=torch.bfloat16)[None, :, None].expand(b, n, H // GROUP, d).contiguous()
    o, lse = poisoned(b, m, H, d, dtype=torch.bfloat16), poisoned(b, H, m)
    (name,) = {of for _, kind, of, _ in run.arguments if kind == "pointer"} - {"O", "L", "counter"}
    seed, offset = 2**40 + 12345, 3
    rng = torch.tensor([seed, offset], device="cuda")
    run(run.shape({"B": b, "M": m, "N": n}), {"Q": q, "K": k, "V": v, "O": o, "L": lse, name: rng})
    torch.cuda.synchronize()
    at = np.ogrid[:b, :H, :m, :n]
    kept = torch.from_numpy(uniform(seed, offset, *at) >= np.float32(p)).cuda().transpose(1, 2)
    assert torch.equal(o != 0, kept)
