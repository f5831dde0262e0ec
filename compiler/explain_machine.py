"""What `explain` says of a kernel's machine code on gfx942: what the gate sees of it, and how long a step takes by the model of
cycles, for which the emulator runs a block of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilec.dsl.faults import Source, TargetFault
from tilec.ir.attention import Attention

if TYPE_CHECKING:
    from tilec.backends.base import Artifact
    from tilec.targets.gfx942.cycles import Timing


@dataclass(frozen=True)
class MachineFacts:
    """`needs`: what the gate counts.  `timing`: of a block; None where `lacking` says why."""

    needs: Mapping[str, int]
    timing: Timing | None = None
    lacking: str = ""


def machine_facts(
    made: Artifact, attn: Attention, source: Source, sizes: Mapping[str, int] | None, tile: Mapping[str, int]
) -> MachineFacts:
    """Of compiled machine code.  `sizes` gives every symbol of the call; `tile`: rows and keys."""
    from tilec.wave_times import timing_of

    needs = made.metadata["machine"]
    if sizes is None or attn.k not in tile:
        return MachineFacts(needs, lacking="`--shape` has it timed by the model of cycles")
    try:
        timing = timing_of(made, attn, source, sizes, tile[attn.q], tile[attn.k])
    except TargetFault as lack:
        return MachineFacts(needs, lacking=lack.message)
    if not timing.matrix:
        return MachineFacts(needs, lacking="its first and its last block have no keys")
    return MachineFacts(needs, timing)


def to_data(f: MachineFacts) -> dict[str, Any]:
    """JSON values."""
    timing = None if f.timing is None else f.timing.to_data()
    return {"needs": dict(f.needs), "timing": timing, "lacking": f.lacking}


def lines(f: MachineFacts) -> list[str]:
    """For a person."""
    n = f.needs
    return [
        "",
        "machine code",
        f"  {n['instructions']:,} instructions, {n['products']} of them matrix instructions, {n['barriers']} barriers",
        f"  {n['registers']} registers of a lane, {n['spills']} spilled, {n['scratch']} bytes of scratch, {n['lds']:,} of LDS",
        f"  {f.timing or f.lacking}",
    ]
