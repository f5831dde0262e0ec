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
    from tilec.predict.times import BlockTime


@dataclass(frozen=True)
class MachineFacts:
    """`needs`: what the gate counts.  `block`: its clocks; None where `lacking` says why."""

    needs: Mapping[str, int]
    block: BlockTime | None = None
    lacking: str = ""


def machine_facts(
    made: Artifact, attn: Attention, source: Source, sizes: Mapping[str, int] | None, tile: Mapping[str, int]
) -> MachineFacts:
    """Of compiled machine code.  `sizes` gives every symbol of the call; `tile`: rows and keys."""
    from tilec.predict.times import NO_KEYS, block_time

    needs = made.metadata["machine"]
    if sizes is None or attn.k not in tile:
        return MachineFacts(needs, lacking="`--shape` has it timed by the model of cycles")
    try:
        found = block_time(made, attn, source, sizes, tile[attn.q], tile[attn.k])
    except TargetFault as lack:
        return MachineFacts(needs, lacking=lack.message)
    return MachineFacts(needs, found, "" if found else NO_KEYS)


def to_data(f: MachineFacts) -> dict[str, Any]:
    """JSON values.  `step`: clocks of a step of keys of a block; `timing`: of the loop that was timed, which is that over keys
    where `over_keys` says so."""
    if f.block is None:
        return {"needs": dict(f.needs), "timing": None, "lacking": f.lacking}
    step = {"step": f.block.step, "over_keys": f.block.over_keys}
    return {"needs": dict(f.needs), "timing": f.block.timing.to_data(), **step, "lacking": ""}


def lines(f: MachineFacts) -> list[str]:
    """For a person."""
    n = f.needs
    return [
        "",
        "machine code",
        f"  {n['instructions']:,} instructions, {n['products']} of them matrix instructions, {n['barriers']} barriers",
        f"  {n['registers']} registers of a lane, {n['spills']} spilled, {n['scratch']} bytes of scratch, {n['lds']:,} of LDS",
        f"  {_time(f.block) if f.block else f.lacking}",
    ]


def _time(b: BlockTime) -> str:
    if b.over_keys:
        return str(b.timing)
    share = f"matrix units busy {b.timing.matrix:.0%} of a block's time"
    return f"too few steps of keys to time one: {b.step:,.0f} clocks by its products, {share} (predicted)"
