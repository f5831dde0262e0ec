"""Generated Triton sources of specs, and their machine code, without a device."""

from __future__ import annotations

from functools import cache

from tilec.backends.base import Variant
from tilec.backends.triton import BACKEND
from tilec.backends.triton.build import compile_kernel
from tilec.frontend import bind, read_text

GENERAL = frozenset()
FAST = frozenset({"aligned", "unit"})

CAUSAL_GQA = """
kernel causal_gqa {
  index  b : B, h : 32, q : M, k : N, d : 128
  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 4, d] : bf16
  value  V[b, k, h // 4, d] : bf16
  output O[b, q, h,      d] : bf16
  lse    L[b, h, q]         : f32
  scale  1 / sqrt(128)
  mask   k <= q + N - M
}
"""


@cache
def artifact(text, target, features=FAST, **constants):
    """The Triton backend's artifact of a spec's only kernel."""
    spec = read_text(text)
    attn = bind(spec.kernels[0], constants)
    variant = Variant(tuple(constants.items()), features)
    return BACKEND.compile(attn, target, spec.schedule(attn.name, target), variant)


def source(made):
    return next(text for name, text in made.sources.items() if name.endswith(".triton.py"))


def compiled(made):
    """Triton's compiled kernel."""
    aligned = "aligned" in made.variant.features
    return compile_kernel(made.kernel, source(made), made.metadata, made.target, aligned=aligned)
