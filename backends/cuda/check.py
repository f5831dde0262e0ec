"""What the assembler says of a kernel: registers, spills, and products that it had to wait for one by one.

Messages of ptxas 13.0: C7504-C7508 give up the trade of registers between roles, C7509-C7518 and C7520 serialise asynchronous
products, C7602 is an operand that the hardware does not take.  C7519 (an arrive put in) costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilec.dsl.faults import TargetFault

HARMFUL = frozenset({*range(7504, 7519), 7520, 7602})
TOLERATED = 16  # bytes of spills: a producer of 24 registers may keep two scalars in memory, outside the key loops


@dataclass(frozen=True)
class Resources:
    """Registers at entry, bytes of spill stores and loads together."""

    registers: int
    spills: int


def check(log: str, name: str, *, outside: bool = False) -> Resources:
    """Reads what `build` logged.  `outside`: spills are allowed outside of key loops, which the machine code tells.

    Raises TargetFault E0918 for a kernel that would run, but not as its program says."""
    for number, text in re.findall(r"\(C(\d{4})\)[\s:]*([^\n]*)", log):
        if int(number) in HARMFUL:
            raise TargetFault(
                "E0918",
                f"the assembler does not keep the schedule of `{name}`",
                note=f"C{number}: {text.strip()}",
                hint="smaller tiles, or another `warps` line, leave more registers",
            )
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))
    if spills > TOLERATED and not outside:
        raise TargetFault(
            "E0918",
            f"`{name}` does not fit its registers: {spills} bytes are spilled",
            hint="smaller tiles, or another `warps` line, leave more registers",
        )
    found = re.search(r"Used (\d+) registers", log)
    if found is None:
        raise ValueError("the log of the assembler does not say how many registers it used")
    return Resources(int(found[1]), spills)
