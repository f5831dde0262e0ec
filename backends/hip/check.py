"""What a code object shows of a kernel: registers, spills, memory, and whether its matrix instructions are the program's.

A kernel that does not keep what its schedule counts on is no kernel: it would run, and slowly.
"""

from __future__ import annotations

import re

from tilec.dsl.faults import TargetFault
from tilec.targets.gfx942.codeobject import REGISTERS, read
from tilec.targets.gfx942.gate import Needs, complaints, taken

STATES = 5  # AMD Instinct MI300 ISA reference, "Manually inserted wait states": VALU writes SGPR, VMEM reads it
LABEL, INSTRUCTION = re.compile(r"(\.\w+):"), re.compile(r"\t([a-z]\w+)(?:[ \t]+(\.\w+))?")


def needs(code: bytes, assembly: str, name: str) -> Needs:
    """What a kernel takes, by the metadata of its code object and the assembler's text that this was made from."""
    names: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in assembly.splitlines():
        if found := LABEL.match(line):
            labels[found[1]] = len(names)
        elif found := INSTRUCTION.match(line):
            if found[2] in labels:
                loops.append((labels[found[2]], len(names)))
            names.append(found[1])
    return taken(read(code).kernels[name], names, loops)


def settled(assembly: str, name: str) -> None:
    """TargetFault E0918 where a load into LDS reads a scalar register too soon after a vector instruction wrote it.

    The compiler inserts such wait states itself, but it does not see what these loads, which are inline assembly, read."""
    states, written = 0, dict[int, int]()
    for instruction, rest in re.findall(r"^\t([a-z]\w+)([^;\n]*)", assembly, re.M):
        if instruction.startswith("buffer_load") and rest.rstrip().endswith(" lds"):
            first, last = map(int, re.findall(r"s\[(\d+):(\d+)\]", rest)[0])
            if any(states - written.get(n, states - STATES) < STATES for n in range(first, last + 1)):
                note = (
                    f"`{instruction}{rest.rstrip()}` comes less than {STATES} wait states after what writes its buffer"
                )
                raise TargetFault("E0918", f"`{name}` lacks wait states", note=note)
        states += int(rest, 0) + 1 if instruction == "s_nop" else 1
        if instruction in ("v_readlane_b32", "v_readfirstlane_b32"):
            written[int(re.findall(r"s(\d+)", rest)[0])] = states


def check(found: Needs, *, waves: int, products: int, loops: tuple[int, ...] = ()) -> None:
    """Takes a kernel of `waves` to a SIMD whose program has so many matrix instructions, of which the compiler may leave out
    those of `loops` that never take a step.

    Raises TargetFault E0918 for one that spills or that its SIMD cannot hold, E0919 for other matrix instructions."""
    wrong = complaints(found, registers=REGISTERS // waves)
    if wrong:
        hint = "smaller tiles, or fewer rows to a wave, leave more registers"
        raise TargetFault("E0918", f"`{found.kernel}` does not fit: {'; '.join(wrong)}", hint=hint)
    left_out = {0}
    for n in loops:
        left_out |= {n + m for m in left_out}
    got = sum(found.products.values())
    if products - got not in left_out:
        note = f"it has {got} matrix instructions, and its program {products}"
        raise TargetFault("E0919", f"the machine code of `{found.kernel}` is not its program's", note=note)
