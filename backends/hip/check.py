"""What a code object shows of a kernel: registers, spills, memory, and whether its matrix instructions are the program's.

A kernel that does not keep what its schedule counts on is no kernel: it would run, and slowly.
"""

from __future__ import annotations

import re
from collections import Counter

from tilec.dsl.faults import TargetFault
from tilec.targets.gfx942.codeobject import REGISTERS, read
from tilec.targets.gfx942.gate import Needs, complaints


def needs(code: bytes, assembly: str, name: str) -> Needs:
    """What a kernel takes, by the metadata of its code object and the assembler's text that this was made from."""
    k = read(code).kernels[name]
    instructions = re.findall(r"^\t([a-z]\w+)", assembly, re.M)
    return Needs(
        kernel=name,
        registers=k.vgprs,
        accumulators=k.agprs,
        scalars=k.sgprs,
        spills=k.vgpr_spills + k.sgpr_spills,
        scratch=k.scratch,
        lds=k.lds,
        products=Counter(x for x in instructions if x.startswith("v_mfma_")),
        barriers=instructions.count("s_barrier"),
        instructions=len(instructions),
    )


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
