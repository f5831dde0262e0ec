"""What the emulator complains of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["wait", "race", "barrier", "hazard", "undefined", "bounds", "runaway"]


@dataclass(frozen=True)
class Finding:
    """A defect of the code that ran: of one instruction (address in the file, text), one wave of one block.

    wait       a register used or overwritten while a load to it may be under way
    race       two waves touch LDS bytes with no barrier between, or LDS-DMA is not waited for
    barrier    waves pass different numbers of barriers
    hazard     too few wait states between two instructions (AMD Instinct MI300 ISA reference, "Manually inserted wait states")
    undefined  a value never written reaches an address, a condition or memory
    bounds     memory outside every buffer, or LDS outside the block's
    runaway    a wave ran more instructions than the limit
    """

    kind: Kind
    address: int
    text: str
    wave: int
    block: tuple[int, int, int]
    message: str
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}: {self.address:#x} `{self.text}`, wave {self.wave} of block {self.block}: {self.message}{times}"
