"""From a listing to steps: every instruction that the emulator knows becomes something it can run.

What it does not know becomes a step that raises Unsupported when it is reached, so that code nobody runs costs nothing.
"""

from __future__ import annotations

from tilec.targets.gfx942.emulator.families import Builder
from tilec.targets.gfx942.emulator.families.constant import CONSTANT
from tilec.targets.gfx942.emulator.families.control import CONTROL
from tilec.targets.gfx942.emulator.families.convert import CONVERT
from tilec.targets.gfx942.emulator.families.crossbar import CROSSBAR
from tilec.targets.gfx942.emulator.families.floating import FLOATING
from tilec.targets.gfx942.emulator.families.integer import INTEGER
from tilec.targets.gfx942.emulator.families.lanes import LANE
from tilec.targets.gfx942.emulator.families.lds import LDS
from tilec.targets.gfx942.emulator.families.matrix import MATRIX
from tilec.targets.gfx942.emulator.families.memory import MEMORY
from tilec.targets.gfx942.emulator.families.scalar import SCALAR
from tilec.targets.gfx942.emulator.families.transcendental import TRANSCENDENTAL
from tilec.targets.gfx942.emulator.operands import Unsupported
from tilec.targets.gfx942.emulator.step import Step
from tilec.targets.gfx942.emulator.wave import Wave
from tilec.targets.gfx942.listing import Instruction, Listing

BUILDERS: dict[str, Builder] = {
    **SCALAR,
    **CONSTANT,
    **CONTROL,
    **INTEGER,
    **FLOATING,
    **TRANSCENDENTAL,
    **CONVERT,
    **LANE,
    **LDS,
    **CROSSBAR,
    **MEMORY,
    **MATRIX,
}


def decode(listing: Listing) -> list[Step]:
    """Steps by the numbers of their instructions, with the targets of branches."""
    out = []
    for x in listing.instructions:
        step = decode_one(x)
        if step.unit == "branch" and x.name.startswith(("s_branch", "s_cbranch")):
            step.target = listing.at.get(branch_target(x), -1)
        out.append(step)
    return out


def decode_one(x: Instruction) -> Step:
    """One step."""
    builder = BUILDERS.get(x.name)
    if builder is None:
        return _refusing(x, "the emulator knows no such instruction")
    try:
        return builder(x)
    except (Unsupported, ValueError) as error:
        return _refusing(x, str(error))


def branch_target(x: Instruction) -> int:
    """The address that a branch goes to: its operand counts words from the next instruction."""
    words = int(x.operands[0], 0)
    return x.address + 4 + 4 * (words - 0x10000 if words & 0x8000 else words)


def _refusing(x: Instruction, why: str) -> Step:
    def run(w: Wave) -> None:
        raise Unsupported(f"{x.address:#x} `{x.text}`: {why}")

    return Step(x, "internal", run, flow="none")
