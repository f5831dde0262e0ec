"""One spec for every statement of the language, with sizes that are ragged in every tile: what each backend must get right.

`FEATURES` is read by the tests of passes and of emitted code.  Tiles are small on every target (see `SCHEDULE`), so that a
hundred positions span several tiles and every kind of loop runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CAUSAL = "mask k <= q + N - M"
SCHEDULE = "schedule f on any { tile q = 32, k = 32 }"


@dataclass(frozen=True)
class Feature:
    """A spec and the calls to try.  `sizes`: every symbol, per call.  `lengths`: see `oracle.inputs.make_inputs`."""

    name: str
    text: str
    sizes: tuple[Mapping[str, int], ...]
    constants: Mapping[str, int] = field(default_factory=dict)
    lengths: Any = "mixed"
    tail: int = 0

    def __str__(self) -> str:
        return self.name


def kernel(
    *lines: str,
    b: str = "b : B",
    q: str = "q : M",
    k: str = "k : N",
    h: str = "h : 2",
    d: str = "d : 16",
    more: str = "",
    head: str = "h",
    dtype: str = "bf16",
    out: str | None = None,
    query: str = "Q[b, q, h, d]",
    key: str | None = None,
    value: str | None = None,
    output: str = "O[b, q, h, d]",
    tails: tuple[str, str, str] = ("", "", ""),
    lse: str = "lse L[b, h, q] : f32",
    scale: str = "scale 0.25",
    schedule: str = SCHEDULE,
) -> str:
    """Text of kernel `f`: two heads of 16 features over B, M and N unless said otherwise, and further `lines`."""
    key = key or f"K[b, k, {head}, d]"
    value = f"V[b, k, {head}, d] : {dtype} {tails[2]}" if value is None else value
    statements = [
        "index " + ", ".join(filter(None, (b, h, q, k, d, more))),
        f"query {query} : {dtype} {tails[0]}",
        f"key {key} : {dtype} {tails[1]}",
        f"value {value}",
        f"output {output} : {out or dtype}",
        lse,
        scale,
        *lines,
    ]
    return "kernel f {\n" + "".join(f"  {s}\n" for s in statements if s) + "}\n" + schedule + "\n"


RAGGED = ({"B": 1, "M": 70, "N": 101},)
SQUARE = ({"B": 1, "M": 97, "N": 97},)
WIDE = ({"B": 2, "M": 33, "N": 70},)
BATCH = ({"B": 5, "M": 70, "N": 75},)


def _f(name: str, *lines: str, sizes: tuple[Mapping[str, int], ...] = RAGGED, **parts: Any) -> Feature:
    own = {n: parts.pop(n) for n in ("constants", "lengths", "tail") if n in parts}
    return Feature(name, kernel(*lines, **parts), sizes, **own)


# fmt: off
MASKS = (
    _f("full", sizes=(*RAGGED, {"B": 2, "M": 64, "N": 64}, {"B": 1, "M": 1, "N": 1}, {"B": 1, "M": 1, "N": 70})),
    _f("no keys", sizes=({"B": 1, "M": 5, "N": 0}, {"B": 0, "M": 5, "N": 5}, {"B": 1, "M": 0, "N": 5})),
    _f("causal", CAUSAL, sizes=(*RAGGED, *SQUARE, {"B": 1, "M": 101, "N": 40})),
    _f("causal from the top", "mask k <= q", sizes=(*RAGGED, {"B": 1, "M": 101, "N": 40})),
    _f("window", "mask k <= q + N - M and k > q + N - M - 40", sizes=(*SQUARE, {"B": 1, "M": 101, "N": 40})),
    _f("window and first", "mask k <= q and (k > q - 20 or k < 4)", sizes=SQUARE),
    _f("prefix", "mask k <= q or k < 40", sizes=RAGGED),
    _f("two-sided", "mask abs(q - k) <= 35", sizes=RAGGED),
    _f("chunked", "mask q // 24 == k // 24 and k <= q", sizes=SQUARE),
    _f("block-causal", "mask k // 24 <= q // 24", sizes=SQUARE),
    _f("dilated", "mask (q - k) % 3 == 0 and k <= q and q - k < 90", sizes=SQUARE),
    _f("dilated, two-sided", "mask (q - k) % 4 == 1 and abs(q - k) < 70", sizes=RAGGED),
    _f("strided", "mask k <= q and (q - k < 20 or (q - k) % 8 == 0)", sizes=SQUARE),
    _f("strided columns", "mask k <= q and (q - k < 20 or k % 8 == 7)", sizes=SQUARE),
    _f("opaque", "mask q * k % 7 < 3", sizes=RAGGED),
    _f("nothing", "mask k > q + N + M", sizes=RAGGED),
    _f("not equal", "mask k != q", sizes=SQUARE),
    _f("negated", "mask not (k > q or q - k > 50)", sizes=SQUARE),
    _f("two windows", "mask abs(q - k) < 10 or abs(q - k - 50) < 10", sizes=SQUARE),
    _f("documents", "param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k <= q", sizes=SQUARE),
    _f("documents, unsorted", "param doc[b, k] : i32", "mask doc[b, q] == doc[b, k] and k <= q", sizes=SQUARE),
    _f("per-head window", "param w[h] : i32", "mask k <= q and q - k < w[h]", sizes=SQUARE),
    _f("per-batch prefix", "param p[b] : i32", "mask k <= q or k < p[b]", sizes=WIDE),
    _f("key flags", "param keep[b, k] : bool", "mask keep[b, k]", sizes=RAGGED),
    _f("pair flags", "param keep[h, q, k] : bool", "mask keep[h, q, k] and k <= q", sizes=SQUARE),
    _f("assume", CAUSAL, "assume M <= N", sizes=RAGGED),
)

SCORES = (
    _f("softcap", "score s = 5 * tanh(s / 5)", CAUSAL),
    _f("alibi", "param slope[h] : f32", "score s = s - slope[h] * (q - k)", "mask k <= q", sizes=SQUARE),
    _f("alibi of bf16", "bias slope[b, h] : bf16", "score s = s - slope[b, h] * (q - k)", "mask k <= q", sizes=SQUARE),
    _f("alibi, two-sided", "param slope[h] : f32", "score s = s - slope[h] * abs(q - k)"),
    _f("alibi, then softcap", "param slope[h] : f32", "score s = s - slope[h] * (q - k)", "score s = 9 * tanh(s / 9)"),
    _f("bias", "bias Bt[b, h, q, k] : f32", "score s = s + Bt[b, h, q, k]", CAUSAL),
    _f("bias of a head", "bias Bt[h, q, k] : bf16", "score s = s + Bt[h, q, k]", sizes=WIDE),
    _f("bias of keys", "bias Bt[b, k] : f16", "score s = s + Bt[b, k]", sizes=WIDE),
    _f("bias of rows", "bias Bt[b, h, q] : f32", "score s = s * Bt[b, h, q]", sizes=WIDE),
    _f("bias, scaled", "bias Bt[h, q, k] : f32", "score s = s * 0.5 + 2 * Bt[h, q, k]", CAUSAL),
    _f(
        "relative table",
        "param rel[h, t] : f32",
        "score s = s + rel[h, q - k + 63]",
        "mask abs(q - k) <= 63",
        more="t : 127",
        sizes=SQUARE,
    ),
    _f("relative table, any pair", "param rel[h, t] : f32", "score s = s + rel[h, min(max(q - k, -20), 20) + 20]", more="t : 41"),
    _f("functions", "score s = where(k < q, sqrt(abs(s)), s) + log(1 + exp(min(s, 8))) / 8 - min(s, 1) ** 2 / 4"),
    _f("positions", "score s = s + (q % 5 - k // 3) / 16 - max(q, k) * 0.01"),
    _f("negative scale", scale="scale -0.25"),
    _f("scale of extents", scale="scale 4 / sqrt(N + M)"),
    _f("scale 0", scale="scale 0"),
    _f("negative factor", "score s = -0.5 * s", CAUSAL),
    _f("constant score", "score s = k * 0.125", "mask k <= q", sizes=SQUARE),
    _f("sink", "sink Z[h] : f32", CAUSAL, sizes=({"B": 1, "M": 101, "N": 40},)),
    _f("sink of a row", "sink Z[b, h] : f32", sizes=WIDE),
    _f("sink and alibi", "sink Z[h] : f32", "param slope[h] : bf16", "score s = s - slope[h] * (q - k)", "mask k <= q",
       sizes=SQUARE),
    _f("score of minus infinity, whole tiles", "score s = where(k < 40 or q > 60, log(0), s)"),
    _f("score of minus infinity", "score s = where(k % 3 == 0, log(0), s)", "mask k <= q", sizes=SQUARE),
)

DROPOUT = (
    _f("dropout", "dropout 0.3", CAUSAL),
    _f("dropout, grouped and packed", "dropout 0.5", h="h : 4", head="h // 2", q="q : M packed cu_q", k="k : N packed cu_k",
       sizes=({"B": 3, "M": 40, "N": 50},)),
    _f("dropout of three outer indices", "dropout 0.5", h="g : 2, h : 2", query="Q[b, q, g, h, d]", key="K[b, k, g, d]",
       value="V[b, k, g, d] : bf16", output="O[b, q, g, h, d]", lse="lse L[b, g, h, q] : f32",
       sizes=({"B": 2, "M": 20, "N": 40},)),
    _f("dropout, no batch", "dropout 0.1", b="", h="", query="Q[q, d]", key="K[k, d]", value="V[k, d] : bf16",
       output="O[q, d]", lse="lse L[q] : f32", sizes=({"M": 33, "N": 70},)),
    _f("dropout of residue classes", "dropout 0.5", "mask (q - k) % 3 == 0", "param rng[h] : f32", "score s = s + rng[h]",
       sizes=SQUARE),
)

SHAPES = (
    _f("gqa", h="h : 6", head="h // 3", sizes=({"B": 2, "M": 33, "N": 40},)),
    _f("gqa of 8", CAUSAL, h="h : 8", head="h // 8", sizes=({"B": 1, "M": 33, "N": 40},)),
    _f("gqa of 7", CAUSAL, h="h : 14", head="h // 7", sizes=({"B": 1, "M": 16, "N": 40},)),
    _f("gqa, a symbol", h="h : H", head="h // G", constants={"G": 2}, sizes=({"B": 1, "H": 4, "G": 2, "M": 33, "N": 40},)),
    _f("gqa, interleaved", h="h : 4", head="h % 2", sizes=({"B": 1, "M": 33, "N": 40},)),
    _f("mqa", CAUSAL, h="h : 3", key="K[b, k, d]", value="V[b, k, d] : bf16", sizes=WIDE),
    _f("group index", h="g : 2, h : 2", query="Q[b, q, g, h, d]", key="K[b, k, g, d]", value="V[b, k, g, d] : bf16",
       output="O[b, q, g, h, d]", lse="lse L[b, g, h, q] : f32", sizes=WIDE),
    _f("no batch, no heads", b="", h="", query="Q[q, d]", key="K[k, d]", value="V[k, d] : bf16", output="O[q, d]",
       lse="lse L[q] : f32", sizes=({"M": 33, "N": 70},)),
    _f("narrow values", more="e : 40", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]"),
    _f("wide values", d="d : 32", more="e : 96", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]", sizes=WIDE),
    _f("heads first", CAUSAL, query="Q[b, h, q, d]", key="K[b, h, k, d]", value="V[b, h, k, d] : bf16", output="O[b, h, q, d]"),
    _f("features first", query="Q[b, h, d, q]", key="K[b, h, d, k]", value="V[b, d, h, k] : bf16", output="O[b, h, d, q]"),
    _f("mixed orders", CAUSAL, query="Q[q, b, h, d]", key="K[h, b, k, d]", value="V[k, h, b, d] : bf16",
       output="O[h, q, b, d]", lse="lse L[q, b, h] : f32", sizes=WIDE),
    _f("no lse", CAUSAL, lse="", sizes=RAGGED),
    *(
        _f(f"head dim {d}", CAUSAL, d=f"d : {d}", scale=f"scale 1 / sqrt({d})", sizes=({"B": 1, "M": 33, "N": 40},))
        for d in (8, 33, 40, 72, 96, 128)
    ),
    _f("head dim a symbol", d="d : D", constants={"D": 24}, sizes=({"B": 1, "M": 33, "N": 40, "D": 24},)),
    _f("f16", CAUSAL, dtype="f16"),
    _f("f32", CAUSAL, dtype="f32"),
    _f("bf16 to f32", dtype="bf16", out="f32"),
    _f("rows under other names", "param w[head] : i32", "mask m <= i + w[head]",
       h="head : 2", q="i : M", k="m : N", query="Q[b, i, head, first]", d="first : 16", key="K[b, m, head, first]",
       value="V[b, m, head, first] : bf16", output="O[b, i, head, first]", lse="lse L[b, head, i] : f32",
       schedule="schedule f on any { tile i = 32, m = 32 }", sizes=SQUARE),
    _f("names of the program", "param section[width] : f32", "bias weights[j, k] : f32", "sink top[width] : f32",
       "score s = s - section[width] * (j - k) + weights[j, k]", "mask k <= j and (j - k) % 2 == 0",
       h="width : 2", q="j : M", query="acc[b, j, width, r]", key="scores[b, k, width, r]", d="r : 16",
       value="rounded[b, k, width, r] : bf16", output="row_sum[b, j, width, r]", lse="lse row_max[b, width, j] : f32",
       schedule="schedule f on any { tile j = 32, k = 32 }", sizes=SQUARE),
    _f("more names of the program", "mask k <= q and k > q - 50", h="slot : 2, cta : 1", d="m : 16",
       query="tl[b, q, slot, cta, m]", key="triton[b, k, slot, cta, m]", value="lane_q[b, k, slot, cta, m] : bf16",
       output="lane[b, q, slot, cta, m]", lse="lse found[b, slot, cta, q] : f32", sizes=SQUARE),
    Feature("extents with the names of constants",
            kernel("mask k <= q + TK - TQ", q="q : TQ", k="k : TK"), ({"B": 1, "TQ": 70, "TK": 75},)),
    Feature("constant extents", kernel(CAUSAL.replace("N", "75").replace("M", "70"), q="q : 70", k="k : 75"), ({"B": 1},)),
)

_ROPE = {"more": "r : 8", "scale": "scale 1 / sqrt(24)"}
PAIRS = (
    _f("two pairs", "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", CAUSAL, **_ROPE),
    _f("mla prefill", "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", CAUSAL, d="d : 128", more="r : 64",
       scale="scale 1 / sqrt(192)", sizes=({"B": 1, "M": 33, "N": 40},)),
    _f("mla decode", "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", CAUSAL, d="d : 512", more="r : 64",
       h="h : 2", key="K[b, k, d]", value="K", scale="scale 1 / sqrt(576)", sizes=({"B": 1, "M": 3, "N": 70},)),
    _f("value reuses a key", "mask k <= q", value="K", sizes=SQUARE),
    _f("value reuses a key, f32", value="K", dtype="f32"),
    _f("three pairs", "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", "query Qt[b, q, t] : f16",
       "key Kt[b, k, h, t] : f16", more="r : 8, t : 16"),
)

STORAGE = (
    _f("packed", CAUSAL, q="q : M packed cu_q", k="k : N packed cu_k", sizes=BATCH),
    _f("packed, with a tail", q="q : M packed cu_q", k="k : N packed cu_k", sizes=BATCH, tail=7),
    _f("packed, one table", "mask k <= q", q="q : M packed cu", k="k : M packed cu", sizes=({"B": 5, "M": 70},)),
    _f("packed rows, dense keys", q="q : M packed cu_q", sizes=BATCH),
    _f("dense rows, packed keys", "mask k <= q", k="k : N packed cu_k", sizes=BATCH),
    _f("packed, window and sink", "mask k <= q + N - M and k > q + N - M - 20", "sink Z[h] : f32",
       q="q : M packed cu_q", k="k : N packed cu_k", sizes=BATCH),
    _f("packed documents", "param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k <= q",
       q="q : M packed cu", k="k : M packed cu", sizes=({"B": 5, "M": 70},)),
    _f("packed, bias of keys", "bias Bt[b, h, k] : f32", "score s = s + Bt[b, h, k]", q="q : M packed cu_q",
       k="k : N packed cu_k", sizes=BATCH),
    _f("lengths of keys", k="k : N lengths nk", sizes=BATCH),
    _f("lengths of both", CAUSAL, q="q : M lengths mq", k="k : N lengths nk", sizes=BATCH),
    _f("lengths, no sequence", CAUSAL, k="k : N lengths nk", sizes=({"B": 3, "M": 5, "N": 40},), lengths={"k": [0, 0, 0]}),
    _f("paged", CAUSAL, k="k : N lengths nk", tails=("", "paged bt[b, k // 16]", "paged bt[b, k // 16]"), sizes=BATCH),
    _f("paged by 64", CAUSAL, k="k : N lengths nk", tails=("", "paged bt[b, k // 64]", "paged bt[b, k // 64]"),
       sizes=({"B": 3, "M": 2, "N": 150},)),
    _f("paged by 1", k="k : N lengths nk", tails=("", "paged bt[b, k // 1]", "paged bt[b, k // 1]"), sizes=BATCH),
    _f("paged, grouped", h="h : 4", head="h // 2", k="k : N lengths nk",
       tails=("", "paged bt[b, k // 16]", "paged bt[b, k // 16]"), sizes=({"B": 2, "M": 3, "N": 75},)),
    _f("paged by heads first", k="k : N lengths nk", key="K[b, h, k, d]", value="V[b, h, k, d] : bf16 paged bt[b, k // 16]",
       tails=("", "paged bt[b, k // 16]", ""), sizes=BATCH),
    _f("paged latent", "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16 paged bt[b, k // 16]", CAUSAL,
       key="K[b, k, d]", value="K", k="k : N lengths nk", tails=("", "paged bt[b, k // 16]", ""), more="r : 8", sizes=BATCH),
    _f("packed rows, paged keys", CAUSAL, q="q : M packed cu_q", k="k : N lengths nk",
       tails=("", "paged bt[b, k // 16]", "paged bt[b, k // 16]"), sizes=BATCH),
)

FP8 = (
    _f("fp8", dtype="e4m3", out="bf16", tails=("scaled qs[b, h]", "scaled ks[b, h]", "scaled vs[b, h]")),
    _f("fp8, grouped", CAUSAL, dtype="e4m3", out="bf16", h="h : 4", head="h // 2",
       tails=("scaled qs[b, h]", "scaled ks[b, h // 2]", "scaled vs[b, h // 2]")),
    _f("fp8, two pairs", "query Qr[b, q, h, r] : e4m3 scaled rs[b, h]", "key Kr[b, k, r] : e4m3 scaled krs[b]",
       dtype="e4m3", out="bf16", more="r : 16", tails=("scaled qs[b, h]", "scaled ks[b, h]", "scaled vs[b, h]")),
    _f("fp8, value reuses a key", dtype="e4m3", out="bf16", value="K", tails=("", "scaled ks[b, h]", "")),
    _f("fp8, bf16 pair beside", "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16",
       dtype="e4m3", out="bf16", more="r : 16", tails=("scaled qs[b, h]", "scaled ks[b, h]", "scaled vs[b, h]")),
    _f("e5m2", dtype="e5m2", out="bf16"),
)

# fmt: on
FEATURES = (*MASKS, *SCORES, *DROPOUT, *SHAPES, *PAIRS, *STORAGE, *FP8)
BY_NAME = {f.name: f for f in FEATURES}
