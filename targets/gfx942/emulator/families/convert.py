"""Conversions between number formats.  AMD Instinct MI300 ISA reference, VOP1 and VOP3 instructions.

8-bit floats of gfx942 are FNUZ: no infinities, no negative zero, one NaN.  With FP16_OVFL of the MODE register set
they saturate, else what is too large becomes NaN.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.families.vector import lanewise, vector_step
from tilec.targets.gfx942.emulator.sources import destination, source
from tilec.targets.gfx942.emulator.step import Step, operands_of
from tilec.targets.gfx942.emulator.wave import LANES, Wave
from tilec.targets.gfx942.listing import Instruction

F32 = np.float32
FP16_OVFL = 1 << 23
EIGHT: dict[str, Any] = {"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz}


def _to_integer(low: float, high: float, dtype: Any) -> Any:
    def convert(a: Any) -> Any:
        return np.clip(np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0.0), low, high).astype(dtype)

    return convert


def _half_pair(a: Any, b: Any) -> Any:
    """Towards zero, as v_cvt_pkrtz does."""
    out = [np.asarray(x, F32) for x in (a, b)]
    halves = []
    for x in out:
        near = x.astype(np.float16)
        over = np.abs(near.astype(F32)) > np.abs(x)
        near = np.where(over & np.isfinite(x), np.nextafter(near, np.float16(0)), near).astype(np.float16)
        halves.append(near.view(np.uint16).astype(np.uint32))
    return halves[0] | halves[1] << np.uint32(16)


def _pack8(kind: str) -> Builder:
    """Two singles to two bytes, in the half of dst that op_sel's last bit picks; the other half stays."""
    dtype = EIGHT[kind]
    most = F32(ml_dtypes.finfo(dtype).max)

    def build(x: Instruction) -> Step:
        dst, a, b = operands_of(x)
        one, two = source(x, 0, a, "f"), source(x, 1, b, "f")
        high, first = x.bits("op_sel", (0, 0, 0))[-1], dst.first

        def run(w: Wave) -> None:
            bits = []
            for get in (one, two):
                value = np.broadcast_to(get(w), (LANES,))
                if w.mode & FP16_OVFL:
                    value = np.clip(value, -most, most)
                bits.append(value.astype(dtype).view(np.uint8).astype(np.uint32))
            word = bits[0] | bits[1] << np.uint32(8)
            old = w.u[first]
            w.write(
                first, old & np.uint32(0xFFFF) | word << np.uint32(16) if high else old & np.uint32(0xFFFF0000) | word
            )

        step = vector_step(x, run, dst, [a, b])
        if high:
            step.reads |= dst.mask
            step.settle()
        return step

    return build


def _unpack8(kind: str, count: int) -> Builder:
    dtype = EIGHT[kind]

    def build(x: Instruction) -> Step:
        dst, a = operands_of(x)
        get, put = source(x, 0, a, "u"), destination(x, dst, "f")
        word = x.bits("op_sel", (0,))[0] if x.form != "sdwa" else 0
        first = dst.first

        def run(w: Wave) -> None:
            bits = np.broadcast_to(get(w), (LANES,)) >> np.uint32(16 * word)
            values = [(bits >> np.uint32(8 * n) & 0xFF).astype(np.uint8).view(dtype).astype(F32) for n in range(count)]
            if count == 1:
                put(w, values[0])
                return
            for n, v in enumerate(values):
                w.write(first + n, v)

        return vector_step(x, run, dst, [a])

    return build


def _byte(n: int) -> Builder:
    return lanewise(lambda a: (a >> np.uint32(8 * n) & 0xFF).astype(F32), "u", "f")


def _float(a: Any) -> Any:
    return a.astype(F32)


def _same(a: Any) -> Any:
    return a


CONVERT: Family = {
    "v_cvt_f32_u32": lanewise(_float, "u", "f"),
    "v_cvt_f32_i32": lanewise(_float, "i", "f"),
    "v_cvt_u32_f32": lanewise(_to_integer(0, 2**32 - 1, np.uint32), "f", "u"),
    "v_cvt_i32_f32": lanewise(_to_integer(-(2**31), 2**31 - 1, np.int32), "f", "i"),
    "v_cvt_f16_f32": lanewise(_same, "f", "h"),
    "v_cvt_f32_f16": lanewise(_same, "h", "f"),
    "v_cvt_pkrtz_f16_f32": lanewise(_half_pair, "ff", "u"),
    "v_cvt_f32_ubyte0": _byte(0),
    "v_cvt_f32_ubyte1": _byte(1),
    "v_cvt_f32_ubyte2": _byte(2),
    "v_cvt_f32_ubyte3": _byte(3),
    "v_cvt_pk_fp8_f32": _pack8("fp8"),
    "v_cvt_pk_bf8_f32": _pack8("bf8"),
    "v_cvt_f32_fp8": _unpack8("fp8", 1),
    "v_cvt_f32_bf8": _unpack8("bf8", 1),
    "v_cvt_pk_f32_fp8": _unpack8("fp8", 2),
    "v_cvt_pk_f32_bf8": _unpack8("bf8", 2),
}
