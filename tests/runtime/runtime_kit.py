"""Specs and a stub machine for the runtime's tests: launchers that compute with the exact oracle instead of a program."""

from functools import partial

import numpy as np
import torch

from tilec.backends.base import Artifact
from tilec.backends.cpu.launch import as_numpy
from tilec.backends.runtime import kernel as kernel_module
from tilec.backends.runtime.kernel import Kernel
from tilec.frontend import bind, read_text
from tilec.identity import kernel_identity
from tilec.oracle import exact
from tilec.signature_of import signature_of

CAUSAL = """kernel causal {
  index  b : B, h : 4, q : M, k : N, d : 16

  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 2, d] : bf16
  value  V[b, k, h // 2, d] : bf16
  output O[b, q, h,      d] : bf16
  lse    L[b, h, q]         : f32

  scale  1 / sqrt(16)
  mask   k <= q + N - M
  grad   Q, K, V
}
"""
NO_GRAD = CAUSAL.replace("  grad   Q, K, V\n", "").replace("kernel causal", "kernel frozen")
OUTPUT_ONLY = NO_GRAD.replace("  lse    L[b, h, q]         : f32\n", "").replace("frozen", "output_only")
PACKED = """kernel varlen {
  index  b : B, h : 3, q : M packed cu_q, k : N packed cu_k, d : 16

  query  Q[b, q, h, d] : bf16
  key    K[b, k, h // 3, d] : bf16
  value  V[b, k, h // 3, d] : bf16
  output O[b, q, h, d] : bf16
  lse    L[b, h, q]    : f32

  scale  1 / sqrt(16)
  mask   k <= q + N - M
  grad   Q, K, V
}
"""
PAGED = """kernel cached {
  index  b : B, h : 4, q : M, k : N lengths seqlen_k, d : 16

  query  Q[b, q, h,      d] : f16
  key    K[b, k, h // 4, d] : f16  paged pages[b, k // 8]
  value  V[b, k, h // 4, d] : f16  paged pages[b, k // 8]
  output O[b, q, h,      d] : f16

  scale  1 / sqrt(16)
}
"""
GROUPED = """kernel grouped {
  index  b : B, h : H, q : M, k : N, d : D

  query  Q[b, h, q,      d] : f32
  key    K[b, h // G, k, d] : f32
  value  V[b, h // G, k, d] : f32
  output O[b, h, q,      d] : f32

  scale  0.25
  assume N >= M
}
"""
DOCUMENTS = """kernel documents {
  index  b : B, h : 2, q : M, k : N, d : 8

  query  Q[b, q, h, d] : f32
  key    K[b, k, h, d] : f32
  value  V[b, k, h, d] : f32
  output O[b, q, h, d] : f32
  param  doc[b, k]     : i32 nondecreasing

  mask   doc[b, q] == doc[b, k]
}
"""
FP8 = """kernel eight {
  index  b : B, h : 4, q : M, k : N, d : 16

  query  Q[b, q, h, d] : e4m3  scaled qs[b, h]
  key    K[b, k, h, d] : e4m3  scaled ks[b, h]
  value  V[b, k, h, d] : e4m3
  output O[b, q, h, d] : bf16
}
"""
DROPPED = CAUSAL.replace("kernel causal", "kernel dropped").replace("  grad", "  dropout 0.5\n  grad")


class Exact:
    """A launcher by the oracle, which keeps what it was called with."""

    def __init__(self, attn, signature, calls):
        self.attn, self.signature, self.calls, self.seeds = attn, signature, calls, []

    def arrays(self, tensors):
        return {n: as_numpy(t) for n, t in zip(self.signature.names, tensors, strict=False)}

    def draw(self, tensors):
        seeds = [int(n) for n in tensors[-1]] if self.signature.dropout else []
        self.seeds += seeds[:1]
        return dict(zip(("seed", "offset"), seeds, strict=False))

    def prepare(self, bound):
        return partial(self.run, bound)

    def run(self, bound, tensors, outputs, addresses):
        self.calls.append(bound)
        assert addresses == tuple(t.data_ptr() for t in (*tensors, *outputs))
        sizes = {n: bound.extents[n] for n in self.attn.extents if n in bound.extents}
        attn = bind(self.attn, dict(bound.constants))
        found = exact.evaluate(attn, self.arrays(tensors), sizes=sizes, **self.draw(tensors))
        for o, t in zip(self.signature.outputs, outputs, strict=True):
            array = as_numpy(t)
            array[...] = found[o.name].astype(array.dtype)

    def backward(self, bound, tensors, outputs, d_outputs, d_inputs):
        given = [None if d is None else as_numpy(d) for d in d_outputs]
        d_output = np.zeros(outputs[0].shape) if given[0] is None else given[0]
        found = exact.gradients(self.attn, self.arrays(tensors), d_output, *given[1:], **self.draw(tensors))
        for name, into in zip(self.signature.gradients, d_inputs, strict=True):
            array = as_numpy(into)
            array[...] = found[name].astype(array.dtype)


class Doing:
    """A launcher that does `what(tensors, outputs)` at each launch."""

    def __init__(self, what=lambda *_: None):
        self.what = what

    def prepare(self, bound):
        return lambda tensors, outputs, addresses: self.what(tensors, outputs)


class ForwardOnly(Exact):
    backward = property()  # hasattr is false: this machine has no gradients


class Machine:
    """A provider whose artifacts are empty; counts compilations and remembers variants."""

    rebuild = "tilec compile causal.tile --target {target}"

    def __init__(self, features=frozenset()):
        self.kept, self.variants = features, []

    def features(self, target):
        return self.kept

    def artifact(self, target, variant):
        self.variants.append((target, variant))
        return Artifact("stub", target, "stub", variant)


def attention(text):
    return read_text(text, "spec.tile").kernels[0]


def signature(text):
    spec = read_text(text, "spec.tile")
    return signature_of(spec.kernels[0], spec.source)


def make_kernel(monkeypatch, text, *, launcher=Exact, machine=None, target=None, tag=""):
    """A Kernel of the spec on the stub machine, with `calls` (one Bound per launch) and `machine`."""
    attn, calls = attention(text), []
    monkeypatch.setattr(kernel_module, "launch_half", lambda name: lambda a, s, d: launcher(attn, s, calls))
    kernel = Kernel(signature(text), machine or Machine(), kernel_identity(attn, "stub", tag), target)
    kernel.calls, kernel.machine = calls, kernel.provider
    return kernel


def dense(B=2, M=5, N=7, H=4, G=2, D=16, dtype=torch.bfloat16, grad=False, seed=0):
    """Q [B, M, H, D], K and V [B, N, H // G, D]."""
    g = torch.Generator().manual_seed(seed)

    def one(rows, heads):
        return torch.randn(B, rows, heads, D, generator=g).to(dtype).requires_grad_(grad)

    return one(M, H), one(N, H // G), one(N, H // G)


def reference(q, k, v):
    """Causal attention, aligned to the bottom right, in float64 with autograd: O [B, M, H, D] and L [B, H, M]."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    M, N = q.shape[2], k.shape[2]
    live = torch.arange(N) <= torch.arange(M)[:, None] + N - M
    s = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(~live, float("-inf"))
    return (s.softmax(-1) @ v).transpose(1, 2), s.logsumexp(-1)
