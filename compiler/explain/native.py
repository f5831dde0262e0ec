"""What `explain` says of a native kernel beside the rest: where its tiles lie, who has which registers, and who waits for whom.

Offsets are those that the printer uses; registers are what roles trade among themselves; the timeline is `tilec.timeline`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilec.ir.attention import Attention
from tilec.ir.axes import buffer_lanes
from tilec.ir.expr import free_vars
from tilec.ir.nodes import Program, Role
from tilec.passes.place_buffers import register_words
from tilec.shapes import call_sizes
from tilec.targets import Target
from tilec.timeline import Timeline, timeline
from tilec.timeline_show import as_text, legend

BAR = 64  # columns of all of shared memory
POSITIONS = 4096  # rows and keys of a timeline where no shape is given
WARPGROUP = 128  # threads: what registers are traded by (PTX ISA, setmaxnreg)


@dataclass(frozen=True)
class Piece:
    """A buffer or the barriers: `stages` times `stage` bytes from `offset`."""

    name: str
    offset: int
    stage: int
    stages: int

    @property
    def bytes(self) -> int:
        return self.stage * self.stages


@dataclass(frozen=True)
class Share:
    """Registers of a role's threads, in whole warpgroups, of which all `warp` roles share one; `tiles`: what its tiles take of
    each thread."""

    role: str
    unit: str
    threads: int
    registers: int
    tiles: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class NativeFacts:
    """`timeline` None: `lacking` says why."""

    pieces: tuple[Piece, ...]
    total: int
    limit: int
    shares: tuple[Share, ...]
    pool: int  # registers of the unit
    sizes: Mapping[str, int]
    timeline: Timeline | None
    lacking: str = ""

    @property
    def used(self) -> int:
        """Registers of all roles."""
        groups = sum(s.threads * s.registers for s in self.shares if s.unit != "warp")
        return groups + max((s.threads * s.registers for s in self.shares if s.unit == "warp"), default=0)


def native_facts(
    program: Program, attn: Attention, target: Target, sizes: Mapping[str, int] | None = None
) -> NativeFacts | None:
    """None for a program whose roles do not trade registers: those of the portable backend, whose toolchain decides.

    `sizes` gives every symbol of the call; without it the timeline is of a call of POSITIONS rows and keys."""
    if all(r.registers is None for r in program.roles):
        return None
    pieces, total = shared_map(program)
    chosen = dict(sizes) if sizes is not None else sample_sizes(attn)
    try:
        drawn, lacking = timeline(program, target, call_sizes(attn, chosen)), ""
    except ValueError as reason:
        drawn, lacking = None, str(reason)
    shares = tuple(_share(program, r) for r in program.roles if r.registers is not None)
    return NativeFacts(pieces, total, target.shared_memory, shares, target.registers, chosen, drawn, lacking)


def shared_map(program: Program) -> tuple[tuple[Piece, ...], int]:
    """What lies where, by offset, and the bytes of all."""
    from tilec.backends.cuda.shared import place

    found = place(program)
    stages = {b.name: b.stages for b in program.buffers} | {b.name: b.stages for b in program.barriers}
    pieces = [Piece(n, p.offset, p.stage, stages[n]) for n, p in found.buffers.items()]
    if found.barriers:
        first = min(p.offset for p in found.barriers.values())
        pieces.append(Piece("barriers", first, 8, sum(stages[n] for n in found.barriers)))
    return tuple(sorted(pieces, key=lambda p: p.offset)), found.total


def sample_sizes(attn: Attention) -> dict[str, int]:
    """POSITIONS for symbols of rows and keys, 1 for others."""
    long = free_vars(attn.index(attn.q).extent) | free_vars(attn.index(attn.k).extent)
    return {n: POSITIONS if n in long else 1 for n in attn.extents}


def _share(program: Program, role: Role) -> Share:
    lanes = buffer_lanes((*program.buffers, *role.buffers), dict(program.tile))
    assert role.registers is not None
    threads = WARPGROUP * (1 if role.unit == "warp" else role.count)
    return Share(role.name, role.unit, threads, role.registers, register_words(role, lanes))


def to_data(f: NativeFacts) -> dict[str, Any]:
    """JSON values."""
    pieces = [{"name": p.name, "offset": p.offset, "stage": p.stage, "stages": p.stages} for p in f.pieces]
    shares = [
        {"role": s.role, "threads": s.threads, "registers": s.registers, "tiles": dict(s.tiles)} for s in f.shares
    ]
    t = f.timeline
    drawn = None
    if t is not None:
        spans = [[s.lane, s.kind, s.label, round(s.start), round(s.end)] for s in t.spans]
        drawn = {"lanes": list(t.lanes), "step": t.period, "spans": spans}
    return {
        "shared_map": {"pieces": pieces, "bytes": f.total, "limit": f.limit},
        "registers": {"roles": shares, "used": f.used, "pool": f.pool},
        "timeline": {"sizes": dict(f.sizes), "model": drawn, "lacking": f.lacking},
    }


def lines(f: NativeFacts) -> list[str]:
    """For a person."""
    out = ["", f"shared memory, {f.total:,} of {f.limit:,} bytes"]
    width = max(len(p.name) for p in f.pieces)
    for p in f.pieces:
        lo, hi = (round(BAR * x / f.limit) for x in (p.offset, p.offset + p.bytes))
        bar = " " * lo + "=" * max(1, hi - lo)
        size = f"{p.stages} x {p.stage:,}"
        out.append(f"  {p.offset:>7,}  {p.name:{width}}  {size:>12}  |{bar:{BAR}}|")
    out += ["", "registers"]
    width = max(len(s.role) for s in f.shares)
    for s in f.shares:
        tiles = " + ".join(f"{n} {words}" for n, words in s.tiles)
        held = f": tiles {tiles} = {sum(n for _, n in s.tiles)}" if s.tiles else ""
        out.append(
            f"  {s.role:{width}}  {s.threads:>4} threads x {s.registers:>3} = {s.threads * s.registers:>6,}{held}"
        )
    out += [f"  {f.used:,} of {f.pool:,}"]
    out += ["", "timeline of a block, for " + ", ".join(f"{n} = {v}" for n, v in f.sizes.items())]
    if f.timeline is None:
        return [*out, f"  none: {f.lacking}"]
    return [*out, *(f"  {x}" for x in (*as_text(f.timeline), *legend(f.timeline)))]
