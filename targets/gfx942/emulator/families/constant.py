"""Scalar memory.  AMD Instinct MI300 ISA reference, "Scalar memory operations", SMEM format."""

from __future__ import annotations

from collections.abc import Callable

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.operands import Operand
from tilec.targets.gfx942.emulator.scoreboard import Outstanding, issue_lgkm
from tilec.targets.gfx942.emulator.step import Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import Wave
from tilec.targets.gfx942.listing import Instruction


def _offset(x: Instruction, given: Operand) -> Callable[[Wave], int]:
    fixed, first = x.number("offset"), given.first
    if given.kind == "s":
        return lambda w: w.s[first] + fixed
    total = int(given.value) + fixed
    return lambda w: total


def _load(words: int, *, buffer: bool) -> Builder:
    def build(x: Instruction) -> Step:
        dst, base, given = operands_of(x)
        offset, first, to = _offset(x, given), base.first, dst.first
        reads = union(base, given)
        step = Step(x, "smem", lambda w: None, reads, dst.mask, reads, "scalar", dst=dst, counter="lgkm", loads=True)

        def run(w: Wave) -> None:
            at, limit = offset(w), w.s[first + 2] if buffer else 1 << 40
            start = w.s[first] | (w.s[first + 1] & 0xFFFF) << 32
            found = w.group.memory.read((start + at) & ~3, 4 * words) if at + 4 * words <= limit else bytes(4 * words)
            if found is None:
                w.group.report("bounds", w, step, w.group.memory.describe(start + at))
                found = bytes(4 * words)
            for n in range(words):
                w.put(to + n, int.from_bytes(found[4 * n : 4 * n + 4], "little"))
            issue_lgkm(w, Outstanding(dst.mask, x.address, scalar=True))

        step.run = run
        return step

    return build


def _time(x: Instruction) -> Step:
    (dst,) = operands_of(x)

    def run(w: Wave) -> None:
        w.put64(dst.first, w.executed)
        issue_lgkm(w, Outstanding(dst.mask, x.address, scalar=True))

    return Step(x, "smem", run, 0, dst.mask, flow="scalar", dst=dst, counter="lgkm", loads=True)


def _maintenance(x: Instruction) -> Step:
    return Step(x, "smem", lambda w: None, flow="none")


WIDTHS = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}
CONSTANT: Family = {
    **{f"s_load_{n}": _load(k, buffer=False) for n, k in WIDTHS.items()},
    **{f"s_buffer_load_{n}": _load(k, buffer=True) for n, k in WIDTHS.items()},
    "s_memtime": _time,
    "s_memrealtime": _time,
    "s_dcache_inv": _maintenance,
    "s_dcache_wb": _maintenance,
}
