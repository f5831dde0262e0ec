"""One decoded instruction: what it does, and what the checks need to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tilec.targets.gfx942.emulator.operands import M0, SCALARS, VECTORS, Operand, operand
from tilec.targets.gfx942.emulator.wave import Array, Wave
from tilec.targets.gfx942.listing import Instruction

Unit = Literal["valu", "trans", "mfma", "salu", "smem", "lds", "vmem", "branch", "wait", "barrier", "internal", "end"]
Flow = Literal["vector", "scalar", "lanes", "select", "matrix", "first", "load", "none"]
Run = Callable[[Wave], None]

VECTOR_BITS = (1 << VECTORS) - 1
M0_BIT = 1 << (VECTORS + M0)
SCC_BIT = 1 << (VECTORS + SCALARS)


@dataclass
class Step:
    """`reads` and `writes` are sets of registers (see `operands`); `flow` says how undefined lanes travel through it.

    `sinks`: registers whose undefined lanes are an error at once (addresses, data that leaves for memory, conditions).
    `passes` of a matrix instruction are of 4 clocks; `states` is how many wait states it takes.
    `target` of a branch is the number of the instruction it may go to."""

    source: Instruction
    unit: Unit
    run: Run
    reads: int = 0
    writes: int = 0
    sinks: int = 0
    flow: Flow = "vector"
    passes: int = 0
    states: int = 1
    target: int = -1
    dst: Operand | None = None
    accumulator: Operand | None = None
    counter: str = ""  # vm or lgkm: the counter that a memory operation raises
    loads: bool = False  # whether its writes arrive later
    parts: tuple[tuple[int, int], ...] = ()  # (register written, set of registers it depends on), where not on all read
    takes: Callable[[Wave], Array] | None = None  # the lane that each lane reads, where `flow` is lanes
    noted: bool = field(init=False)  # whether rules of wait states start from it
    guarded: bool = field(init=False)  # whether it must not follow closely on what wrote a vector register
    stops: bool = field(init=False)  # whether the wave may have to give way
    touch: int = field(init=False)
    vector_reads: tuple[int, ...] = field(init=False)
    vector_writes: tuple[int, ...] = field(init=False)
    vector_sinks: tuple[int, ...] = field(init=False)
    scalar_reads: int = field(init=False)
    scalar_writes: int = field(init=False)
    scalar_sinks: int = field(init=False)

    def __post_init__(self) -> None:
        self.guarded = self.unit == "mfma" or self.source.form == "dpp"
        self.stops = self.unit in ("barrier", "end")
        self.settle()

    def settle(self) -> None:
        """Derives what the loop reads; to be called again after a change of `reads`, `writes` or `sinks`."""
        self.noted = self.unit in ("valu", "trans", "mfma") or (self.unit == "salu" and self.writes & M0_BIT != 0)
        self.touch = self.reads | self.writes
        self.vector_reads, self.vector_writes = vectors(self.reads & ~self.sinks), vectors(self.writes)
        self.vector_sinks = vectors(self.sinks)
        self.scalar_reads, self.scalar_writes = self.reads >> VECTORS, self.writes >> VECTORS
        self.scalar_sinks = self.sinks >> VECTORS


def vectors(mask: int) -> tuple[int, ...]:
    """Numbers of the vector registers in a set."""
    mask &= VECTOR_BITS
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return tuple(out)


def union(*operands: Operand) -> int:
    """The set of registers that operands name."""
    out = 0
    for x in operands:
        out |= x.mask
    return out


def operands_of(x: Instruction) -> list[Operand]:
    """Its operands, parsed."""
    return [operand(t) for t in x.operands]
