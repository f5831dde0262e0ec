"""What device tests of native Hopper kernels share: where they run, a watchdog, and a spec with its parts left open."""

import pytest
import torch
from float64 import causal

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
MARKS = [pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"), pytest.mark.watchdog(60)]

SPEC = """
kernel f {{
  index  b : B, h : {heads}, q : M, k : N, d : {d}
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h // {group}, d] : bf16
  value  V[b, k, h // {group}, d] : bf16
  output O[b, q, h, d] : bf16
  lse    L[b, h, q] : f32
  scale  1 / sqrt({d})
  {mask}
}}
schedule f on sm90 {{ {lines} }}
"""
CAUSAL = "mask k <= q + N - M"
WINDOW = "mask k <= q + N - M and k > q + N - M - 300"
LIVE = {"": lambda m, n: None, CAUSAL: causal, WINDOW: lambda m, n: causal(m, n, 300)}
