"""The benchmark on a GPU: peers that can express a spec agree with it, and captured graphs are timed too."""

import pytest
import torch

from tilec.bench import Options, bench_kernel
from tilec.frontend import read_spec
from tilec.measure import Plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SPEC = """
kernel attend {{
  index  b : B, h : 16, q : M, k : N, d : 128
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h // 4, d] : bf16
  value  V[b, k, h // 4, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / sqrt(128)
  {score}
  mask   {mask}
}}
"""


@pytest.mark.parametrize(
    ("mask", "score", "able"),
    [
        ("true", "", {"sdpa", "cudnn", "flex"}),
        ("k <= q + N - M", "", {"sdpa", "cudnn", "flex"}),
        ("k <= q and q - k < 200", "score s = 20 * tanh(s / 20)", {"flex"}),
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_peers_agree_and_are_timed(mask, score, able, graph, tmp_path):
    from tilec.backends.runtime.device import first, target_of

    path = tmp_path / "spec.tile"
    path.write_text(SPEC.format(mask=mask, score=score))
    spec = read_spec(path)
    options = Options(Plan(rounds=2, burst=0.001, sustained=0.02, graph=graph))
    shape = {"B": 1, "M": 1024, "N": 1024}
    result = bench_kernel(spec, spec.kernels[0], target_of(first()), None, shape, ("sdpa", "cudnn", "flex"), options)
    rows = {r.name: r for r in result.rows}
    assert result.backend in ("cuda", "triton")
    assert {n for n, r in rows.items() if r.burst is not None} == {"tilec", *able}
    for name in able:
        assert rows[name].error < 2e-2
        assert rows[name].sustained > 0
        assert rows[name].host > 0
        assert rows[name].graph == graph, rows[name].note
