"""Passes that follow `map_blocks` for native Hopper kernels, as a list to read.

use_boxes        loads that the tensor memory accelerator can do
write_positions  positions as arithmetic
split_rows       64 query rows to a warpgroup
overlap          scores of a step in flight with the values of the one before
specialize       a producer warp, rings and barriers, turns, the scheduler
place_buffers    layouts; what does not fit is refused
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.nodes import Program
from tilec.passes.overlap import Pipeline, overlap
from tilec.passes.place_buffers import place_buffers
from tilec.passes.specialize import Roles, specialize
from tilec.passes.split_rows import split_rows
from tilec.passes.tidy import tidy
from tilec.passes.use_boxes import use_boxes
from tilec.passes.write_positions import write_positions
from tilec.pipeline import Pass


@dataclass(frozen=True)
class HopperOptions:
    """Query tiles have 64 rows for each of `warpgroups`; `pipeline` and `roles` are what `overlap` and `specialize` take."""

    warpgroups: int = 2
    pipeline: Pipeline = field(default_factory=Pipeline)
    roles: Roles = field(default_factory=Roles)


def hopper_passes(options: HopperOptions = HopperOptions()) -> tuple[Pass, ...]:
    """The passes with what they are told; each raises ScheduleFaults for what it cannot express."""
    return (
        ("use_boxes", lambda p: use_boxes(p, inputs(p))),
        ("write_positions", lambda p: tidy(write_positions(p))),
        ("split_rows", lambda p: split_rows(p, options.warpgroups)),
        ("overlap", lambda p: overlap(p, options.pipeline)),
        ("specialize", lambda p: specialize(p, options.roles)),
        ("place_buffers", place_buffers),
    )


def inputs(program: Program) -> frozenset[str]:
    """Queries, keys and values."""
    return frozenset(t.name for t in program.tensors if t.mode == "in")
