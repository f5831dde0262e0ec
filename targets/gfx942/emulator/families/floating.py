"""Vector arithmetic on singles and halves.  AMD Instinct MI300 ISA reference, VOP1, VOP2, VOP3 and VOP3P instructions.

A fused multiply-add is computed in double, where the product of two singles is exact, and rounded to single; denormals
are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.families.vector import lanewise, vector_step
from tilec.targets.gfx942.emulator.operands import Operand, Unsupported
from tilec.targets.gfx942.emulator.sources import Get, raw, source
from tilec.targets.gfx942.emulator.step import Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import Wave
from tilec.targets.gfx942.listing import Instruction

F32, F64 = np.float32, np.float64


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once (but for double rounding of the sum)."""
    return np.add(np.multiply(a, b, dtype=F64), c, dtype=F64).astype(F32)


def _max3(a: Any, b: Any, c: Any) -> Any:
    return np.fmax(np.fmax(a, b), c)


def _min3(a: Any, b: Any, c: Any) -> Any:
    return np.fmin(np.fmin(a, b), c)


def _middle(a: Any, b: Any, c: Any) -> Any:
    return np.fmax(np.fmin(a, b), np.fmin(np.fmax(a, b), c))


def _legacy(a: Any, b: Any) -> Any:
    return np.where((a == 0) | (b == 0), F32(0), a * b)


def _constant_in_the_middle(x: Instruction) -> Step:
    """v_fmamk: dst = s0 * constant + s1; v_fmaak: dst = s0 * s1 + constant: both in the order they are written."""
    return lanewise(fma, "fff", "f")(x)


def _packed(f: Any, sources: int) -> Builder:
    """Two singles a lane, in a pair of registers; op_sel and op_sel_hi choose the half of each source."""

    def build(x: Instruction) -> Step:
        dst, *srcs = operands_of(x)
        if len(srcs) != sources:
            raise Unsupported(f"`{x.text}`")
        low, high = x.bits("op_sel", (0,) * sources), x.bits("op_sel_hi", (1,) * sources)
        negative = x.bits("neg_lo", (0,) * sources), x.bits("neg_hi", (0,) * sources)
        halves = [
            [_half(s, pick[n], negative=negative[side][n]) for n, s in enumerate(srcs)]
            for side, pick in enumerate((low, high))
        ]
        first = dst.first

        def run(w: Wave) -> None:
            one, two = (f(*(get(w) for get in side)) for side in halves)
            w.write(first, one)
            w.write(first + 1, two)

        step = vector_step(x, run, dst, srcs)
        step.parts = tuple(
            (first + side, union(*(s.high if pick[n] else s.low for n, s in enumerate(srcs))))
            for side, pick in enumerate((low, high))
        )
        return step

    return build


def _half(x: Operand, pick: int, *, negative: int) -> Get:
    bits = raw(x.high if pick else x.low)
    if negative:
        return lambda w: -bits(w).view(F32)
    return lambda w: bits(w).view(F32)


def _pick(x: Instruction) -> Step:
    """v_pk_mov_b32: each half of dst is a half of one source."""
    dst, a, b = operands_of(x)
    picks = x.bits("op_sel", (0, 0))
    chosen = [s.high if pick else s.low for s, pick in zip((a, b), picks, strict=True)]
    gets = [raw(s) for s in chosen]
    first = dst.first

    def run(w: Wave) -> None:
        one, two = np.copy(gets[0](w)), np.copy(gets[1](w))
        w.write(first, one)
        w.write(first + 1, two)

    step = vector_step(x, run, dst, [a, b])
    step.parts = (first, chosen[0].mask), (first + 1, chosen[1].mask)
    return step


def _packed_half(f: Any, sources: int) -> Builder:
    """Two halves a lane in one register."""

    def build(x: Instruction) -> Step:
        dst, *srcs = operands_of(x)
        picks = x.bits("op_sel", (0,) * sources), x.bits("op_sel_hi", (1,) * sources)
        signs = x.bits("neg_lo", (0,) * sources), x.bits("neg_hi", (0,) * sources)
        gets = [raw(s, "h" if s.kind == "c" else "u") for s in srcs]
        constant = [s.kind == "c" for s in srcs]
        first = dst.first

        def value(w: Wave, n: int, side: int) -> Any:
            bits = gets[n](w) >> np.uint32(0 if constant[n] else 16 * picks[side][n]) & np.uint32(0xFFFF)
            half = bits.astype(np.uint16).view(np.float16).astype(F32)
            return -half if signs[side][n] else half

        def run(w: Wave) -> None:
            sides = [np.asarray(f(*(value(w, n, side) for n in range(sources))), F32) for side in (0, 1)]
            low, high = (s.astype(np.float16).view(np.uint16).astype(np.uint32) for s in sides)
            w.write(first, low | high << np.uint32(16))

        return vector_step(x, run, dst, srcs)

    return build


def _mixed(x: Instruction) -> Step:
    """v_fma_mix: each source is a single, or where op_sel_hi says so the half that op_sel picks."""
    dst, *srcs = operands_of(x)
    wide, pick = x.bits("op_sel_hi", (0, 0, 0)), x.bits("op_sel", (0, 0, 0))
    signs = x.bits("neg_lo", (0, 0, 0))
    gets = []
    for n, s in enumerate(srcs):
        bits = raw(s)
        gets.append(
            _mixed_source(bits, half=wide[n], pick=pick[n], negative=s.negative or bool(signs[n]), absolute=s.absolute)
        )
    first, name = dst.first, x.name

    def run(w: Wave) -> None:
        value = np.asarray(fma(*(get(w) for get in gets)))
        if name == "v_fma_mix_f32":
            w.write(first, value)
            return
        half = value.astype(np.float16).view(np.uint16).astype(np.uint32)
        old = w.u[first]
        low = name == "v_fma_mixlo_f16"
        w.write(first, old & np.uint32(0xFFFF0000) | half if low else old & np.uint32(0xFFFF) | half << np.uint32(16))

    step = vector_step(x, run, dst, srcs)
    if name == "v_fma_mixhi_f16":
        step.reads |= dst.mask
        step.settle()
    return step


def _mixed_source(bits: Get, *, half: int, pick: int, negative: bool, absolute: bool) -> Get:
    def get(w: Wave) -> Any:
        raw_bits = bits(w)
        if half:
            value = (
                (raw_bits >> np.uint32(16 * pick) & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16).astype(F32)
            )
        else:
            value = raw_bits.view(F32)
        value = np.abs(value) if absolute else value
        return -value if negative else value

    return get


def _pack(x: Instruction) -> Step:
    """v_pack_b32_f16: two 16-bit halves into one register."""
    dst, a, b = operands_of(x)
    one, two = source(x, 0, a, "H"), source(x, 1, b, "H")
    first = dst.first
    return vector_step(x, lambda w: w.write(first, one(w) | two(w) << np.uint32(16)), dst, [a, b])


FLOATING: Family = {
    "v_add_f32": lanewise(np.add, "ff", "f"),
    "v_sub_f32": lanewise(np.subtract, "ff", "f"),
    "v_subrev_f32": lanewise(lambda a, b: b - a, "ff", "f"),
    "v_mul_f32": lanewise(np.multiply, "ff", "f"),
    "v_mul_legacy_f32": lanewise(_legacy, "ff", "f"),
    "v_min_f32": lanewise(np.fmin, "ff", "f"),
    "v_max_f32": lanewise(np.fmax, "ff", "f"),
    "v_min3_f32": lanewise(_min3, "fff", "f"),
    "v_max3_f32": lanewise(_max3, "fff", "f"),
    "v_med3_f32": lanewise(_middle, "fff", "f"),
    "v_fma_f32": lanewise(fma, "fff", "f"),
    "v_fmac_f32": lanewise(fma, "fff", "f", accumulates=True),
    "v_fmamk_f32": _constant_in_the_middle,
    "v_fmaak_f32": _constant_in_the_middle,
    "v_add_f16": lanewise(np.add, "hh", "h"),
    "v_sub_f16": lanewise(np.subtract, "hh", "h"),
    "v_mul_f16": lanewise(np.multiply, "hh", "h"),
    "v_min_f16": lanewise(np.fmin, "hh", "h"),
    "v_max_f16": lanewise(np.fmax, "hh", "h"),
    "v_fma_f16": lanewise(fma, "hhh", "h"),
    "v_pack_b32_f16": _pack,
    "v_pk_add_f32": _packed(np.add, 2),
    "v_pk_mul_f32": _packed(np.multiply, 2),
    "v_pk_fma_f32": _packed(fma, 3),
    "v_pk_mov_b32": _pick,
    "v_pk_add_f16": _packed_half(np.add, 2),
    "v_pk_mul_f16": _packed_half(np.multiply, 2),
    "v_pk_fma_f16": _packed_half(fma, 3),
    "v_pk_max_f16": _packed_half(np.fmax, 2),
    "v_pk_min_f16": _packed_half(np.fmin, 2),
    "v_fma_mix_f32": _mixed,
    "v_fma_mixlo_f16": _mixed,
    "v_fma_mixhi_f16": _mixed,
}
