"""Exponentials, logarithms, reciprocals and roots, division's helpers, rounding and scaling of singles.

AMD Instinct MI300 ISA reference, VOP1 and VOP3 instructions.  The hardware's results are within 1 ulp of these; the
quarter-rate ones are unit `trans`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.targets.gfx942.emulator.families import Family
from tilec.targets.gfx942.emulator.families.floating import fma
from tilec.targets.gfx942.emulator.families.vector import VCC_BITS, lanewise, vector_step
from tilec.targets.gfx942.emulator.operands import VCC
from tilec.targets.gfx942.emulator.sources import destination, source
from tilec.targets.gfx942.emulator.step import Step, operands_of
from tilec.targets.gfx942.emulator.wave import LANES, Wave, lanes_of, mask_of
from tilec.targets.gfx942.listing import Instruction

F32 = np.float32
TURN = np.float64(2 * np.pi)


def _reciprocal(a: Any) -> Any:
    return F32(1) / a


def _root(a: Any) -> Any:
    return F32(1) / np.sqrt(a)


def _sin(a: Any) -> Any:
    return np.sin(a * TURN).astype(F32)


def _cos(a: Any) -> Any:
    return np.cos(a * TURN).astype(F32)


def _fraction(a: Any) -> Any:
    return np.fmin(a - np.floor(a), F32(1 - 2**-24))


def _exponent(a: Any) -> Any:
    """Biased exponent of a single."""
    return (a.view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32)


def _mantissa(a: Any) -> Any:
    return np.where(np.isfinite(a), np.frexp(a)[0], a)


def _power(a: Any) -> Any:
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int32)


def _scaled(a: Any, b: Any) -> Any:
    return np.ldexp(a, np.clip(b, -400, 400)).astype(F32)


def _tiny(a: Any) -> Any:
    return (np.abs(a) < F32(2.0**-126)) & (a != 0)


def _div_scale(x: Instruction) -> Step:
    """Scales the numerator or the denominator of a division out of the denormal range; vcc: the quotient needs it back."""
    dst, flag, a, b, c = operands_of(x)
    gets = [source(x, n, s, "f") for n, s in enumerate((a, b, c))]
    put, first = destination(x, dst, "f"), flag.first

    def run(w: Wave) -> None:
        value, denominator, numerator = (np.broadcast_to(g(w), (LANES,)) for g in gets)
        apart = _exponent(numerator) - _exponent(denominator)
        inverse, quotient = _tiny(F32(1) / denominator), _tiny(numerator / denominator)
        bottom, top = (
            value.view(np.uint32) == denominator.view(np.uint32),
            value.view(np.uint32) == numerator.view(np.uint32),
        )
        bad = (numerator == 0) | (denominator == 0)
        cases: list[Any] = [
            apart >= 96,
            _tiny(denominator),
            inverse & quotient,
            inverse,
            quotient,
            _exponent(numerator) <= 23,
        ]
        shifts: list[Any] = [np.where(bottom, 64, 0), 64, np.where(bottom, 64, 0), -64, np.where(top, 64, 0), 64]
        flags = np.select(cases, [True, False, True, False, True, False], default=False) & ~bad
        scaled = np.ldexp(value, np.select(cases, shifts, default=0)).astype(F32)
        put(w, np.where(bad, F32(np.nan), scaled).astype(F32))
        w.put64(first, mask_of(flags) & w.exec_mask)

    step = vector_step(x, run, dst, [a, b, c])
    step.writes |= flag.mask
    step.settle()
    return step


def _div_fmas(x: Instruction) -> Step:
    dst, a, b, c = operands_of(x)
    gets = [source(x, n, s, "f") for n, s in enumerate((a, b, c))]
    put = destination(x, dst, "f")

    def run(w: Wave) -> None:
        one, two, three = (np.broadcast_to(g(w), (LANES,)) for g in gets)
        value = fma(one, two, three)
        mask = w.get64(VCC) & w.exec_mask
        if mask:
            shift = np.where(_exponent(three) > 127, 64, -64)
            value = np.where(lanes_of(mask), np.ldexp(value, shift), value).astype(F32)
        put(w, value)

    step = vector_step(x, run, dst, [a, b, c])
    step.reads |= VCC_BITS
    step.settle()
    return step


def _div_fixup(quotient: Any, denominator: Any, numerator: Any) -> Any:
    negative = np.signbit(denominator) ^ np.signbit(numerator)
    infinite, zero = np.isinf(numerator) | (denominator == 0), np.isinf(denominator) | (numerator == 0)
    size = np.where(infinite, F32(np.inf), np.where(zero, F32(0), np.abs(quotient)))
    invalid = infinite & zero | np.isnan(numerator) | np.isnan(denominator)
    return np.where(invalid, F32(np.nan), np.where(negative, -size, size)).astype(F32)


TRANSCENDENTAL: Family = {
    "v_exp_f32": lanewise(np.exp2, "f", "f", unit="trans"),
    "v_log_f32": lanewise(np.log2, "f", "f", unit="trans"),
    "v_rcp_f32": lanewise(_reciprocal, "f", "f", unit="trans"),
    "v_rcp_iflag_f32": lanewise(_reciprocal, "f", "f", unit="trans"),
    "v_rsq_f32": lanewise(_root, "f", "f", unit="trans"),
    "v_sqrt_f32": lanewise(np.sqrt, "f", "f", unit="trans"),
    "v_sin_f32": lanewise(_sin, "f", "f", unit="trans"),
    "v_cos_f32": lanewise(_cos, "f", "f", unit="trans"),
    "v_exp_f16": lanewise(np.exp2, "h", "h", unit="trans"),
    "v_log_f16": lanewise(np.log2, "h", "h", unit="trans"),
    "v_rcp_f16": lanewise(_reciprocal, "h", "h", unit="trans"),
    "v_rsq_f16": lanewise(_root, "h", "h", unit="trans"),
    "v_sqrt_f16": lanewise(np.sqrt, "h", "h", unit="trans"),
    "v_floor_f32": lanewise(np.floor, "f", "f"),
    "v_ceil_f32": lanewise(np.ceil, "f", "f"),
    "v_trunc_f32": lanewise(np.trunc, "f", "f"),
    "v_rndne_f32": lanewise(np.rint, "f", "f"),
    "v_fract_f32": lanewise(_fraction, "f", "f"),
    "v_ldexp_f32": lanewise(_scaled, "fi", "f"),
    "v_frexp_mant_f32": lanewise(_mantissa, "f", "f"),
    "v_frexp_exp_i32_f32": lanewise(_power, "f", "i"),
    "v_div_scale_f32": _div_scale,
    "v_div_fmas_f32": _div_fmas,
    "v_div_fixup_f32": lanewise(_div_fixup, "fff", "f"),
}
