"""What a kernel's code object must show before it is taken: nothing in scratch memory, registers and LDS that fit, the matrix
instructions that the program asks for.

The numbers are those of the metadata note (LLVM, "User Guide for AMDGPU Backend", Code Object V3 Metadata and later); matrix
instructions are counted in the text.

Scalars that find no register are kept in lanes of vector registers, where one `v_readlane` brings one back: that is nothing
outside of loops with matrix instructions, and inside a loop little if there are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilec.targets.gfx942.codeobject import REGISTERS, CodeObject, Kernel, waves_of
from tilec.targets.gfx942.listing import Instruction, Listing

LDS = 65536
MATRIX, LANES = "v_mfma_", ("v_readlane_b32", "v_writelane_b32")
# Matrix instructions, of 16 issue slots and more, to each of LANES in their loop (AMD CDNA 3 ISA, 7.1: 8 passes).
SHARE = 2


@dataclass(frozen=True)
class Needs:
    """What one kernel takes.  `registers`: of a lane, as allocated; `spills`: of vector registers; `scratch`: bytes of a lane;
    `products`: how many of each matrix instruction its text holds; `kept`: of each loop with some, their number and how often it
    reads or writes a scalar that is kept in lanes."""

    kernel: str
    registers: int
    accumulators: int
    scalars: int
    spills: int
    scratch: int
    lds: int
    products: Mapping[str, int]
    barriers: int
    instructions: int
    kept: tuple[tuple[int, int], ...] = ()

    @property
    def waves(self) -> int:
        """Of a SIMD, as far as registers allow."""
        return waves_of(self.registers)

    def to_data(self) -> dict[str, int]:
        """JSON values; `kept`: the most that a loop with products does with scalars that are kept in lanes."""
        names = ("registers", "accumulators", "scalars", "spills", "scratch", "lds", "barriers", "instructions")
        kept = max((n for _, n in self.kept), default=0)
        return {n: getattr(self, n) for n in names} | {"products": sum(self.products.values()), "kept": kept}


def text_of(code: CodeObject, listing: Listing, kernel: str) -> tuple[Instruction, ...]:
    """A kernel's instructions: from its entry to the next kernel's."""
    entry = code.kernels[kernel].entry
    after = min((k.entry for k in code.kernels.values() if k.entry > entry), default=1 << 62)
    return tuple(x for x in listing.instructions if entry <= x.address < after)


def count(instructions: Iterable[Instruction], *names: str) -> int:
    """How many of the instructions have one of these names, or begin with one that ends in an underscore."""
    return sum(any(x.name == n or (n.endswith("_") and x.name.startswith(n)) for n in names) for x in instructions)


def needs(code: CodeObject, listing: Listing, kernel: str, *, dynamic_lds: int = 0) -> Needs:
    """What a kernel takes; `dynamic_lds` bytes come with the launch."""
    text = text_of(code, listing, kernel)
    at = {x.address: n for n, x in enumerate(text)}
    jumps = [(at.get(after(x)), n) for n, x in enumerate(text) if x.name.startswith(("s_branch", "s_cbranch"))]
    loops = [(first, last) for first, last in jumps if first is not None and first <= last]
    return taken(code.kernels[kernel], [x.name for x in text], loops, dynamic_lds)


def after(branch: Instruction) -> int:
    """Where a branch goes: words from the next instruction, in 16 bits."""
    words = int(branch.operands[0])
    return branch.address + branch.size + 4 * (words - (words >> 15 << 16))


def taken(k: Kernel, names: Sequence[str], loops: Iterable[tuple[int, int]], dynamic_lds: int = 0) -> Needs:
    """What a kernel takes whose text has instructions of these names; `loops`: numbers of the first and the last of each."""
    inside = [names[first : last + 1] for first, last in loops]
    kept = [(sum(x.startswith(MATRIX) for x in part), sum(x.startswith(LANES) for x in part)) for part in inside]
    return Needs(
        kernel=k.name,
        registers=k.vgprs,
        accumulators=k.agprs,
        scalars=k.sgprs,
        spills=k.vgpr_spills,
        scratch=k.scratch,
        lds=k.lds + dynamic_lds,
        products=dict(Counter(x for x in names if x.startswith(MATRIX))),
        barriers=sum(x == "s_barrier" for x in names),
        instructions=len(names),
        kept=tuple((products, n) for products, n in kept if products) if k.sgpr_spills else (),
    )


def complaints(
    found: Needs, *, registers: int, lds: int = LDS, products: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Why a kernel is not taken, a line each; empty where it is.  `products`: exactly these matrix instructions."""
    out = []
    if found.spills:
        out.append(f"{found.spills} registers are spilled")
    out += [f"{n} times a loop of {m} products brings spilled scalars back" for m, n in found.kept if n * SHARE > m]
    if found.scratch:
        out.append(f"{found.scratch} bytes of a lane are in scratch memory")
    if found.registers > registers:
        out.append(
            f"{found.registers} registers of a lane, of {registers} that {REGISTERS // registers} waves of a SIMD have"
        )
    if found.lds > lds:
        out.append(f"{found.lds} bytes of LDS of {lds}")
    if products is not None:
        for name in sorted({*products, *found.products}):
            wanted, got = products.get(name, 0), found.products.get(name, 0)
            if wanted != got:
                out.append(f"{got} of `{name}`, where the program has {wanted}")
    return tuple(out)
