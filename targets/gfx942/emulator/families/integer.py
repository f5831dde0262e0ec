"""Vector arithmetic on integers and bits.  AMD Instinct MI300 ISA reference, VOP1, VOP2, VOP3 instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.families.vector import lanewise, vector_step
from tilec.targets.gfx942.emulator.operands import VECTORS, Operand
from tilec.targets.gfx942.emulator.sources import destination, raw, source
from tilec.targets.gfx942.emulator.step import Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import LANES, Wave, lanes_of, mask_of
from tilec.targets.gfx942.listing import Instruction

U32, U64, I64 = np.uint32, np.uint64, np.int64


def _wide(x: Any) -> Any:
    return x.astype(U64)


def _high(a: Any, b: Any) -> Any:
    return (_wide(a) * _wide(b) >> U64(32)).astype(U32)


def _high_signed(a: Any, b: Any) -> Any:
    return (a.astype(I64) * b.astype(I64) >> I64(32)).astype(np.int32)


def _signed24(x: Any) -> Any:
    return ((x & 0xFFFFFF) ^ 0x800000) - np.int32(0x800000)


def _extract(a: Any, offset: Any, width: Any) -> Any:
    width = width & 31
    return a >> (offset & 31) & ((U32(1) << width) - U32(1))


def _extract_signed(a: Any, offset: Any, width: Any) -> Any:
    field, width = _extract(a, offset, width), width & 31
    top = np.where(width == 0, U32(0), U32(1) << (width - U32(1) & 31))
    return (field ^ top) - top


def _bytes(high: Any, low: Any, selector: Any) -> Any:
    """v_perm_b32: bytes 0 to 3 of the selector pick from low, 4 to 7 from high; 8 to 11 a sign, 12 zero, above ones."""
    if np.ndim(selector) == 0 and max(picked := list(int(selector).to_bytes(4, "little"))) < 8:
        pairs = np.empty((LANES, 2), U32)
        pairs[:, 0], pairs[:, 1] = low, high
        return pairs.view(np.uint8).take(picked, axis=1).view(U32)[:, 0]
    both = _wide(high) << U64(32) | _wide(low)
    out: Any = U32(0)
    for n in range(4):
        which = selector >> U32(8 * n) & 0xFF
        if np.any(which > 7):
            byte = both >> (_wide(which & 7) * U64(8)) & U64(0xFF)
            sign = (both >> (_wide(which & 3) * U64(16) + U64(15)) & U64(1)) * U64(0xFF)
            byte = np.where(which <= 7, byte, np.where(which < 12, sign, np.where(which == 12, U64(0), U64(0xFF))))
        else:
            byte = both >> (_wide(which) * U64(8)) & U64(0xFF)
        out = out | byte.astype(U32) << U32(8 * n)
    return out


def _align(high: Any, low: Any, amount: Any) -> Any:
    return ((_wide(high) << U64(32) | _wide(low)) >> _wide(amount)).astype(U32)


def _reversed(a: Any) -> Any:
    a = a >> U32(16) | a << U32(16)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        a = a >> U32(shift) & U32(mask) | (a & U32(mask)) << U32(shift)
    return a


def _first_high(a: Any) -> Any:
    return np.where(
        a == 0, U32(0xFFFFFFFF), U32(31) - np.log2(np.maximum(_wide(a), U64(1)).astype(np.float64)).astype(U32)
    )


def _first_low(a: Any) -> Any:
    return np.where(
        a == 0, U32(0xFFFFFFFF), np.log2(np.maximum(a & (~a + U32(1)), U32(1)).astype(np.float64)).astype(U32)
    )


def _middle(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _low16(f: Any) -> Any:
    return lambda a, b: f(a, b) & U32(0xFFFF)


def _carrying(f: Any, *, takes: bool) -> Builder:
    """dst, carry out, a, b (, carry in): f gives the 64-bit sum; a borrow shows as the sign."""

    def build(x: Instruction) -> Step:
        dst, carry, a, b, *into = operands_of(x)
        one, two, put = source(x, 0, a, "u"), source(x, 1, b, "u"), destination(x, dst, "u")
        first, old = carry.first, into[0].first if takes else 0

        def run(w: Wave) -> None:
            more = lanes_of(w.get64(old)).astype(I64) if takes else I64(0)
            total = np.broadcast_to(f(one(w).astype(I64), two(w).astype(I64), more), (LANES,))
            put(w, total.astype(U64).astype(U32))
            w.put64(first, mask_of((total < 0) | (total > 0xFFFFFFFF)) & w.exec_mask)

        step = vector_step(x, run, dst, [a, b, *into])
        step.writes |= carry.mask
        step.settle()
        return step

    return build


def _mad64(x: Instruction) -> Step:
    dst, carry, a, b, c = operands_of(x)
    kind, wide = ("u", "U") if x.name.endswith("u32") else ("i", "I")
    one, two, three = source(x, 0, a, kind), source(x, 1, b, kind), source(x, 2, c, wide)
    put, dtype, first = destination(x, dst, wide), U64 if wide == "U" else I64, carry.first

    def run(w: Wave) -> None:
        product = one(w).astype(dtype) * two(w).astype(dtype)
        total = np.broadcast_to(product + three(w), (LANES,))
        put(w, total)
        w.put64(first, mask_of(np.broadcast_to(total < product, (LANES,))) & w.exec_mask)

    step = vector_step(x, run, dst, [a, b, c])
    step.writes |= carry.mask
    step.parts = (dst.first, union(a, b, c.low)), (dst.first + 1, union(a, b, c))
    step.settle()
    return step


def _count_below(x: Instruction) -> Step:
    """v_mbcnt: bits of a mask below the lane, in its low or high half, and a sum."""
    dst, mask, more = operands_of(x)
    lane = np.arange(LANES)
    reach = lane if "_lo_" in x.name else lane - 32
    below = ((U64(1) << np.clip(reach, 0, 32).astype(U64)) - U64(1)).astype(U32)
    get, add, put = source(x, 0, mask, "u"), source(x, 1, more, "u"), destination(x, dst, "u")
    return vector_step(x, lambda w: put(w, np.bitwise_count(get(w) & below).astype(U32) + add(w)), dst, [mask, more])


def _move64(x: Instruction) -> Step:
    dst, src = operands_of(x)
    get, put = source(x, 0, src, "U"), destination(x, dst, "U")
    step = vector_step(x, lambda w: put(w, get(w)), dst, [src])
    step.parts = (dst.first, src.low.mask), (dst.first + 1, src.high.mask)
    return step


def _swap(x: Instruction) -> Step:
    a, b = operands_of(x)

    def run(w: Wave) -> None:
        kept = w.u[a.first].copy()
        w.write(a.first, w.u[b.first])
        w.write(b.first, kept)

    step = vector_step(x, run, a, [a, b])
    step.writes |= b.mask
    step.parts = (a.first, b.mask), (b.first, a.mask)
    step.settle()
    return step


def _add64(x: Instruction) -> Step:
    """v_lshl_add_u64: the low half of the sum does not depend on the high halves, for shifts of up to 4."""
    step = lanewise(lambda a, b, c: (a << _wide(b & 7)) + c, "UuU", "U")(x)
    dst, a, b, c = operands_of(x)
    step.parts = (dst.first, union(a.low, b, c.low)), (dst.first + 1, union(a, b, c))
    return step


def _shift64(f: Any, kind: str) -> Builder:
    """A shift to the left leaves the low half to the low half alone, one to the right the high half to the high one."""
    left = kind == "left"
    signed = kind == "signed"

    def build(x: Instruction) -> Step:
        step = lanewise(f, "uI" if signed else "uU", "I" if signed else "U")(x)
        dst, by, a = operands_of(x)
        whole, near = union(by, a), union(by, a.low if left else a.high)
        step.parts = (dst.first, near if left else whole), (dst.first + 1, whole if left else near)
        return step

    return build


def _packed16(f: Any, sources: int, *, sign: bool = False) -> Builder:
    """Two 16-bit integers a lane in one register."""

    def build(x: Instruction) -> Step:
        dst, *srcs = operands_of(x)
        picks = x.bits("op_sel", (0,) * sources), x.bits("op_sel_hi", (1,) * sources)
        gets, first = [raw(s, "H" if s.kind == "c" else "u") for s in srcs], dst.first
        constant = [s.kind == "c" for s in srcs]

        def value(w: Wave, n: int, side: int) -> Any:
            half = gets[n](w) >> U32(0 if constant[n] else 16 * picks[side][n]) & U32(0xFFFF)
            return (half ^ U32(0x8000)).astype(np.int32) - np.int32(0x8000) if sign else half

        def run(w: Wave) -> None:
            low, high = (f(*(value(w, n, side) for n in range(sources))).astype(U32) & U32(0xFFFF) for side in (0, 1))
            w.write(first, low | high << U32(16))

        return vector_step(x, run, dst, srcs)

    return build


def _same(a: Any) -> Any:
    return a


def _nothing(x: Instruction) -> Step:
    return Step(x, "valu", lambda w: None, dst=Operand("v", VECTORS, 0))


INTEGER: Family = {
    "v_nop": _nothing,
    "v_mov_b32": lanewise(_same, "u", "u"),
    "v_accvgpr_read_b32": lanewise(_same, "u", "u"),
    "v_accvgpr_write_b32": lanewise(_same, "u", "u"),
    "v_accvgpr_mov_b32": lanewise(_same, "u", "u"),
    "v_mov_b64": _move64,
    "v_swap_b32": _swap,
    "v_not_b32": lanewise(np.invert, "u", "u"),
    "v_bfrev_b32": lanewise(_reversed, "u", "u"),
    "v_ffbh_u32": lanewise(_first_high, "u", "u"),
    "v_ffbl_b32": lanewise(_first_low, "u", "u"),
    "v_and_b32": lanewise(np.bitwise_and, "uu", "u"),
    "v_or_b32": lanewise(np.bitwise_or, "uu", "u"),
    "v_xor_b32": lanewise(np.bitwise_xor, "uu", "u"),
    "v_xnor_b32": lanewise(lambda a, b: ~(a ^ b), "uu", "u"),
    "v_add_u32": lanewise(np.add, "uu", "u"),
    "v_add_i32": lanewise(np.add, "uu", "u"),
    "v_sub_u32": lanewise(np.subtract, "uu", "u"),
    "v_sub_i32": lanewise(np.subtract, "uu", "u"),
    "v_subrev_u32": lanewise(lambda a, b: b - a, "uu", "u"),
    "v_mul_lo_u32": lanewise(np.multiply, "uu", "u"),
    "v_mul_hi_u32": lanewise(_high, "uu", "u"),
    "v_mul_hi_i32": lanewise(_high_signed, "ii", "i"),
    "v_mul_u32_u24": lanewise(lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF), "uu", "u"),
    "v_mul_hi_u32_u24": lanewise(lambda a, b: _high(a & 0xFFFFFF, b & 0xFFFFFF), "uu", "u"),
    "v_mul_i32_i24": lanewise(lambda a, b: _signed24(a) * _signed24(b), "ii", "i"),
    "v_mad_u32_u24": lanewise(lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c, "uuu", "u"),
    "v_mad_i32_i24": lanewise(lambda a, b, c: _signed24(a) * _signed24(b) + c, "iii", "i"),
    "v_lshlrev_b32": lanewise(lambda a, b: b << (a & 31), "uu", "u"),
    "v_lshrrev_b32": lanewise(lambda a, b: b >> (a & 31), "uu", "u"),
    "v_ashrrev_i32": lanewise(lambda a, b: b >> (a & 31), "ii", "i"),
    "v_lshlrev_b64": _shift64(lambda a, b: b << _wide(a & 63), "left"),
    "v_lshrrev_b64": _shift64(lambda a, b: b >> _wide(a & 63), "right"),
    "v_ashrrev_i64": _shift64(lambda a, b: b >> (a & 63).astype(I64), "signed"),
    "v_min_u32": lanewise(np.minimum, "uu", "u"),
    "v_max_u32": lanewise(np.maximum, "uu", "u"),
    "v_min_i32": lanewise(np.minimum, "ii", "i"),
    "v_max_i32": lanewise(np.maximum, "ii", "i"),
    "v_min3_u32": lanewise(lambda a, b, c: np.minimum(np.minimum(a, b), c), "uuu", "u"),
    "v_max3_u32": lanewise(lambda a, b, c: np.maximum(np.maximum(a, b), c), "uuu", "u"),
    "v_min3_i32": lanewise(lambda a, b, c: np.minimum(np.minimum(a, b), c), "iii", "i"),
    "v_max3_i32": lanewise(lambda a, b, c: np.maximum(np.maximum(a, b), c), "iii", "i"),
    "v_med3_u32": lanewise(_middle, "uuu", "u"),
    "v_med3_i32": lanewise(_middle, "iii", "i"),
    "v_add3_u32": lanewise(lambda a, b, c: a + b + c, "uuu", "u"),
    "v_or3_b32": lanewise(lambda a, b, c: a | b | c, "uuu", "u"),
    "v_and_or_b32": lanewise(lambda a, b, c: a & b | c, "uuu", "u"),
    "v_lshl_add_u32": lanewise(lambda a, b, c: (a << (b & 31)) + c, "uuu", "u"),
    "v_add_lshl_u32": lanewise(lambda a, b, c: a + b << (c & 31), "uuu", "u"),
    "v_lshl_or_b32": lanewise(lambda a, b, c: a << (b & 31) | c, "uuu", "u"),
    "v_xad_u32": lanewise(lambda a, b, c: (a ^ b) + c, "uuu", "u"),
    "v_lshl_add_u64": _add64,
    "v_bfe_u32": lanewise(_extract, "uuu", "u"),
    "v_bfe_i32": lanewise(_extract_signed, "uuu", "u"),
    "v_bfi_b32": lanewise(lambda a, b, c: a & b | ~a & c, "uuu", "u"),
    "v_bfm_b32": lanewise(lambda a, b: ((U32(1) << (a & 31)) - U32(1)) << (b & 31), "uu", "u"),
    "v_bcnt_u32_b32": lanewise(lambda a, b: np.bitwise_count(a).astype(U32) + b, "uu", "u"),
    "v_alignbit_b32": lanewise(lambda a, b, c: _align(a, b, c & 31), "uuu", "u"),
    "v_alignbyte_b32": lanewise(lambda a, b, c: _align(a, b, (c & 3) * U32(8)), "uuu", "u"),
    "v_perm_b32": lanewise(_bytes, "uuu", "u"),
    "v_mad_u64_u32": _mad64,
    "v_mad_i64_i32": _mad64,
    "v_mbcnt_lo_u32_b32": _count_below,
    "v_mbcnt_hi_u32_b32": _count_below,
    "v_add_co_u32": _carrying(lambda a, b, c: a + b, takes=False),
    "v_sub_co_u32": _carrying(lambda a, b, c: a - b, takes=False),
    "v_subrev_co_u32": _carrying(lambda a, b, c: b - a, takes=False),
    "v_addc_co_u32": _carrying(lambda a, b, c: a + b + c, takes=True),
    "v_subb_co_u32": _carrying(lambda a, b, c: a - b - c, takes=True),
    "v_subbrev_co_u32": _carrying(lambda a, b, c: b - a - c, takes=True),
    "v_pk_add_u16": _packed16(np.add, 2),
    "v_pk_sub_u16": _packed16(np.subtract, 2),
    "v_pk_sub_i16": _packed16(np.subtract, 2),
    "v_pk_mul_lo_u16": _packed16(np.multiply, 2),
    "v_pk_mad_u16": _packed16(lambda a, b, c: a * b + c, 3),
    "v_pk_lshlrev_b16": _packed16(lambda a, b: b << (a & 15), 2),
    "v_pk_lshrrev_b16": _packed16(lambda a, b: b >> (a & 15), 2),
    "v_pk_min_u16": _packed16(np.minimum, 2),
    "v_pk_max_u16": _packed16(np.maximum, 2),
    "v_pk_min_i16": _packed16(np.minimum, 2, sign=True),
    "v_pk_max_i16": _packed16(np.maximum, 2, sign=True),
    "v_mad_legacy_u16": lanewise(lambda a, b, c: a * b + c & U32(0xFFFF), "HHH", "u"),
    "v_add_u16": lanewise(_low16(np.add), "HH", "u"),
    "v_sub_u16": lanewise(_low16(np.subtract), "HH", "u"),
    "v_mul_lo_u16": lanewise(_low16(np.multiply), "HH", "u"),
    "v_min_u16": lanewise(np.minimum, "HH", "u"),
    "v_max_u16": lanewise(np.maximum, "HH", "u"),
    "v_lshlrev_b16": lanewise(_low16(lambda a, b: b << (a & 15)), "HH", "u"),
    "v_lshrrev_b16": lanewise(_low16(lambda a, b: b >> (a & 15)), "HH", "u"),
}
