"""What a kernel's code object must show before it is taken: nothing in scratch memory, registers and LDS that fit, the matrix
instructions that the program asks for.

The numbers are those of the metadata note (LLVM, "User Guide for AMDGPU Backend", Code Object V3 Metadata and later); matrix
instructions are counted in the disassembly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilec.targets.gfx942.codeobject import REGISTERS, CodeObject, waves_of
from tilec.targets.gfx942.listing import Instruction, Listing

LDS = 65536


@dataclass(frozen=True)
class Needs:
    """What one kernel takes.  `registers`: of a lane, as allocated; `scratch`: bytes of a lane; `products`: how many of each
    matrix instruction its text holds."""

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

    @property
    def waves(self) -> int:
        """Of a SIMD, as far as registers allow."""
        return waves_of(self.registers)


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
    k, text = code.kernels[kernel], text_of(code, listing, kernel)
    return Needs(
        kernel=kernel,
        registers=k.vgprs,
        accumulators=k.agprs,
        scalars=k.sgprs,
        spills=k.vgpr_spills + k.sgpr_spills,
        scratch=k.scratch,
        lds=k.lds + dynamic_lds,
        products=dict(Counter(x.name for x in text if x.name.startswith("v_mfma_"))),
        barriers=count(text, "s_barrier"),
        instructions=len(text),
    )


def complaints(
    found: Needs, *, registers: int, lds: int = LDS, products: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Why a kernel is not taken, a line each; empty where it is.  `products`: exactly these matrix instructions."""
    out = []
    if found.spills:
        out.append(f"{found.spills} registers are spilled")
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
