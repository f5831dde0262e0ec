"""Attentions for the oracle's tests, from the text of specs."""

from __future__ import annotations

from tilec.frontend import read_text
from tilec.ir.attention import Attention
from tilec.ir.expr import Expr, Op, lift

BOTTOM_RIGHT = "mask k <= q + N - M"


def attention(
    *lines: str,
    heads: int = 4,
    group: int = 1,
    depth: int = 16,
    features: int | None = None,
    dtype: str = "bf16",
    out: str | None = None,
    q: str = "",
    k: str = "",
    paged: int | None = None,
    scaled: bool = False,
    order: str = "bqhd",
) -> Attention:
    """Multi-head attention with Q[b, q, h, d], K and V[b, k, h // group, ·], and further `lines`.

    `q`, `k`: storage of the sequence indices ("packed cu_q"); `order` permutes every tensor's dimensions.
    """
    kv = f"h // {group}" if group > 1 else "h"
    last = "d" if features is None else "e"

    def index(rows: str, head: str, feature: str) -> str:
        at = {"b": "b", "q": rows, "h": head, "d": feature}
        return ", ".join(at[c] for c in order)

    def tail(scale: str, head: str, pages: int | None = None) -> str:
        words = [f"scaled {scale}[b, {head}]"] if scaled else []
        return " ".join(words + ([f"paged bt[b, k // {pages}]"] if pages else []))

    text = f"""
    kernel test {{
      index b : B, h : {heads}, q : M {q}, k : N {k}, d : {depth} {"" if features is None else f", e : {features}"}
      query  Q[{index("q", "h", "d")}] : {dtype} {tail("qs", "h")}
      key    K[{index("k", kv, "d")}] : {dtype} {tail("ks", kv, paged)}
      value  V[{index("k", kv, last)}] : {dtype} {tail("vs", kv, paged)}
      output O[{index("q", "h", last)}] : {out or dtype}
      lse    L[b, h, q] : f32
      {"" if any(x.startswith("scale") for x in lines) else f"scale 1 / sqrt({depth})"}
      {chr(10).join(lines)}
    }}
    """
    return read_text(text).kernels[0]


def mla(*lines: str, paged: int | None = None) -> Attention:
    """Absorbed latent attention: two pairs over one latent head, whose keys C are the values too."""
    tail = "" if paged is None else f"paged bt[b, k // {paged}]"
    text = f"""
    kernel mla {{
      index b : B, h : 4, q : M, k : N {"" if paged is None else "lengths len_k"}, c : 16, r : 8
      query  Q[b, q, h, c] : bf16
      query  Qr[b, q, h, r] : bf16
      key    C[b, k, c] : bf16 {tail}
      key    R[b, k, r] : bf16 {tail}
      value  C
      output O[b, q, h, c] : bf16
      lse    L[b, h, q] : f32
      scale  1 / sqrt(24)
      mask   k <= q + N - M
      {chr(10).join(lines)}
    }}
    """
    return read_text(text).kernels[0]


def op(name: str, *args: Expr | int | float) -> Expr:
    """An operator, for expressions that a spec cannot write (infinite constants)."""
    return Op(name, tuple(lift(a) for a in args))
