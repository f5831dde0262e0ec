"""Comparisons, selection by a mask, and what moves values between lanes and scalar registers.

AMD Instinct MI300 ISA reference, VOPC, v_cndmask, v_readlane, v_writelane, v_readfirstlane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.families.vector import vector_step
from tilec.targets.gfx942.emulator.operands import EXEC, VECTORS, Operand
from tilec.targets.gfx942.emulator.sources import destination, raw, source
from tilec.targets.gfx942.emulator.step import Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import LANES, Wave, lanes_of, mask_of
from tilec.targets.gfx942.listing import Instruction

KINDS = {"f32": "f", "f16": "h", "f64": "F", "u32": "u", "i32": "i", "u16": "H", "i16": "H", "u64": "U", "i64": "I"}


def _unordered(a: Any, b: Any) -> Any:
    return (a != a) | (b != b)


CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "f": lambda a, b: (a != a) & False,
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": lambda a, b: (a < b) | (a > b),
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "o": lambda a, b: ~_unordered(a, b),
    "u": _unordered,
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "t": lambda a, b: (a == a) | True,
}


def _compare(condition: str, kind: str, *, to_exec: bool) -> Builder:
    f, letter = CONDITIONS[condition], KINDS[kind]

    def build(x: Instruction) -> Step:
        dst, a, b = operands_of(x)
        one, two = source(x, 0, a, letter), source(x, 1, b, letter)
        if kind == "i16":
            one, two = _signed16(one), _signed16(two)
        first = dst.first

        def run(w: Wave) -> None:
            found = f(one(w), two(w))
            mask = (mask_of(found) if found.shape else (1 << LANES) - 1 if found else 0) & w.exec_mask
            w.put64(first, mask)
            if to_exec:
                w.put64(EXEC, mask)

        writes = dst.mask | (3 << (VECTORS + EXEC) if to_exec else 0)
        return Step(x, "valu", run, union(a, b), writes, flow="vector", dst=dst)

    return build


def _signed16(get: Callable[[Wave], Any]) -> Callable[[Wave], Any]:
    return lambda w: (get(w) ^ np.uint32(0x8000)).astype(np.int32) - 0x8000


CLASSES: tuple[Callable[[Any], Any], ...] = (  # bits of v_cmp_class: which numbers each selects
    lambda a: np.isnan(a) & (a.view(np.uint32) & 0x400000 == 0),
    lambda a: np.isnan(a) & (a.view(np.uint32) & 0x400000 != 0),
    lambda a: np.isneginf(a),
    lambda a: np.isfinite(a) & (a <= -(2.0**-126)),
    lambda a: (a < 0) & (a > -(2.0**-126)),
    lambda a: (a == 0) & np.signbit(a),
    lambda a: (a == 0) & ~np.signbit(a),
    lambda a: (a > 0) & (a < 2.0**-126),
    lambda a: np.isfinite(a) & (a >= 2.0**-126),
    lambda a: np.isposinf(a),
)


def _class(x: Instruction) -> Step:
    dst, a, b = operands_of(x)
    get, wanted, first = source(x, 0, a, "f"), source(x, 1, b, "u"), dst.first

    def run(w: Wave) -> None:
        value, bits = np.broadcast_to(get(w), (LANES,)), wanted(w)
        found = np.zeros(LANES, np.bool_)
        for n, is_in in enumerate(CLASSES):
            found |= is_in(value) & (bits >> np.uint32(n) & 1 != 0)
        w.put64(first, mask_of(found) & w.exec_mask)

    return Step(x, "valu", run, union(a, b), dst.mask, dst=dst)


def _select(x: Instruction) -> Step:
    dst, a, b, mask = operands_of(x)
    kind = "f" if a.negative or a.absolute or b.negative or b.absolute else "u"
    one, two, put = source(x, 0, a, kind), source(x, 1, b, kind), destination(x, dst, kind)
    first = mask.first
    run = lambda w: put(w, np.where(lanes_of(w.get64(first)), two(w), one(w)))  # noqa: E731
    return vector_step(x, run, dst, [a, b, mask], flow="select")


def _first_lane(x: Instruction) -> Step:
    dst, a = operands_of(x)
    first, get = dst.first, raw(a)

    def run(w: Wave) -> None:
        mask = w.exec_mask
        lane = (mask & -mask).bit_length() - 1 if mask else 0
        value = get(w)
        w.put(first, int(value[lane] if value.shape else value))

    return Step(x, "valu", run, a.mask, dst.mask, flow="first", dst=dst)


def _read_lane(x: Instruction) -> Step:
    dst, a, lane = operands_of(x)
    first, row, at = dst.first, a.first, _scalar(lane)
    return Step(
        x, "valu", lambda w: w.put(first, int(w.u[row][at(w) & 63])), union(a, lane), dst.mask, flow="first", dst=dst
    )


def _write_lane(x: Instruction) -> Step:
    dst, a, lane = operands_of(x)
    row, value, at = dst.first, _scalar(a), _scalar(lane)

    def run(w: Wave) -> None:
        w.u[row][at(w) & 63] = value(w)

    return Step(x, "valu", run, union(a, lane), dst.mask, flow="first", dst=dst)


def _scalar(x: Operand) -> Callable[[Wave], int]:
    if x.kind == "s":
        first = x.first
        return lambda w: w.s[first]
    bits = x.bits
    return lambda w: bits


LANE: Family = {
    **{f"v_cmp_{c}_{k}": _compare(c, k, to_exec=False) for c in CONDITIONS for k in KINDS},
    **{f"v_cmpx_{c}_{k}": _compare(c, k, to_exec=True) for c in CONDITIONS for k in KINDS},
    "v_cmp_class_f32": _class,
    "v_cndmask_b32": _select,
    "v_readfirstlane_b32": _first_lane,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
}
