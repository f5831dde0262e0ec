"""What the assembler's text says of a kernel: registers, spills, memory, and whether its matrix instructions are the program's.

A kernel that does not keep what its schedule counts on is no kernel: it would run, and slowly.  Keys of the metadata: LLVM AMDGPU
usage, code object V5 metadata.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilec.dsl.faults import TargetFault

REGISTERS = 512  # vector registers of a lane that a SIMD has for all its waves: AMD CDNA 3 white paper
SHARED = 65_536  # bytes


@dataclass(frozen=True)
class Resources:
    """Vector registers (accumulation registers among them) and scalar ones of a wave; bytes of shared and of scratch memory;
    spilled registers; matrix instructions in the text."""

    vectors: int
    scalars: int
    shared: int
    scratch: int
    spills: int
    matrices: int


def read(assembly: str) -> Resources:
    """ValueError for text without metadata of one kernel."""

    def value(key: str) -> int:
        found = re.findall(rf"^\s*\.{key}:\s*(\d+)$", assembly, re.M)
        if len(found) != 1:
            raise ValueError(f"the metadata of the code object has {len(found)} times .{key}")
        return int(found[0])

    return Resources(
        value("vgpr_count"),
        value("sgpr_count"),
        value("group_segment_fixed_size"),
        value("private_segment_fixed_size"),
        value("vgpr_spill_count") + value("sgpr_spill_count"),
        len(re.findall(r"^\s+v_mfma_", assembly, re.M)),
    )


def check(assembly: str, name: str, *, waves: int, matrices: int, loops: tuple[int, ...] = ()) -> Resources:
    """The resources of a kernel of `waves` to a SIMD whose text has so many matrix instructions, of which the compiler may leave
    out those of `loops` that never take a step.

    Raises TargetFault E0918 for one that spills or that its SIMD cannot hold, E0919 for other matrix instructions."""
    found = read(assembly)
    hint = "smaller tiles, or fewer rows to a wave, leave more registers"
    if found.spills or found.scratch:
        said = f"{found.spills} registers are spilled, to {found.scratch} bytes of scratch"
        raise TargetFault("E0918", f"`{name}` does not fit its registers: {said}", hint=hint)
    limit = REGISTERS // waves
    if found.vectors > limit:
        note = f"a SIMD has {REGISTERS} for {waves} waves"
        raise TargetFault("E0918", f"`{name}` takes {found.vectors} registers of {limit}", note=note, hint=hint)
    if found.shared > SHARED:
        raise TargetFault("E0918", f"`{name}` takes {found.shared:,} bytes of shared memory of {SHARED:,}", hint=hint)
    left_out = {0}
    for n in loops:
        left_out |= {n + m for m in left_out}
    if matrices - found.matrices not in left_out:
        note = f"it has {found.matrices} matrix instructions, and its program {matrices}"
        raise TargetFault("E0919", f"the machine code of `{name}` is not its program's", note=note)
    return found
