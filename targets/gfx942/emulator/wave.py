"""The state of one wave: 64 lanes of vector registers, scalar registers, program counter, outstanding memory operations.

Vector registers are rows of 64 dwords, seen as unsigned, signed and floating; scalar registers are Python integers.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilec.targets.gfx942.emulator.operands import EXEC, SCALARS, VECTORS

if TYPE_CHECKING:
    from tilec.targets.gfx942.emulator.workgroup import Workgroup

LANES = 64
ALL = (1 << LANES) - 1
POISON = 0x7FF7DEAD  # a NaN as single, and as the high half of a pair of bf16

Array = npt.NDArray[Any]


@lru_cache(maxsize=8192)
def lanes_of(mask: int) -> Array:
    """The lanes of a 64-bit mask, as 64 booleans that are not to be written to."""
    out = np.unpackbits(np.frombuffer(mask.to_bytes(8, "little"), np.uint8), bitorder="little").view(np.bool_)
    out.setflags(write=False)
    return out


def mask_of(lanes: Array) -> int:
    """The 64-bit mask of 64 booleans."""
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


class Wave:
    """`exec_mask` mirrors the two exec registers; every write to scalar registers goes through `put` and `put64`."""

    def __init__(self, group: Workgroup, number: int) -> None:
        self.group, self.number = group, number
        self.v: Array = np.full((VECTORS, LANES), POISON, np.uint32)
        self.u: list[Array] = list(self.v)
        self.f: list[Array] = [row.view(np.float32) for row in self.u]
        self.i: list[Array] = [row.view(np.int32) for row in self.u]
        self.s: list[int] = [POISON] * SCALARS
        self.scc = 0
        self.exec_mask = ALL
        self.full = True
        self.lanes = lanes_of(ALL)
        self.s[EXEC] = self.s[EXEC + 1] = 0xFFFFFFFF
        self.mode = 0
        self.pc = 0  # number of the next instruction
        self.epoch = 0  # barriers passed
        self.executed = 0
        self.done = False
        self.at_barrier = False
        # what the checks keep
        self.pending = 0  # registers that an outstanding load will write
        self.vm: deque[Any] = deque()
        self.lgkm: deque[Any] = deque()
        self.undefined: list[int] = [ALL] * VECTORS  # lanes never written, by register
        self.undefined_bits: list[int] = [0xFFFFFFFF] * (SCALARS + 1)  # the same of scalar registers, SCC last
        self.unknown = (1 << (VECTORS + SCALARS + 1)) - 1  # registers with anything undefined
        self.origins: dict[int, str] = {}  # register -> where what is undefined in it comes from
        self.clock = 0  # wait states since the start
        self.hot = 0  # registers that a wait-state rule may concern
        self.hazards: list[Any] = []
        self.recent: deque[Any] = deque(maxlen=2)  # the last vector instructions, with their clocks
        self.scratch: Array = np.full((0, LANES), POISON, np.uint32)
        self.extra = 0  # bank cycles or a taken branch of the instruction just run, for the trace

    def set_exec(self, mask: int) -> None:
        """Sets both exec registers."""
        self.s[EXEC], self.s[EXEC + 1] = mask & 0xFFFFFFFF, mask >> 32
        self.exec_mask, self.full, self.lanes = mask, mask == ALL, lanes_of(mask)

    def get64(self, first: int) -> int:
        """A pair of scalar registers."""
        return self.s[first] | self.s[first + 1] << 32

    def put(self, register: int, value: int) -> None:
        """Writes the low 32 bits of a value to a scalar register."""
        self.s[register] = value & 0xFFFFFFFF
        if register >= EXEC:
            self.set_exec(self.get64(EXEC))

    def put64(self, first: int, value: int) -> None:
        """Writes a pair of scalar registers."""
        self.s[first], self.s[first + 1] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
        if first >= EXEC:
            self.set_exec(self.get64(EXEC))

    def write(self, register: int, value: Array) -> None:
        """Writes a vector register in the active lanes: 64 values, or one for all, of any 32-bit type."""
        row = self.u[register]
        if value.dtype != np.uint32:
            value = value.view(np.uint32)
        if self.full:
            row[...] = value
        else:
            np.copyto(row, value, where=self.lanes)

    def scalars(self) -> dict[str, int]:
        """The scalar registers by name, for a person."""
        return {f"s{n}": x for n, x in enumerate(self.s[:102])}
