"""Wait states that the hardware does not insert by itself.

AMD Instinct MI300 ISA reference, "Manually inserted wait states" and "Dependency resolution: required independent
instructions" of matrix instructions; the numbers are those that LLVM's hazard recogniser keeps for this family.  Between
two instructions lie the wait states of what is issued between them: one each, n + 1 for `s_nop n`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.targets.gfx942.emulator.operands import VCC, VECTORS, operand
from tilec.targets.gfx942.emulator.step import M0_BIT, Step
from tilec.targets.gfx942.emulator.wave import Wave

EXACT_C = {2: 2}  # passes of the writer: wait states before its D is read as the same C
WAR_C = {2: 1, 4: 3, 8: 7, 16: 15}  # before a vector instruction overwrites a matrix instruction's C
VALU_TO_MATRIX = 2
VALU_TO_DPP = 2
TRANS_TO_VALU = 1
SCALAR_TO_MEMORY, SCALAR_TO_LANE, SCALAR_TO_VALU = 5, 4, 2
M0_TO_LDS_DMA = 1
LONGEST = 20  # any rule's, from an instruction's issue
VCC_BITS = 3 << (VECTORS + VCC)
VECTOR_ALL = (1 << VECTORS) - 1


@dataclass
class Recent:
    """An instruction that a rule starts from, issued at `clock`; `result`: what it wrote and nothing wrote since."""

    step: Step
    clock: int
    until: int  # the last clock at which a rule may want more wait states
    watched: int  # registers that the rule concerns
    result: int


def note(w: Wave, step: Step) -> None:
    """Remembers an instruction of the vector unit, or a write of M0, that was just issued."""
    if step.writes & w.hot:
        for r in w.hazards:
            r.result &= ~step.writes
    if step.unit == "valu" and not step.writes >> VECTORS:
        w.recent.append((w.clock, step))
        return
    watched, reach = step.writes, LONGEST
    if step.unit == "salu":
        watched, reach = M0_BIT, M0_TO_LDS_DMA
    elif step.unit == "mfma":
        watched |= 0 if step.accumulator is None else step.accumulator.mask
    else:
        reach = SCALAR_TO_MEMORY if step.writes >> VECTORS else TRANS_TO_VALU
    w.hazards.append(Recent(step, w.clock, w.clock + reach, watched, step.writes))
    w.hot |= watched
    if step.unit in ("valu", "trans"):
        w.recent.append((w.clock, step))


def check(w: Wave, step: Step) -> str:
    """The rule that issuing this instruction now breaks, or nothing."""
    clock, hot, touch = w.clock, 0, step.touch
    kept = [r for r in w.hazards if clock <= r.until]
    for r in kept:
        hot |= r.watched
    w.hazards, w.hot = kept, hot
    if not touch & hot:
        return ""
    for r in reversed(kept):
        if not r.watched & touch:
            continue
        between = clock - r.clock - 1
        need, why = _needed(r, step)
        if between < need:
            return f"{need} wait states after {r.step.source.address:#x} `{r.step.source.text}` ({why}), not {between}"
    return ""


def check_recent(w: Wave, step: Step) -> str:
    """The same for what reads a vector register that a plain vector instruction has just written."""
    for clock, before in w.recent:
        between = w.clock - clock - 1
        if between < VALU_TO_MATRIX and before.writes & step.reads & VECTOR_ALL:
            reader = "matrix instruction" if step.unit == "mfma" else "lane permutation"
            return f"2 wait states after {before.source.address:#x} `{before.source.text}` (read by a {reader}), not {between}"
    return ""


def _needed(recent: Recent, now: Step) -> tuple[int, str]:
    before = recent.step
    if before.unit == "mfma":
        return _after_matrix(before, recent.result, now)
    if before.unit == "trans" and now.unit in ("valu", "mfma") and recent.result & now.reads:
        return TRANS_TO_VALU, "a transcendental's result"
    if before.unit == "salu":
        dma = now.unit == "vmem" and recent.result & now.reads & M0_BIT
        return (M0_TO_LDS_DMA, "M0, read by a load into LDS") if dma else (0, "")
    scalars = recent.result >> VECTORS << VECTORS
    if scalars & now.reads:
        if now.unit == "vmem":
            return SCALAR_TO_MEMORY, "a scalar register that a vector instruction wrote, read by vector memory"
        if now.source.name in ("v_readlane_b32", "v_writelane_b32") and scalars & operand(now.source.operands[2]).mask:
            return SCALAR_TO_LANE, "a lane number that a vector instruction wrote"
        if now.source.name.startswith("v_div_fmas") and scalars & VCC_BITS:
            return SCALAR_TO_LANE, "vcc of v_div_fmas"
        if now.unit in ("valu", "trans"):
            return SCALAR_TO_VALU, "a scalar register that a vector instruction wrote"
    return 0, ""


def _single(step: Step) -> bool:
    """Whether a product is of singles, which another unit computes with rules of its own."""
    return step.source.name.endswith("_f32")


def _after_matrix(before: Step, result: int, now: Step) -> tuple[int, str]:
    single = _single(before)
    passes = before.passes - 1 if single else before.passes
    if now.unit == "mfma":
        c = now.accumulator
        c_mask = c.mask if c is not None else 0
        if result & now.reads & ~c_mask:
            return passes + 3, "A or B of a matrix instruction"
        if result & c_mask:
            if before.dst is not None and c is not None and c.first == before.dst.first:
                return EXACT_C.get(before.passes, 0), "the same C"
            return 0 if single and not _single(now) else passes + 1, "an overlapping C"
        return 0, ""
    if now.unit in ("valu", "trans", "vmem", "lds"):
        if result & now.touch:
            return passes + 3, "a matrix instruction's result"
        overwrites = before.accumulator is not None and before.accumulator.mask & now.writes
        if now.unit in ("valu", "trans") and overwrites and not single:
            return WAR_C[passes], "overwrites a matrix instruction's C"
    return 0, ""
