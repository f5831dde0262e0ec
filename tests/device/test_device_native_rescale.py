"""Conditional rescaling on a Hopper GPU: against float64, with scores that rise from step to step by less and by more than 8.

A wrong barrier hangs for ever, so a time-out ends the process.
"""

from functools import cache

import pytest
import torch

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.skipif(not hopper, reason="needs a Hopper GPU"),
    pytest.mark.watchdog(60),
]

SPEC = """
kernel f {{
  index  b : B, h : 2, q : M, k : N, d : {d}
  query  Q[b, q, h, d] : {dtype}
  key    K[b, k, h, d] : {dtype}
  value  V[b, k, h, d] : {dtype}
  param  slope[h] : f32
  output O[b, q, h, d] : {dtype}
  lse    L[b, h, q] : f32
  scale  1 / sqrt({d})
  score  s = s - slope[h] * (q % 5) * k
  {mask}
}}
schedule f on sm90 {{ rescale conditional 8 }}
"""
CAUSAL = "mask k <= q + N - M"
CONFIGS = [(64, CAUSAL, "bf16"), (128, CAUSAL, "bf16"), (128, "", "f16"), (256, "", "bf16"), (256, CAUSAL, "f16")]
SLOPES = [(0.0, 0.01), (0.04, 0.3)]  # natural units for each key and row class
SHAPES = [(1, 128, 128), (2, 300, 700), (1, 333, 200), (1, 2000, 2000)]


@cache
def kernel(d, mask, dtype):
    from tilec.backends.base import Variant
    from tilec.backends.cuda import ALIGNED, BACKEND
    from tilec.backends.cuda.launch import Kernel
    from tilec.frontend import read_text

    read = read_text(SPEC.format(d=d, mask=mask, dtype=dtype))
    artifact = BACKEND.compile(read.kernels[0], "sm90", read.schedule("f", "sm90"), Variant((), ALIGNED))
    assert "unless @shrink == 1.0" in artifact.sources["program.tile_ir"]
    return Kernel(artifact, torch.device("cuda", torch.cuda.current_device()))


def reference(q, k, v, slope, mask):
    """O and L in float64."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * q.shape[3] ** -0.5
    m, n = scores.shape[-2:]
    rows, keys = torch.arange(m, device=q.device)[:, None], torch.arange(n, device=q.device)
    scores = scores - slope.double()[:, None, None] * (rows % 5 * keys)
    if mask:
        scores = scores.masked_fill(keys > rows + n - m, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0.0)[..., None])
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.double()), lse


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slopes", SLOPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_maxima_that_lag_give_the_same_results(config, slopes, shape):
    d, mask, dtype = config
    b, m, n = shape
    generator, kind = torch.Generator(device="cuda").manual_seed(m + n), {"bf16": torch.bfloat16, "f16": torch.float16}

    def random(rows):
        return torch.randn(b, rows, 2, d, device="cuda", dtype=kind[dtype], generator=generator)

    tensors = {"Q": random(m), "K": random(n), "V": random(n), "slope": torch.tensor(slopes, device="cuda")}
    tensors["O"] = torch.full((b, m, 2, d), torch.nan, device="cuda", dtype=kind[dtype])
    tensors["L"] = torch.full((b, 2, m), torch.nan, device="cuda")
    run = kernel(*config)
    run(run.shape({"B": b, "M": m, "N": n}), tensors)
    torch.cuda.synchronize()
    o, lse = reference(tensors["Q"], tensors["K"], tensors["V"], tensors["slope"], mask)
    assert (tensors["O"].double() - o).abs().max() < 0.03
    assert torch.equal(tensors["L"].isinf(), lse.isinf())
    assert torch.allclose(tensors["L"].double(), lse, atol=1e-3, rtol=1e-6)
