"""Runs a spec on one backend and holds it against float64: outputs poisoned first, every tensor between guard bands.

`Runner("cpu", folder)(text, sizes)` draws inputs, calls the kernel, checks the rule of `oracle.numerics` and that no memory
beside the outputs was written, and gives a `Result`.  Backends are `cpu` (the interpreter of tile programs), `triton`
(generated Triton under its CPU interpreter) and `cuda` (this machine's GPU).

`dense` is the same meaning written once more in torch, with autograd, for gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tilec
from tilec.backends.runtime.device import target_of
from tilec.frontend import bind, read_text
from tilec.ir.attention import Attention
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify
from tilec.oracle.tensors import from_torch, to_torch
from tilec.oracle.units import units_of
from tilec.targets import target

GUARD = 64  # elements before and after each tensor: keeps its alignment


def spec(
    *lines: str,
    heads: int | str = 2,
    group: int | str = 1,
    d: int = 32,
    e: int | None = None,
    dtype: str = "bf16",
    q: str = "",
    k: str = "",
    tails: str = "",
    more: str = "",
    tile: tuple[int, int] | None = (16, 16),
) -> str:
    """Text of a kernel `case`: Q[b, q, h, d], K and V[b, k, h // group, ·], O and L, 1/sqrt(d), and further `lines`.

    `q`, `k`: storage words of the sequence indices; `tails`: of K and V (`paged …`);
    `more`: further indices."""
    head = "h" if group == 1 else f"h // {group}"
    last = "d" if e is None else "e"
    block = "" if tile is None else f"schedule case on any {{ tile q = {tile[0]}, k = {tile[1]} }}\n"
    rest = "".join(f"  {line}\n" for line in lines)
    return (
        "kernel case {\n"
        f"  index  b : B, h : {heads}, q : M {q}, k : N {k}, d : {d}{'' if e is None else f', e : {e}'}{more}\n"
        f"  query  Q[b, q, h, d] : {dtype}\n"
        f"  key    K[b, k, {head}, d] : {dtype} {tails}\n"
        f"  value  V[b, k, {head}, {last}] : {dtype} {tails}\n"
        f"  output O[b, q, h, {last}] : {dtype}\n"
        f"  lse    L[b, h, q] : f32\n"
        f"  scale  1 / sqrt({d})\n{rest}}}\n{block}"
    )


def poison(dtype: torch.dtype) -> float | int:
    """What no result may show: NaN, or a number far outside every tensor."""
    return float("nan") if dtype.is_floating_point else 1 if dtype == torch.bool else 0x5EADBEEF


def guarded(t: torch.Tensor) -> torch.Tensor:
    """A copy of `t` in the middle of a larger buffer of poison."""
    n = t.numel()
    wide = torch.float32 if t.dtype.is_floating_point else t.dtype  # of 8-bit floats only conversions exist
    buffer = torch.full((n + 2 * GUARD,), poison(t.dtype), dtype=wide, device=t.device).to(t.dtype)
    buffer[GUARD : GUARD + n] = t.flatten()
    return buffer[GUARD : GUARD + n].view(t.shape)


def untouched(t: torch.Tensor) -> bool:
    """Whether the guard bands around a tensor made by `guarded` are still poison."""
    around = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())
    bands = torch.cat([around[:GUARD], around[GUARD + t.numel() :]])
    return bool(bands.isnan().all()) if t.dtype.is_floating_point else bool((bands == poison(t.dtype)).all())


@dataclass(frozen=True)
class Result:
    """One call that passed.  `inputs` and `outputs`: arrays by name."""

    attn: Attention
    inputs: Mapping[str, np.ndarray[Any, Any]]
    outputs: Mapping[str, np.ndarray[Any, Any]]

    @property
    def o(self) -> np.ndarray[Any, Any]:
        return self.outputs["O"].astype(np.float64)

    @property
    def lse(self) -> np.ndarray[Any, Any]:
        return self.outputs["L"]


class Runner:
    """Calls kernels on one backend; see the module's docstring."""

    def __init__(self, backend: str, cache: Any) -> None:
        self.backend, self.cache = backend, cache
        self.device = "cuda" if backend == "cuda" else "cpu"
        self.units = units_of(target(target_of(torch.device(self.device))))
        self.kernels: dict[Any, tilec.Kernel] = {}

    def load(self, text: str, **constants: int) -> tilec.Kernel:
        """The kernel of a spec, loaded once."""
        key = text, tuple(sorted(constants.items()))
        if key not in self.kernels:
            name = None if self.backend == "cuda" else self.backend
            target = None if self.backend == "cuda" else "cpu"
            self.kernels[key] = tilec.load(text, target=target, backend=name, cache_dir=self.cache, **constants)
        return self.kernels[key]

    def call(self, text: str, inputs: Mapping[str, Any], **constants: int) -> dict[str, Any]:
        """Outputs of a call on arrays or tensors, in poisoned and guarded memory; the seed of dropout is 0."""
        kernel = self.load(text, **constants)
        arrays = {n: x for n, x in inputs.items() if isinstance(x, np.ndarray)}
        tensors = {n: guarded(t) for n, t in to_torch(arrays, self.device).items()}
        tensors |= {n: x for n, x in inputs.items() if n not in arrays}
        given = tuple(tensors[n] for n in kernel.signature.names)
        with torch.no_grad():
            drawn = {"seed": 0} if kernel.signature.dropout else {}
            shapes = kernel.plan(given, None).bound.outputs
            out = tuple(
                guarded(torch.full(s.shape, float("nan"), dtype=torch.float32, device=self.device).to(s.dtype))
                for s in shapes
            )
            kernel(*given, out=out if len(out) > 1 else out[0], **drawn)
        assert all(untouched(t) for t in out), "memory beside an output was written"
        return from_torch(dict(zip([o.name for o in kernel.signature.outputs], out, strict=True)))

    def __call__(
        self,
        text: str,
        sizes: Mapping[str, int],
        *,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        style: Any = "normal",
        lengths: Any = "mixed",
        tail: int = 0,
        given: Mapping[str, Any] | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> Result:
        """One call against the oracle.  `inputs` replaces drawn arrays; other arguments as `oracle.inputs.make_inputs`."""
        fixed = dict(constants or {})
        attn = bind(read_text(text).kernels[0], fixed)
        drawn = make_inputs(attn, {**sizes, **fixed}, seed, style, lengths=lengths, tile=16, tail=tail, given=given)
        drawn |= dict(inputs or {})
        outputs = self.call(text, drawn, **fixed)
        reports = verify(attn, drawn, outputs, sizes={**sizes, **fixed}, units=self.units).values()
        assert all(r.ok for r in reports), "; ".join(map(str, reports))
        return Result(attn, drawn, outputs)


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    live: torch.Tensor,
    *,
    score: Any = lambda s: s,
    sink: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O [B, M, H, E] and L [B, H, M] in float64 from [B, S, H, D] tensors; `live` broadcasts to [B, H, M, N]."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = score(q @ k.mT * (scale or q.shape[-1] ** -0.5))
    live = live.expand(s.shape)
    dead = ~live.any(-1, keepdim=True)
    s = torch.where(live, s, -torch.inf).masked_fill(dead, 0.0)
    every = s if sink is None else torch.cat([s, sink.double()[:, None, None].expand(*s.shape[:-1], 1)], -1)
    lse = every.logsumexp(-1, keepdim=True)
    p = torch.where(live, (s - lse).exp(), 0.0)
    return (p @ v).transpose(1, 2), torch.where(dead, -torch.inf, lse).squeeze(-1)


def positions(m: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column numbers, broadcasting to [M, N]."""
    return torch.arange(m)[:, None], torch.arange(n)[None, :]


def close(a: Any, b: Any, tolerance: float = 2e-2) -> bool:
    """Whether two tensors agree and neither has a NaN."""
    a, b = a.detach().double(), b.detach().double()
    return a.shape == b.shape and bool(torch.allclose(a, b, atol=tolerance, rtol=tolerance))
