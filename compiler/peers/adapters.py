"""Adapters: `why_not` says what a peer lacks for a case, `forward` gives a call of no arguments that returns O.

sdpa   torch's scaled_dot_product_attention, the FlashAttention-2 kernel (on CPU: torch's own)
cudnn  the same function with cuDNN's kernel
flex   FlexAttention, given the spec's own mask and score lines as functions
fa3    FlashAttention-3, from `flash_attn_interface` or `fa3_fwd_interface` if installed
fa4    FlashAttention-4, from `flash_attn.cute` (package flash-attn-4) if installed
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from tilec.ir.expr import TRUE
from tilec.peers.case import Case
from tilec.peers.torch_expr import value

Call = Callable[[], torch.Tensor]


class Peer(Protocol):
    name: str

    def why_not(self, case: Case) -> str | None:
        """What the peer lacks for this case, or None."""
        ...

    def forward(self, case: Case) -> Call:
        """A call that returns O in the spec's layout.  Whatever a user would do once is done here."""
        ...


def _common(case: Case, *, dtypes: tuple[str, ...] = ("bf16", "f16")) -> str | None:
    attn = case.attn
    used = {attn.tensor(n).dtype for pair in attn.pairs for n in pair} | {attn.tensor(attn.value).dtype}
    if not case.dense:
        return "packed, padded or paged storage"
    if len(attn.pairs) != 1:
        return "several query and key pairs"
    if attn.sink is not None:
        return "a sink"
    if attn.dropout is not None:
        return "dropout with the spec's bits"
    if any(t.scaled for t in attn.tensors):
        return "descales"
    if not used <= set(dtypes):
        return f"dtypes {', '.join(sorted(used - set(dtypes)))}"
    try:
        case.qkv()
    except ValueError as wrong:
        return str(wrong)
    return None


class Sdpa:
    def __init__(self, name: str, backend: str) -> None:
        self.name, self.backend = name, backend

    def why_not(self, case: Case) -> str | None:
        on_gpu = case.device.type == "cuda"
        if self.name == "cudnn" and not on_gpu:
            return "it needs a GPU"
        lack = _common(case, dtypes=("bf16", "f16") if on_gpu else ("bf16", "f16", "f32"))
        if lack is not None:
            return lack
        if case.softcap != 0.0:
            return "score lines"
        if case.mask.kind not in ("full", "causal"):
            return "a mask other than full and causal"
        q, k, v = case.qkv()
        if case.mask.kind == "causal" and q.shape[2] != k.shape[2]:
            return "causal with M different from N"
        if on_gpu and self.name == "sdpa" and (q.shape[3] != v.shape[3] or q.shape[3] > 256):
            return "head dims above 256, or different for keys and values"
        return None

    def forward(self, case: Case) -> Call:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        q, k, v = case.qkv()
        backends = [getattr(SDPBackend, self.backend)]
        if case.device.type == "cpu":
            backends.append(SDPBackend.MATH)
        causal, grouped = case.mask.kind == "causal", case.groups > 1

        def call() -> torch.Tensor:
            with sdpa_kernel(backends):
                o = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=case.scale, enable_gqa=grouped)
            return case.in_spec_layout(o)

        return call


class Flex:
    name = "flex"

    def why_not(self, case: Case) -> str | None:
        lack = _common(case, dtypes=("bf16", "f16", "f32"))
        if lack is not None:
            return lack
        return "more than one batch index" if len(case.outer) > 2 else None

    def functions(self, case: Case) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
        """mask_mod and score_mod; None where the spec has no mask or no score line."""
        attn, batch = case.attn, next((n for n in case.outer if n != case.head), None)
        extents, tensors = dict(case.extents), {n: case.tensors[n] for n in sorted(case.reads())}

        def env(b: Any, h: Any, q: Any, k: Any) -> dict[str, Any]:
            named = {attn.q: q, attn.k: k} | ({batch: b} if batch else {}) | ({case.head: h} if case.head else {})
            return {**extents, **named}

        def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
            return value(attn.mask, env(b, h, q, k), tensors)

        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            for line in attn.scores:
                score = value(line, {**env(b, h, q, k), "s": score}, tensors)
            return score

        return None if attn.mask is TRUE else mask_mod, score_mod if attn.scores else None

    def forward(self, case: Case) -> Call:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v = case.qkv()
        mask_mod, score_mod = self.functions(case)
        on_gpu = case.device.type == "cuda"
        run: Any = torch.compile(flex_attention, dynamic=False) if on_gpu else flex_attention
        block_mask = None
        if mask_mod is not None:
            shape = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
            batch, heads = (
                n if name in case.masks[0] else None for n, name in zip(shape, self._names(case), strict=False)
            )
            block_mask = create_block_mask(mask_mod, batch, heads, shape[2], shape[3], device=case.device)
        grouped = case.groups > 1

        def call() -> torch.Tensor:
            o = run(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=case.scale, enable_gqa=grouped)
            return case.in_spec_layout(o)

        return call

    @staticmethod
    def _names(case: Case) -> tuple[str | None, str | None]:
        return next((n for n in case.outer if n != case.head), None), case.head


class FlashAttention:
    """FlashAttention-3 and -4 are called alike: q, k, v as [batch, rows, heads, features], `softmax_scale`, `causal`,
    `softcap`, and `window_size`, the keys before and after the row's own; the result is O, or O and its LSE."""

    def __init__(self, name: str, *modules: str) -> None:
        self.name, self.modules = name, modules

    def why_not(self, case: Case) -> str | None:
        if self._module() is None:
            tried = " nor ".join(self.modules)
            return f"neither {tried} is installed" if len(self.modules) > 1 else f"{tried} is not installed"
        if case.device.type != "cuda":
            return "it needs a GPU"
        lack = _common(case)
        if lack is not None:
            return lack
        if case.softcap is None:
            return "score lines other than softcap"
        return "a mask other than full, causal and window" if case.mask.kind == "other" else None

    def _module(self) -> str | None:
        return next((m for m in self.modules if _installed(m)), None)

    def forward(self, case: Case) -> Call:
        function = import_module(self._module() or self.modules[0]).flash_attn_func
        q, k, v = (x.transpose(1, 2) for x in case.qkv())
        options: dict[str, Any] = {"softmax_scale": case.scale, "causal": case.mask.kind != "full"}
        if case.softcap:
            options["softcap"] = case.softcap
        if case.mask.kind == "window":
            options["window_size"] = (case.mask.window, 0)

        def call() -> torch.Tensor:
            o = function(q, k, v, **options)
            o = o[0] if isinstance(o, tuple) else o
            return case.in_spec_layout(o.transpose(1, 2))

        return call


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


PEERS: dict[str, Peer] = {
    p.name: p
    for p in (
        Sdpa("sdpa", "FLASH_ATTENTION"),
        Sdpa("cudnn", "CUDNN_ATTENTION"),
        Flex(),
        FlashAttention("fa3", "flash_attn_interface", "fa3_fwd_interface"),
        FlashAttention("fa4", "flash_attn.cute"),
    )
}
PACKAGES = ("flash-attn-3", "fa3-fwd", "flash-attn-4", "nvidia-cutlass-dsl")  # whose versions a figure depends on
