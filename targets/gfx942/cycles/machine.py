"""What the model takes of the machine, and of each instruction.

A SIMD looks once in 4 clocks at its waves and issues at most one instruction of each kind, from different waves; matrix and
vector instructions are of one kind.  Sources: AMD Instinct MI300 ISA reference (4 clocks an instruction, a quarter of the rate
for transcendentals), AMD matrix instruction calculator (passes), AMD CDNA 3 white paper (64 bytes a clock from the vector cache,
one LDS of 128 bytes a clock for a compute unit).  Latencies are assumed: those of memory are 300 to 500 ns under load.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tilec.targets.gfx942.emulator.families.control import waited
from tilec.targets.gfx942.emulator.step import Step

Kind = Literal["vector", "scalar", "lds", "memory", "branch", "internal"]
KINDS: dict[str, Kind] = {"valu": "vector", "trans": "vector", "mfma": "vector", "salu": "scalar", "smem": "scalar"}
KINDS |= {"lds": "lds", "vmem": "memory", "branch": "branch"}
BYTES = {
    "dwordx4": 16,
    "dwordx3": 12,
    "dwordx2": 8,
    "dword": 4,
    "short": 2,
    "ushort": 2,
    "sshort": 2,
    "byte": 1,
    "ubyte": 1,
}
WIDTH = re.compile(r"_(dwordx\d|dword|[us]?short|[us]?byte)(?:_|$)")
LANES = 64


@dataclass(frozen=True)
class Machine:
    """Clocks.  `result` is how long after a matrix instruction's last pass others can read what it wrote."""

    simds: int = 4
    issue: int = 4
    transcendental: int = 16
    pass_: int = 4
    result: int = 8
    lds_latency: int = 64
    memory_latency: int = 700
    memory_bytes: int = 64  # a clock
    scalar_latency: int = 200
    taken: int = 16  # a branch that is taken: until the next instruction


MI300X = Machine()


@dataclass(frozen=True)
class Action:
    """What an instruction asks of the machine.  `busy`: clocks of the vector unit's slot, or of the memory pipe."""

    kind: Kind
    name: str
    busy: int = 0
    matrix: int = 0  # clocks of the matrix unit
    reads: int = 0  # registers that must be there, but for an accumulator that is passed on
    writes: int = 0
    waits: tuple[int, int] | None = None
    idle: int = 0  # clocks that the wave itself stays away
    priority: int | None = None
    barrier: bool = False
    counter: str = ""
    scalar_load: bool = False
    address: int = 0


def action_of(step: Step, machine: Machine) -> Action:
    """The action of one decoded instruction."""
    x, kind = step.source, KINDS.get(step.unit, "internal")
    if step.unit == "mfma":
        passed_on = step.accumulator.mask if step.accumulator is not None else 0
        return Action(
            kind,
            x.name,
            machine.issue,
            step.passes * machine.pass_,
            step.reads & ~passed_on,
            step.writes,
            address=x.address,
        )
    busy = machine.transcendental if step.unit == "trans" else machine.issue
    if step.unit == "vmem":
        width = WIDTH.search(x.name)
        busy = max(1, (BYTES[width[1]] if width else 4) * LANES // machine.memory_bytes)
    return Action(
        kind,
        x.name,
        busy,
        reads=step.touch,
        writes=step.writes,
        waits=waited(x) if step.unit == "wait" else None,
        idle=(step.states - 1) * machine.issue if x.name == "s_nop" else 0,
        priority=int(x.operands[0], 0) if x.name == "s_setprio" else None,
        barrier=step.unit == "barrier",
        counter=step.counter,
        scalar_load=step.unit == "smem",
        address=x.address,
    )
