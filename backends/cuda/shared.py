"""Where buffers and barriers lie in a CTA's dynamic shared memory, and how many arrivals complete an mbarrier.

Every thread of a warp does what a role's statement says, so one warp is the smallest thing that can arrive: an instance of a
warpgroup arrives as its four warps, each when its own accesses are done, which needs no barrier inside the warpgroup.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.axes import constant, stage_bytes
from tilec.ir.nodes import Arrive, Barrier, Buffer, Copy, Program, Role, Send, Stmt, Sync, walk

ROWS = 8  # of a swizzle's period; a panel's rows start at multiples of so many of them
WIDEST = 128  # bytes of a row of a panel
WARPS = {"warp": 1, "warpgroup": 4}


@dataclass(frozen=True)
class Place:
    """Offset of the first stage, and bytes of one."""

    offset: int
    stage: int


@dataclass
class SharedMemory:
    """`total` bytes; `scratch`: four bytes that nothing reads; `numbers`: first hardware barrier of each named one."""

    buffers: dict[str, Place] = field(default_factory=dict)
    barriers: dict[str, Place] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    scratch: int = 0
    total: int = 0


def place(program: Program) -> SharedMemory:
    """Swizzled tiles first, then scalars and barriers.  Raises ValueError where there are more than 15 named barriers."""
    out, constants = SharedMemory(), dict(program.tile)
    for b in sorted(program.buffers, key=lambda b: not b.axes):
        if b.alias is not None:
            raise ValueError(f"{b.name}: the cuda backend does not reuse memory yet")
        stage = stage_bytes(b, constants)
        align = ROWS * _width(b) if b.axes else 4
        start = -(-out.total // align) * align
        if stage % align:
            raise ValueError(f"a stage of {b.name} is {stage} bytes, which is no multiple of {align}")
        out.buffers[b.name] = Place(start, stage)
        out.total = start + stage * b.stages
    out.total = -(-out.total // 8) * 8
    number = 1  # barrier 0 is that of __syncthreads
    for bar in program.barriers:
        if bar.kind == "named":
            out.numbers[bar.name] = number
            number += bar.stages
        else:
            out.barriers[bar.name] = Place(out.total, 8)
            out.total += 8 * bar.stages
    if number > 16:
        raise ValueError(f"{number - 1} named barriers, and there are 15")
    out.scratch = out.total
    out.total += 8
    return out


def _width(b: Buffer) -> int:
    """Bytes of a row of a swizzled panel."""
    width = dict(b.layout.params).get("bytes") if b.layout is not None else None
    return width if isinstance(width, int) else WIDEST


def extent(b: Buffer, axis: int, constants: dict[str, int]) -> int:
    """Lanes of a buffer along its axis of that number."""
    value = constant(b.axes[axis].size, constants)
    if value is None:
        raise ValueError(f"{b.name} has no constant size along {b.axes[axis].name}")
    return value


def arrivals(program: Program, bar: Barrier) -> int:
    """Hardware arrivals per phase: warps for an mbarrier, threads for a named barrier.  One warp of each CTA arrives for what
    copies and sends bring.  Raises ValueError where they share a barrier with other arrivals."""
    brought = [s for role in program.roles for s in walk(role.body) if _brings(s, bar)]
    if not brought:
        return bar.arrivals * unit_of(program, bar) * (32 if bar.kind == "named" else 1)
    arriving = {
        warps_of(r) for r in program.roles for s in walk(r.body) if isinstance(s, Arrive) and s.bar.name == bar.name
    }
    if arriving - {1}:
        raise ValueError(f"bytes and arrivals of several warps complete {bar.name}")
    return 1 if any(isinstance(s, Copy) and s.multicast for s in brought) else bar.arrivals


def _brings(s: Stmt, bar: Barrier) -> bool:
    return isinstance(s, Copy | Send) and s.signal is not None and s.signal.name == bar.name


def unit_of(program: Program, bar: Barrier) -> int:
    """Warps whose arrivals make one of the program's: those of the largest role that arrives, for which others arrive as often.

    Raises ValueError where none does, or where they share a named barrier, which counts threads."""
    units = {
        warps_of(role)
        for role in program.roles
        for s in walk(role.body)
        if isinstance(s, Arrive | Sync) and s.bar.name == bar.name
    }
    if not units or (len(units) > 1 and bar.kind == "named"):
        raise ValueError(f"arrivals on {bar.name} come from units of several sizes, or from none")
    return max(units)


def warps_of(role: Role) -> int:
    """Warps of one instance."""
    if role.unit not in WARPS:
        raise ValueError(f"role {role.name}: the cuda backend prints warps and warpgroups, not a {role.unit}")
    return WARPS[role.unit]
