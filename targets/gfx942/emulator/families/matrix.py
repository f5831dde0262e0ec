"""Matrix instructions: D[i, j] = sum over k of A[i, k] * B[k, j] + C[i, j], over all 64 lanes whatever EXEC is.

Register layouts are those of the AMD Instinct MI300 ISA reference, "Dense matrix operations", for instructions of one
block: lane i + M * (k // L) holds A[i, k] as item k % L, with L = K * M / 64 items a lane, low bits first; B alike with
its column; D[i, j] is item i % 4 + 4 * (i // (4 * G)) of lane j + N * (i // 4 % G), with G = 64 / N.
Products are summed in single precision, in no order the hardware promises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.operands import Unsupported
from tilec.targets.gfx942.emulator.step import Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import LANES, Array, Wave
from tilec.targets.gfx942.listing import Instruction

NAME = re.compile(r"v_mfma_(f32|i32)_(\d+)x(\d+)x(\d+)_(.+)")
# AMD matrix instruction calculator, cdna3: passes of 4 clocks
PASSES = {
    "v_mfma_f32_32x32x8_bf16": 8,
    "v_mfma_f32_16x16x16_bf16": 4,
    "v_mfma_f32_32x32x8_f16": 8,
    "v_mfma_f32_16x16x16_f16": 4,
    "v_mfma_f32_32x32x2_f32": 16,
    "v_mfma_f32_16x16x4_f32": 8,
    "v_mfma_f32_32x32x4_xf32": 8,
    "v_mfma_f32_16x16x8_xf32": 4,
    "v_mfma_i32_32x32x16_i8": 8,
    "v_mfma_i32_16x16x32_i8": 4,
    **{f"v_mfma_f32_32x32x16_{a}_{b}": 8 for a in ("fp8", "bf8") for b in ("fp8", "bf8")},
    **{f"v_mfma_f32_16x16x32_{a}_{b}": 4 for a in ("fp8", "bf8") for b in ("fp8", "bf8")},
}


def _table(dtype: Any) -> Array:
    numbers: Array = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    return numbers


FP8, BF8 = _table(ml_dtypes.float8_e4m3fnuz), _table(ml_dtypes.float8_e5m2fnuz)


def _from_bf16(x: Array) -> Array:
    wide: Array = x.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def _from_xf32(x: Array) -> Array:
    bits = x.view(np.uint32)
    rounded: Array = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) & np.uint32(0xFFFFE000)
    return rounded.view(np.float32)


FORMATS: dict[str, tuple[int, Callable[[Array], Array]]] = {  # bytes, and bits to numbers
    "bf16": (2, _from_bf16),
    "f16": (2, lambda x: x.view(np.float16).astype(np.float32)),
    "f32": (4, lambda x: x.view(np.float32)),
    "xf32": (4, _from_xf32),
    "fp8": (1, lambda x: FP8[x.view(np.uint8)]),
    "bf8": (1, lambda x: BF8[x.view(np.uint8)]),
    "i8": (1, lambda x: x.view(np.int8).astype(np.int32)),
}


@dataclass(frozen=True)
class Shape:
    """`a` [M, K] and `b` [K, N]: numbers of items in the operand's registers, laid out as [register, lane, item of it].
    Rows of `a` are in the order in which D's registers and lanes hold them, so that D is [M, N] in that order."""

    m: int
    n: int
    k: int
    a: Array
    b: Array


@cache
def shape(m: int, n: int, k: int, size: int) -> Shape:
    """The layout of an instruction with items of `size` bytes."""
    each, groups = k * m // LANES, LANES // n
    place = np.arange(m)
    register, group = place // groups, place % groups
    rows = register % 4 + 4 * group + 4 * groups * (register // 4)
    along = np.arange(k)
    per = 4 // size

    def number(lane: Array, item: Array) -> Array:
        out: Array = item // per * (LANES * per) + lane * per + item % per
        return out

    a = number(rows[:, None] + m * (along // each)[None, :], np.broadcast_to(along % each, (m, k)))
    b = number(np.arange(n)[None, :] + n * (along // each)[:, None], np.broadcast_to((along % each)[:, None], (k, n)))
    return Shape(m, n, k, a, b)


def _multiply(x: Instruction) -> Step:
    found = NAME.fullmatch(x.name)
    if found is None or any(x.number(m) for m in ("cbsz", "abid", "blgp")):
        raise Unsupported(f"`{x.text}`")
    result, m, n, k = found[1], int(found[2]), int(found[3]), int(found[4])
    kinds = found[5].split("_")
    (size, to_a), (_, to_b) = FORMATS[kinds[0]], FORMATS[kinds[-1]]
    layout = shape(m, n, k, size)
    dst, a, b, c = operands_of(x)
    count, dtype = m * n // LANES, np.float32 if result == "f32" else np.int32
    a_rows, b_rows = slice(a.first, a.first + a.count), slice(b.first, b.first + b.count)
    if c.kind == "c":
        constant = np.uint32(c.bits).view(dtype)
    if (dst.count, a.count) != (count, k * m * size // LANES // 4) or (c.kind == "v" and c.count != count):
        raise Unsupported(f"registers of `{x.text}`")

    def run(w: Wave) -> None:
        left, right = to_a(w.v[a_rows]).reshape(-1)[layout.a], to_b(w.v[b_rows]).reshape(-1)[layout.b]
        product = left @ right
        total = product + (constant if c.kind == "c" else w.v[c.first : c.first + count].view(dtype).reshape(m, n))
        w.v[dst.first : dst.first + count] = total.view(np.uint32).reshape(count, LANES)

    step = Step(x, "mfma", run, union(a, b, c), dst.mask, flow="matrix", passes=PASSES[x.name], dst=dst)
    step.accumulator = c if c.kind == "v" else None
    return step


MATRIX: Family = dict[str, Builder].fromkeys(PASSES, _multiply)
