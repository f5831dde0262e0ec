"""Program control.  AMD Instinct MI300 ISA reference, SOPP instructions, and those of SOP1 and SOPK that steer.

The number of a branch's target is put into its step when the code object is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.families.scalar import read
from tilec.targets.gfx942.emulator.operands import EXEC, VCC, VECTORS, Unsupported, operand
from tilec.targets.gfx942.emulator.scoreboard import MOST_LGKM, MOST_VM, wait
from tilec.targets.gfx942.emulator.step import SCC_BIT, Step, operands_of
from tilec.targets.gfx942.emulator.wave import Wave
from tilec.targets.gfx942.listing import Instruction

HWREG = re.compile(r"hwreg\((\w+)(?:, ?(\d+), ?(\d+))?\)")
COUNTER = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")
ANYWHERE = 1 << 40  # a count that nothing reaches


def _branch(taken: Callable[[Wave], bool], reads: int = 0) -> Builder:
    def build(x: Instruction) -> Step:
        step = Step(x, "branch", lambda w: None, reads, 0, reads, "scalar")

        def run(w: Wave) -> None:
            if taken(w):
                w.pc = step.target
                w.extra = 1

        step.run = run
        return step

    return build


def waited(x: Instruction) -> tuple[int, int]:
    """(vmcnt, lgkmcnt) of an s_waitcnt, in words or encoded as gfx9 does: vmcnt bits 3:0 and 15:14, lgkmcnt bits 11:8."""
    if len(x.operands) == 1 and not COUNTER.fullmatch(x.operands[0]):
        code = int(x.operands[0], 0)
        vm, lgkm = code & 15 | code >> 14 << 4, code >> 8 & 15
        return (vm if vm < MOST_VM else ANYWHERE, lgkm if lgkm < MOST_LGKM else ANYWHERE)
    said = {m[1]: m[2] for t in x.operands if (m := COUNTER.fullmatch(t))}
    return int(said.get("vmcnt", ANYWHERE)), int(said.get("lgkmcnt", ANYWHERE))


def _wait(x: Instruction) -> Step:
    vm, lgkm = waited(x)
    return Step(x, "wait", lambda w: wait(w, vm, lgkm), flow="none")


def _nop(x: Instruction) -> Step:
    return Step(x, "internal", lambda w: None, flow="none", states=int(x.operands[0], 0) + 1)


def _nothing(x: Instruction) -> Step:
    return Step(x, "internal", lambda w: None, flow="none")


def _barrier(x: Instruction) -> Step:
    def run(w: Wave) -> None:
        w.at_barrier = True

    return Step(x, "barrier", run, flow="none")


def _end(x: Instruction) -> Step:
    def run(w: Wave) -> None:
        wait(w, 0, 0)
        w.done = True

    return Step(x, "end", run, flow="none")


def _get_pc(x: Instruction) -> Step:
    (dst,) = operands_of(x)
    after = x.address + x.size
    return Step(x, "salu", lambda w: w.put64(dst.first, w.group.code_base + after), 0, dst.mask, flow="scalar", dst=dst)


def _set_pc(x: Instruction) -> Step:
    *dst, src = operands_of(x)
    after = x.address + x.size

    def run(w: Wave) -> None:
        to = w.get64(src.first)
        if dst:
            w.put64(dst[0].first, w.group.code_base + after)
        w.pc = w.group.number_at(to)
        w.extra = 1

    writes = dst[0].mask if dst else 0
    return Step(x, "branch", run, src.mask, writes, src.mask, "scalar", dst=dst[0] if dst else None)


def _set_register(x: Instruction) -> Step:
    """Writes a field of the MODE register, the only one that code for this target sets."""
    found = HWREG.fullmatch(x.operands[0])
    if found is None or found[1] != "HW_REG_MODE":
        raise Unsupported(f"`{x.text}`")
    offset, size = int(found[2] or 0), int(found[3] or 32)
    value = read(operand(x.operands[1]), 32)

    def run(w: Wave) -> None:
        mask = (1 << size) - 1
        w.mode = w.mode & ~(mask << offset) | (value(w) & mask) << offset

    return Step(x, "salu", run, flow="none")


def _get_register(x: Instruction) -> Step:
    found = HWREG.fullmatch(x.operands[1])
    if found is None or found[1] not in ("HW_REG_XCC_ID", "HW_REG_MODE"):
        raise Unsupported(f"`{x.text}`")
    dst = operand(x.operands[0])
    offset, size, mode = int(found[2] or 0), int(found[3] or 32), found[1] == "HW_REG_MODE"

    def run(w: Wave) -> None:
        w.put(dst.first, (w.mode if mode else w.group.xcc) >> offset & ((1 << size) - 1))

    return Step(x, "salu", run, 0, dst.mask, flow="scalar", dst=dst)


VCC_BITS, EXEC_BITS = 3 << (VECTORS + VCC), 3 << (VECTORS + EXEC)
CONTROL: Family = {
    "s_branch": _branch(lambda w: True),
    "s_cbranch_scc0": _branch(lambda w: not w.scc, SCC_BIT),
    "s_cbranch_scc1": _branch(lambda w: bool(w.scc), SCC_BIT),
    "s_cbranch_vccz": _branch(lambda w: not w.get64(VCC), VCC_BITS),
    "s_cbranch_vccnz": _branch(lambda w: bool(w.get64(VCC)), VCC_BITS),
    "s_cbranch_execz": _branch(lambda w: not w.exec_mask, EXEC_BITS),
    "s_cbranch_execnz": _branch(lambda w: bool(w.exec_mask), EXEC_BITS),
    "s_getpc_b64": _get_pc,
    "s_setpc_b64": _set_pc,
    "s_swappc_b64": _set_pc,
    "s_waitcnt": _wait,
    "s_nop": _nop,
    "s_barrier": _barrier,
    "s_endpgm": _end,
    "s_setreg_b32": _set_register,
    "s_setreg_imm32_b32": _set_register,
    "s_getreg_b32": _get_register,
    **dict[str, Builder].fromkeys(
        ("s_setprio", "s_sleep", "s_sethalt", "s_icache_inv", "s_sendmsg", "s_trap"), _nothing
    ),
}
