"""Specs lowered for Hopper pass by pass, and runs of the programs against the float64 oracle."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from feature_specs import kernel

from tilec.ampere import WarpOptions, warp_passes
from tilec.arith.evaluate import evaluate
from tilec.cdna import WaveOptions, wave_passes
from tilec.frontend import read_text
from tilec.ir.expr import Var
from tilec.ir.interp import Order, run
from tilec.ir.verify import verify
from tilec.native import HopperOptions, hopper_passes
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify as compare
from tilec.passes.choose_tiles import Choice, choose_tiles
from tilec.passes.lower_attention import lower_attention
from tilec.passes.map_blocks import BlockMap, map_blocks
from tilec.passes.names import distinct_indices
from tilec.passes.online_softmax import online_softmax
from tilec.passes.pair_heads import pair_heads, pairable
from tilec.passes.prove_mask import prove_mask
from tilec.passes.wave_operands import FEATURES

CAUSAL = "mask k <= q + N - M"
WINDOW = "mask k <= q + N - M and k > q + N - M - 150"
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
SMALL = {"d": "d : 32", "schedule": ""}

FIXTURE = kernel(CAUSAL, d="d : 128", h="h : 4", head="h // 4", scale="scale 1 / sqrt(128)", schedule="")
SPECS = {
    "causal": kernel(CAUSAL, **SMALL),
    "no mask, f16": kernel(dtype="f16", **SMALL),
    "window": kernel(WINDOW, **SMALL),
    "window, softcap, alibi, sink": kernel(
        "param slope[h] : f32", "score s = 5 * tanh(s / 5)", "score s = s - slope[h] * abs(q - k)",
        "mask k <= q + N - M and k > q + N - M - 200", "sink sk[h] : f32", **SMALL,
    ),
    "window and first": kernel("mask k <= q and (k > q - 40 or k < 40)", **SMALL),
    "chunks and first": kernel("mask q // 128 == k // 128 or k < 40", **SMALL),
    "two windows": kernel("mask abs(q - k) < 10 or abs(q - k - 300) < 10", **SMALL),
    "opaque": kernel("mask q * k % 7 < 3", **SMALL),
    "bias": kernel("bias Bt[b, h, q, k] : f32", "score s = s + Bt[b, h, q, k]", CAUSAL, **SMALL),
    "documents": kernel(
        "param dq[b, q] : i32 nondecreasing", "param dk[b, k] : i32 nondecreasing",
        "mask dq[b, q] == dk[b, k] and k <= q + N - M", **SMALL,
    ),
    "values of keys and rows": kernel(
        "param x[b, h, k] : f32", "param y[b, q] : f32", "score s = tanh(s * x[b, h, k]) + y[b, q]", CAUSAL, **SMALL
    ),
    "narrow values": kernel(CAUSAL, more="e : 16", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]", **SMALL),
    "two pairs": kernel("query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", CAUSAL, more="r : 16", **SMALL),
    "keys that are values": kernel(CAUSAL, value="K", **SMALL),
    "two pairs, keys that are values": kernel(
        "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", "mask k <= q and k > q - 150",
        more="r : 16", key="K[b, k, d]", value="K", **SMALL,
    ),
    "dropout": kernel("dropout 0.25", CAUSAL, **SMALL),
    "every third": kernel("mask (q - k) % 3 == 0 and k <= q and k > q - 400", **SMALL),
    "every fifth, from the second, dropout": kernel("dropout 0.25", "mask (q - k) % 5 == 1", **SMALL),
    "no lse": kernel(CAUSAL, lse="", **SMALL),
}  # fmt: skip
PACKED = {"q": "q : M packed cu_q", "k": "k : N packed cu_k"}
PAGES = ("", "paged bt[b, k // 16]", "paged bt[b, k // 16]")
STORED = {
    "padded keys": kernel(CAUSAL, k="k : N lengths nk", h="h : 4", head="h // 2", **SMALL),
    "padded": kernel(WINDOW, q="q : M lengths mq", k="k : N lengths nk", **SMALL),
    "packed": kernel(CAUSAL, **PACKED, **SMALL),
    "packed rows": kernel(q="q : M packed cu_q", **SMALL),
    "packed keys, bias": kernel("bias Bt[b, h, q, k] : f32", "score s = s + Bt[b, h, q, k]", k="k : N packed cu_k", **SMALL),
    "pages": kernel(CAUSAL, k="k : N lengths nk", tails=PAGES, h="h : 4", head="h // 2", **SMALL),
    "pages of 24, window": kernel(WINDOW, k="k : N lengths nk", tails=tuple(t.replace("16", "24") for t in PAGES), **SMALL),
    "packed rows, pages of 128": kernel(
        q="q : M packed cu_q", k="k : N lengths nk", tails=tuple(t.replace("16", "128") for t in PAGES), **SMALL
    ),
    "packed, 40 features": kernel(CAUSAL, d="d : 40", schedule="", **PACKED),
    "pages of keys that are values": kernel(
        CAUSAL, k="k : N lengths nk", key="K[b, k, d]", value="K", tails=("", "paged bt[b, k // 16]", ""), **SMALL
    ),
    "packed keys that are values": kernel(CAUSAL, value="K", **PACKED, **SMALL),
    "packed documents": kernel(
        "param dq[b, q] : i32 nondecreasing", "param dk[b, k] : i32 nondecreasing", "mask dq[b, q] == dk[b, k]", **PACKED, **SMALL
    ),
    "packed, one table": kernel("mask k <= q", q="q : M packed cu", k="k : M packed cu", dtype="f16", **SMALL),
}  # fmt: skip
SIZES = ({"B": 1, "M": 257, "N": 400}, {"B": 1, "M": 433, "N": 200}, {"B": 2, "M": 130, "N": 1})
SEED, OFFSET = 2**40 + 12345, 3
SQUARE = {"B": 1, "M": 500, "N": 500}


def attention(text):
    return distinct_indices(read_text(text).kernels[0])


def sequential(text, q=128, k=64, pair=False, target="sm90", units=None):
    """The program after map_blocks; `pair`: of heads that share keys."""
    attn = attention(text)
    p = online_softmax(prove_mask(lower_attention(attn, target), attn), attn.q, attn.k)
    pad = {"sm90": "steps", "gfx942": FEATURES}.get(target, "all")
    p = choose_tiles(p, attn, Choice(q, k, None, None, "test"), pad=pad)
    p = pair_heads(p, pairable(attn)) if pair else p
    if any(i.storage.kind != "dense" for i in attn.indices):
        return map_blocks(p, BlockMap(units=units))
    return map_blocks(p, BlockMap("longest_first", l2=2**20, bytes_per_key=128, keys=Var("N"), units=units))


@cache
def after(text, options=HopperOptions(), k=64):  # noqa: B008
    """{pass: program after it}, each of them verified."""
    p = sequential(text, options.rows, k, options.pairs == "heads")
    out = {"map_blocks": p}
    for name, f in hopper_passes(options):
        out[name] = p = f(p)
        verify(p, proofs=name == "overlap")  # the only pass that touches loops with proofs
    return out


@cache
def on_warps(text, options=WarpOptions(), q=64, k=32, units=None):  # noqa: B008
    """The same for warps that copy and multiply for themselves."""
    out = {"map_blocks": sequential(text, q, k, target="sm80", units=units)}
    p = out["map_blocks"]
    for name, f in warp_passes(options):
        out[name] = p = f(p)
        verify(p, proofs=False)
    return out


@cache
def on_waves(text, options=WaveOptions(), q=256, k=64, units=None):  # noqa: B008
    """The same for waves that take turns."""
    out = {"map_blocks": sequential(text, q, k, target="gfx942", units=units)}
    p = out["map_blocks"]
    for name, f in wave_passes(options):
        out[name] = p = f(p)
        verify(p, proofs=False)
    return out


def outputs(p, text, sizes, seed=0, order=Order(), units=2, style="normal", lengths="mixed"):  # noqa: B008
    """(attention, inputs, outputs of a run on poisoned arrays; rows of no sequence start as a call has them)."""
    attn = attention(text)
    inputs = make_inputs(attn, sizes, seed, style, lengths=lengths)
    if attn.rng is not None:
        inputs[attn.rng] = np.array([SEED, OFFSET])
    env = {**sizes, **dict(p.tile)}
    for t in p.tensors:
        if t.name in inputs:
            env |= {d.name: n for d, n in zip(t.dims, inputs[t.name].shape, strict=True) if isinstance(d, Var)}
    dead = attn.index(attn.q).storage.kind != "dense"
    found = {
        t.name: np.full(
            tuple(int(evaluate(d, env)) for d in t.dims),
            np.nan if not dead else 0 if t.name == attn.output else -np.inf,
            DTYPES[t.dtype],
        )
        for t in p.tensors
        if t.mode == "out"
    }
    extents = {n: env[n] for n in p.extents if n in env}
    run(p, {**inputs, **found}, {**extents, "SMS": units}, seed=seed, schedule=order)
    return attn, inputs, found


def complaints(p, text, sizes, seed=0, order=Order(), units=2, style="normal", lengths="mixed"):  # noqa: B008
    """Reports that the oracle's rule refuses."""
    attn, inputs, found = outputs(p, text, sizes, seed, order, units, style, lengths)
    return [str(r) for r in compare(attn, inputs, found, sizes=sizes, seed=SEED, offset=OFFSET).values() if not r.ok]
