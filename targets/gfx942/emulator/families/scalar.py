"""Scalar arithmetic.  AMD Instinct MI300 ISA reference, SOP1, SOP2, SOPC and SOPK instructions.

An operation takes its sources as unsigned integers of `width` bits and gives the result and the new SCC (None: kept).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.operands import EXEC, VECTORS, Operand, Unsupported
from tilec.targets.gfx942.emulator.step import SCC_BIT, Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import Wave
from tilec.targets.gfx942.listing import Instruction

Result = tuple[int, int | None]
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
EXEC_BITS = 3 << (VECTORS + EXEC)


def signed(a: int, bits: int = 32) -> int:
    """Two's complement."""
    return a - (1 << bits) if a >> (bits - 1) & 1 else a


def read(x: Operand, width: int) -> Callable[[Wave], int]:
    """Reads a scalar operand of 32 or 64 bits."""
    first = x.first
    if x.kind == "s":
        return (lambda w: w.s[first] | w.s[first + 1] << 32) if width == 64 else (lambda w: w.s[first])
    if x.kind != "c":
        raise Unsupported(f"scalar operand of kind {x.kind}")
    value = x.bits64 if width == 64 else x.bits
    return lambda w: value


def _binary(
    f: Callable[[int, int], Result], width: int = 32, second: int | None = None, to: int | None = None
) -> Builder:
    def build(x: Instruction) -> Step:
        dst, a, b = operands_of(x)
        one, two = read(a, width), read(b, second or width)
        return _writing(x, lambda w: f(one(w), two(w)), dst, [a, b], to or width, sets_scc=_sets(f))

    return build


def _unary(f: Callable[[int], Result], width: int = 32, to: int | None = None) -> Builder:
    def build(x: Instruction) -> Step:
        dst, a = operands_of(x)
        one = read(a, width)
        return _writing(x, lambda w: f(one(w)), dst, [a], to or width, sets_scc=_sets(f, 1))

    return build


def _sets(f: Callable[..., Result], sources: int = 2) -> bool:
    return f(*([1] * sources))[1] is not None


def _writing(
    x: Instruction, value: Callable[[Wave], Result], dst: Operand, srcs: list[Operand], width: int, *, sets_scc: bool
) -> Step:
    first, wide = dst.first, width == 64

    def run(w: Wave) -> None:
        result, scc = value(w)
        if wide:
            w.put64(first, result)
        else:
            w.put(first, result)
        if scc is not None:
            w.scc = int(scc)

    return Step(x, "salu", run, union(*srcs), dst.mask | (SCC_BIT if sets_scc else 0), flow="scalar", dst=dst)


def _bits(f: Callable[[int, int], int], width: int) -> Builder:
    mask = M64 if width == 64 else M32

    def operation(a: int, b: int) -> Result:
        out = f(a, b) & mask
        return out, int(out != 0)

    return _binary(operation, width)


def _sum(f: Callable[[int, int], int]) -> Builder:
    """Signed: SCC is the overflow."""

    def operation(a: int, b: int) -> Result:
        exact = f(signed(a), signed(b))
        return exact & M32, int(signed(exact & M32) != exact)

    return _binary(operation)


def _with_carry(sign: int, *, takes: bool) -> Builder:
    def build(x: Instruction) -> Step:
        dst, a, b = operands_of(x)
        one, two = read(a, 32), read(b, 32)

        def value(w: Wave) -> Result:
            total = one(w) + sign * (two(w) + (w.scc if takes else 0))
            return total & M32, int(not 0 <= total <= M32)

        step = _writing(x, value, dst, [a, b], 32, sets_scc=True)
        if takes:
            step.reads |= SCC_BIT
            step.settle()
        return step

    return build


def _choose(width: int) -> Builder:
    def build(x: Instruction) -> Step:
        dst, a, b = operands_of(x)
        one, two = read(a, width), read(b, width)
        step = _writing(x, lambda w: (one(w) if w.scc else two(w), None), dst, [a, b], width, sets_scc=False)
        step.reads |= SCC_BIT
        step.settle()
        return step

    return build


def _compare(f: Callable[[int, int], bool], width: int, *, sign: bool) -> Builder:
    def build(x: Instruction) -> Step:
        a, b = operands_of(x)
        one, two = read(a, width), read(b, width)

        def run(w: Wave) -> None:
            w.scc = int(f(signed(one(w), width), signed(two(w), width)) if sign else f(one(w), two(w)))

        return Step(x, "salu", run, union(a, b), SCC_BIT, flow="scalar")

    return build


def _immediate(f: Callable[[int, int], Result], *, sets_scc: bool) -> Builder:
    """SOPK: dst = f(dst, a 16-bit constant), which the disassembler shows as it is encoded."""

    def build(x: Instruction) -> Step:
        dst, constant = operands_of(x)
        first, value = dst.first, signed(int(constant.value) & 0xFFFF, 16)
        step = _writing(x, lambda w: f(w.s[first], value), dst, [dst], 32, sets_scc=sets_scc)
        if x.name == "s_movk_i32":
            step.reads = 0
            step.settle()
        return step

    return build


def _set_bit(bit: int) -> Builder:
    """dst with the bit that the source numbers."""

    def build(x: Instruction) -> Step:
        dst, a = operands_of(x)
        first, get = dst.first, read(a, 32)

        def value(w: Wave) -> Result:
            mask = 1 << (get(w) & 31)
            return (w.s[first] | mask if bit else w.s[first] & ~mask), None

        return _writing(x, value, dst, [dst, a], 32, sets_scc=False)

    return build


def _immediate_compare(f: Callable[[int, int], bool], *, sign: bool) -> Builder:
    def build(x: Instruction) -> Step:
        a, constant = operands_of(x)
        first, value = a.first, int(constant.value) & 0xFFFF

        def run(w: Wave) -> None:
            w.scc = int(f(signed(w.s[first]), signed(value, 16)) if sign else f(w.s[first], value))

        return Step(x, "salu", run, a.mask, SCC_BIT, flow="scalar")

    return build


def _saving(f: Callable[[int, int], int]) -> Builder:
    """dst = exec; exec = f(source, exec)."""

    def build(x: Instruction) -> Step:
        dst, a = operands_of(x)
        first, get = dst.first, read(a, 64)

        def run(w: Wave) -> None:
            source, old = get(w), w.exec_mask
            w.put64(first, old)
            w.set_exec(f(source, old) & M64)
            w.scc = int(w.exec_mask != 0)

        return Step(x, "salu", run, a.mask | EXEC_BITS, dst.mask | EXEC_BITS | SCC_BIT, flow="scalar", dst=dst)

    return build


def _field(a: int, b: int, *, sign: bool, width: int = 32) -> Result:
    offset, size = b & (width - 1), b >> 16 & 0x7F
    out = a >> offset & ((1 << size) - 1)
    if sign and size:
        out = signed(out, size) & (M64 if width == 64 else M32)
    return out, int(out != 0)


def _count(a: int) -> Result:
    return a.bit_count(), int(a != 0)


def _low_bit(a: int) -> Result:
    return ((a & -a).bit_length() - 1) & M32, None


def _high_bit(bits: int) -> Callable[[int], Result]:
    return lambda a: ((bits - a.bit_length()) & M32 if a else M32, None)


def _multiply_high(a: int, b: int, *, sign: bool) -> Result:
    return ((signed(a) * signed(b) if sign else a * b) >> 32) & M32, None


def _both(names: str, make: Callable[[int], Builder]) -> dict[str, Builder]:
    return {f"{names}_b32": make(32), f"{names}_b64": make(64)}


def _order(names: str, f: Callable[[int, int], bool]) -> dict[str, Builder]:
    return {
        f"s_cmp_{names}_i32": _compare(f, 32, sign=True),
        f"s_cmp_{names}_u32": _compare(f, 32, sign=False),
        f"s_cmp_{names}_u64": _compare(f, 64, sign=False),
        f"s_cmpk_{names}_i32": _immediate_compare(f, sign=True),
        f"s_cmpk_{names}_u32": _immediate_compare(f, sign=False),
    }


def _shift_add(n: int) -> Builder:
    def operation(a: int, b: int) -> Result:
        total = (a << n) + b
        return total & M32, int(total > M32)

    return _binary(operation)


def _extreme(f: Any, *, sign: bool) -> Builder:
    def operation(a: int, b: int) -> Result:
        out = f(a, b, key=signed) if sign else f(a, b)
        return out, int(out == a)

    return _binary(operation)


SCALAR: Family = {
    **_both("s_mov", lambda n: _unary(lambda a: (a, None), n)),
    **_both("s_not", lambda n: _unary(lambda a: (~a, int(a != (1 << n) - 1)), n)),
    **_both("s_and", lambda n: _bits(lambda a, b: a & b, n)),
    **_both("s_or", lambda n: _bits(lambda a, b: a | b, n)),
    **_both("s_xor", lambda n: _bits(lambda a, b: a ^ b, n)),
    **_both("s_andn2", lambda n: _bits(lambda a, b: a & ~b, n)),
    **_both("s_orn2", lambda n: _bits(lambda a, b: a | ~b, n)),
    **_both("s_nand", lambda n: _bits(lambda a, b: ~(a & b), n)),
    **_both("s_nor", lambda n: _bits(lambda a, b: ~(a | b), n)),
    **_both("s_xnor", lambda n: _bits(lambda a, b: ~(a ^ b), n)),
    **_both("s_cselect", _choose),
    "s_lshl_b32": _bits(lambda a, b: a << (b & 31), 32),
    "s_lshr_b32": _bits(lambda a, b: a >> (b & 31), 32),
    "s_ashr_i32": _bits(lambda a, b: signed(a) >> (b & 31), 32),
    "s_lshl_b64": _binary(lambda a, b: (a << (b & 63) & M64, int(a << (b & 63) & M64 != 0)), 64, 32),
    "s_lshr_b64": _binary(lambda a, b: (a >> (b & 63), int(a >> (b & 63) != 0)), 64, 32),
    "s_ashr_i64": _binary(lambda a, b: (signed(a, 64) >> (b & 63), int(signed(a, 64) >> (b & 63) != 0)), 64, 32),
    **{f"s_lshl{n}_add_u32": _shift_add(n) for n in (1, 2, 3, 4)},
    "s_add_i32": _sum(lambda a, b: a + b),
    "s_sub_i32": _sum(lambda a, b: a - b),
    "s_add_u32": _with_carry(1, takes=False),
    "s_sub_u32": _with_carry(-1, takes=False),
    "s_addc_u32": _with_carry(1, takes=True),
    "s_subb_u32": _with_carry(-1, takes=True),
    "s_mul_i32": _binary(lambda a, b: (a * b & M32, None)),
    "s_mul_hi_u32": _binary(lambda a, b: _multiply_high(a, b, sign=False)),
    "s_mul_hi_i32": _binary(lambda a, b: _multiply_high(a, b, sign=True)),
    "s_min_i32": _extreme(min, sign=True),
    "s_max_i32": _extreme(max, sign=True),
    "s_min_u32": _extreme(min, sign=False),
    "s_max_u32": _extreme(max, sign=False),
    "s_abs_i32": _unary(lambda a: (abs(signed(a)) & M32, int(a != 0))),
    "s_sext_i32_i8": _unary(lambda a: (signed(a & 0xFF, 8) & M32, None)),
    "s_sext_i32_i16": _unary(lambda a: (signed(a & 0xFFFF, 16) & M32, None)),
    "s_bfe_u32": _binary(lambda a, b: _field(a, b, sign=False)),
    "s_bfe_i32": _binary(lambda a, b: _field(a, b, sign=True)),
    "s_bfe_u64": _binary(lambda a, b: _field(a, b, sign=False, width=64), 64, 32),
    "s_bfe_i64": _binary(lambda a, b: _field(a, b, sign=True, width=64), 64, 32),
    "s_bfm_b32": _binary(lambda a, b: (((1 << (a & 31)) - 1) << (b & 31) & M32, None)),
    "s_bfm_b64": _binary(lambda a, b: (((1 << (a & 63)) - 1) << (b & 63) & M64, None), 32, 32, 64),
    "s_brev_b32": _unary(lambda a: (int(f"{a:032b}"[::-1], 2), None)),
    "s_bcnt1_i32_b32": _unary(_count),
    "s_bcnt1_i32_b64": _unary(_count, 64, 32),
    "s_ff1_i32_b32": _unary(_low_bit),
    "s_ff1_i32_b64": _unary(_low_bit, 64, 32),
    "s_flbit_i32_b32": _unary(_high_bit(32)),
    "s_flbit_i32_b64": _unary(_high_bit(64), 64, 32),
    "s_pack_ll_b32_b16": _binary(lambda a, b: (a & 0xFFFF | b << 16 & M32, None)),
    "s_pack_lh_b32_b16": _binary(lambda a, b: (a & 0xFFFF | b & 0xFFFF0000, None)),
    "s_pack_hh_b32_b16": _binary(lambda a, b: (a >> 16 | b & 0xFFFF0000, None)),
    "s_bitset0_b32": _set_bit(0),
    "s_bitset1_b32": _set_bit(1),
    "s_movk_i32": _immediate(lambda old, k: (k & M32, None), sets_scc=False),
    "s_addk_i32": _immediate(
        lambda old, k: ((old + k) & M32, int(signed(old) + k != signed((old + k) & M32))), sets_scc=True
    ),
    "s_mulk_i32": _immediate(lambda old, k: (old * k & M32, None), sets_scc=False),
    **_order("eq", lambda a, b: a == b),
    **_order("lg", lambda a, b: a != b),
    **_order("lt", lambda a, b: a < b),
    **_order("le", lambda a, b: a <= b),
    **_order("gt", lambda a, b: a > b),
    **_order("ge", lambda a, b: a >= b),
    "s_bitcmp0_b32": _compare(lambda a, b: not a >> (b & 31) & 1, 32, sign=False),
    "s_bitcmp1_b32": _compare(lambda a, b: bool(a >> (b & 31) & 1), 32, sign=False),
    "s_and_saveexec_b64": _saving(lambda a, e: a & e),
    "s_or_saveexec_b64": _saving(lambda a, e: a | e),
    "s_xor_saveexec_b64": _saving(lambda a, e: a ^ e),
    "s_andn2_saveexec_b64": _saving(lambda a, e: a & ~e),
    "s_orn2_saveexec_b64": _saving(lambda a, e: a | ~e),
}
