"""How a vector instruction reads its operands and writes its result: modifiers, sub-dword selects, lane permutations.

AMD Instinct MI300 ISA reference, "VALU input modifiers", "SDWA", "DPP".  A kind is a letter: u i f are 32 bits, U I F
64, h a half float (widened to single), H a 16-bit word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from tilec.targets.gfx942.emulator.operands import Operand, Unsupported
from tilec.targets.gfx942.emulator.wave import LANES, Array, Wave
from tilec.targets.gfx942.listing import Instruction

Get = Callable[[Wave], Any]
Put = Callable[[Wave, Any], None]

DTYPES = {"u": np.uint32, "i": np.int32, "f": np.float32, "U": np.uint64, "I": np.int64, "F": np.float64}
SELECTS = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
}
OUTPUT = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}


def raw(x: Operand, kind: str = "u") -> Get:
    """The operand's bits, as unsigned integers of 32 or 64 bits: an array of the lanes, or one number for all."""
    first = x.first
    if kind in "UIF":
        if x.kind == "v":
            return lambda w: w.u[first].astype(np.uint64) | w.u[first + 1].astype(np.uint64) << np.uint64(32)
        if x.kind == "s":
            return lambda w: np.uint64(w.s[first] | w.s[first + 1] << 32)
        wide = np.uint64(x.bits64)
        return lambda w: wide
    if x.kind == "v":
        return lambda w: w.u[first]
    if x.kind == "s":
        return lambda w: np.uint32(w.s[first])
    if x.kind != "c":
        raise Unsupported(f"operand of kind {x.kind}")
    value = np.uint32(x.half if kind in "hH" else x.bits)
    return lambda w: value


def source(x: Instruction, number: int, x_operand: Operand, kind: str) -> Get:
    """Reads source `number` (0 to 2) of an instruction, with the modifiers of that source."""
    select = x.modifiers.get(f"src{number}_sel", "DWORD") if x.form == "sdwa" else "DWORD"
    high = kind in "hH" and x.form != "sdwa" and x.bits("op_sel", ())[number : number + 1] == (1,)
    plain = x_operand.vector and select == "DWORD" and not high
    get: Get
    if plain and kind in "uif" and not (x.form == "dpp" and number == 0):
        first = x_operand.first
        if kind == "u":
            get = lambda w: w.u[first]  # noqa: E731
        elif kind == "i":
            get = lambda w: w.i[first]  # noqa: E731
        else:
            get = lambda w: w.f[first]  # noqa: E731
    else:
        bits = raw(x_operand, kind)
        if x.form == "dpp" and number == 0:
            bits = _permuted(x, bits)
        if select != "DWORD":
            bits = _selected(bits, select, signed=x_operand.extend)
        if high:
            bits = _selected(bits, "WORD_1", signed=False)
        get = _as_kind(bits, kind)
    if kind in "fFh":
        if x_operand.absolute:
            get = _then(get, np.abs)
        if x_operand.negative:
            get = _then(get, np.negative)
    elif x_operand.absolute or x_operand.negative:
        raise Unsupported(f"sign modifiers of integers: `{x.text}`")
    return get


def _then(get: Get, f: Callable[[Any], Any]) -> Get:
    return lambda w: f(get(w))


def _as_kind(bits: Get, kind: str) -> Get:
    if kind == "u" or kind == "U":
        return bits
    if kind == "h":
        return lambda w: (bits(w) & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
    if kind == "H":
        return lambda w: bits(w) & 0xFFFF
    dtype = DTYPES[kind]
    return lambda w: bits(w).view(dtype)


def _selected(bits: Get, select: str, *, signed: bool) -> Get:
    shift, width = SELECTS[select]
    mask, top = (1 << width) - 1, 1 << (width - 1)
    if signed:
        return lambda w: ((bits(w) >> np.uint32(shift) & np.uint32(mask)) ^ np.uint32(top)) - np.uint32(top)
    return lambda w: bits(w) >> np.uint32(shift) & np.uint32(mask)


def permutation(x: Instruction) -> tuple[Array, Array, Array]:
    """Of a DPP instruction: for each lane the lane it reads, whether that one exists, and whether row and bank masks
    let the lane be written."""
    lane = np.arange(LANES)
    row, at = lane // 16, lane % 16
    ok = np.ones(LANES, np.bool_)
    if "quad_perm" in x.modifiers:
        take = lane // 4 * 4 + np.array(x.bits("quad_perm", ()))[lane % 4]
    elif "row_shl" in x.modifiers:
        take, ok = lane + x.number("row_shl"), at + x.number("row_shl") < 16
    elif "row_shr" in x.modifiers:
        take, ok = lane - x.number("row_shr"), at >= x.number("row_shr")
    elif "row_ror" in x.modifiers:
        take = row * 16 + (at - x.number("row_ror")) % 16
    elif "row_newbcast" in x.modifiers:
        take = row * 16 + x.number("row_newbcast")
    elif "row_bcast" in x.modifiers:
        n = x.number("row_bcast")
        take, ok = (row * 16 - 1, row > 0) if n == 15 else (np.full(LANES, 31), lane >= 32)
    elif "row_mirror" in x.modifiers:
        take = row * 16 + 15 - at
    elif "row_half_mirror" in x.modifiers:
        take = lane // 8 * 8 + 7 - lane % 8
    elif "wave_shr" in x.modifiers or "wave_shl" in x.modifiers:
        take = lane - 1 if "wave_shr" in x.modifiers else lane + 1
        ok = (take >= 0) & (take < LANES)
    elif "wave_ror" in x.modifiers or "wave_rol" in x.modifiers:
        take = (lane - 1 if "wave_ror" in x.modifiers else lane + 1) % LANES
    else:
        raise Unsupported(f"lane permutation of `{x.text}`")
    rows, banks = x.number("row_mask", 15), x.number("bank_mask", 15)
    written = (rows >> row & 1 & banks >> at // 4 & 1).astype(np.bool_)
    return np.clip(take, 0, LANES - 1), ok, written


def _permuted(x: Instruction, bits: Get) -> Get:
    take, ok, _ = permutation(x)

    def get(w: Wave) -> Any:
        return np.where(ok & w.lanes[take], bits(w)[take], np.uint32(0))

    return get


def destination(x: Instruction, to: Operand, kind: str) -> Put:
    """Writes a result of `kind` to the active lanes, with the instruction's output modifiers."""
    first = to.first
    put: Put
    if x.form == "dpp":
        put = _dpp_put(x, first)
    elif x.form == "sdwa" and x.modifiers.get("dst_sel", "DWORD") != "DWORD":
        put = _sdwa_put(x, first)
    elif kind in "UIF":

        def put(w: Wave, value: Any) -> None:
            bits = value.view(np.uint64)
            w.write(first, bits.astype(np.uint32))
            w.write(first + 1, (bits >> np.uint64(32)).astype(np.uint32))
    else:

        def put(w: Wave, value: Any) -> None:
            w.write(first, value)

    if kind == "h":
        put = _half_put(put, high=x.bits("op_sel", (0,))[-1] == 1 and len(x.bits("op_sel", ())) > 1, first=first)
    factor = next((f for m, f in OUTPUT.items() if x.modifiers.get(m[:3]) == m[4:]), None)
    if factor is not None:
        put = _before(put, lambda v: v * np.float32(factor))
    if "clamp" in x.modifiers:
        if kind not in "fh":
            raise Unsupported(f"clamp of integers: `{x.text}`")
        put = _before(put, lambda v: np.fmin(np.fmax(v, np.float32(0)), np.float32(1)))
    return put


def _before(put: Put, f: Callable[[Any], Any]) -> Put:
    return lambda w, value: put(w, f(value))


def _half_put(put: Put, *, high: bool, first: int) -> Put:
    def low(w: Wave, value: Any) -> None:
        put(w, np.asarray(value, np.float32).astype(np.float16).view(np.uint16).astype(np.uint32))

    def upper(w: Wave, value: Any) -> None:
        bits = np.asarray(value, np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)
        put(w, w.u[first] & np.uint32(0xFFFF) | bits << np.uint32(16))

    return upper if high else low


def _dpp_put(x: Instruction, first: int) -> Put:
    take, ok, written = permutation(x)
    zero_fills = "bound_ctrl" in x.modifiers

    def put(w: Wave, value: Any) -> None:
        where = written & w.lanes if zero_fills else written & w.lanes & ok & w.lanes[take]
        np.copyto(w.u[first], cast("Array", value).view(np.uint32), where=where)

    return put


def _sdwa_put(x: Instruction, first: int) -> Put:
    shift, width = SELECTS[x.modifiers["dst_sel"]]
    mask = ((1 << width) - 1) << shift
    unused = x.modifiers.get("dst_unused", "UNUSED_PAD")
    if unused == "UNUSED_SEXT":
        raise Unsupported(f"`{x.text}`")

    def put(w: Wave, value: Any) -> None:
        bits = value.view(np.uint32) << np.uint32(shift) & np.uint32(mask)
        if unused == "UNUSED_PRESERVE":
            bits = bits | w.u[first] & np.uint32(~mask & 0xFFFFFFFF)
        w.write(first, bits)

    return put
