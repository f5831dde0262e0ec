"""Passes that follow `map_blocks` for kernels of warp-wide matrix instructions (Ampere, Ada), as a list to read.

write_positions  positions as arithmetic
fetch_pages      block tables read where rows are fetched
split_rows       16 or 32 query rows to a warp
row_values       what all features of a row need, once a row
stage_copies     asynchronous copies in flight with products
place_buffers    layouts; what does not fit is refused

`shaped` runs these at one of the `points` of the tuning table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tilec.ir.nodes import Program
from tilec.passes.choose_tiles import Choice, choose_tiles
from tilec.passes.fetch_pages import fetch_pages
from tilec.passes.map_blocks import map_blocks
from tilec.passes.names import distinct_indices
from tilec.passes.place_buffers import place_buffers
from tilec.passes.row_values import row_values
from tilec.passes.split_rows import split_rows
from tilec.passes.stage_copies import Staging, stage_copies
from tilec.passes.tidy import tidy
from tilec.passes.write_positions import write_positions
from tilec.pipeline import Case, Pass, block_map
from tilec.targets import Target
from tilec.tune.ampere import Point
from tilec.tune.ampere import points as points

UNIT = 8  # registers that a thread is given at once


@dataclass(frozen=True)
class WarpOptions:
    """`warps` share the rows of a tile; `staging` is what `stage_copies` takes."""

    warps: int = 4
    staging: Staging = field(default_factory=Staging)


def warp_passes(options: WarpOptions = WarpOptions()) -> tuple[Pass, ...]:
    """The passes with what they are told; each raises ScheduleFaults for what it cannot express."""
    return (
        ("write_positions", lambda p: tidy(write_positions(p))),
        ("fetch_pages", fetch_pages),
        ("split_rows", lambda p: split_rows(p, options.warps, unit="warp")),
        ("row_values", row_values),
        ("stage_copies", lambda p: stage_copies(p, options.staging)),
        ("place_buffers", place_buffers),
    )


def shaped(program: Program, case: Case, point: Point) -> Iterator[tuple[str, Program]]:
    """At this point of the tuning table, through every pass that is left of one walk over the keys."""
    attn, order = distinct_indices(case.attn), block_map(case)
    if order.units is not None:
        order = replace(order, units=order.units * resident(point, case.target))
    choice = Choice(point.rows, point.keys, None, None, point.by)
    rest: tuple[Pass, ...] = (
        ("choose_tiles", lambda p: choose_tiles(p, attn, choice, pad="all")),
        ("map_blocks", lambda p: tidy(map_blocks(p, order))),
        *warp_passes(options_of(point)),
    )
    for name, run in rest:
        program = run(program)
        yield name, program


def resident(point: Point, machine: Target) -> int:
    """Blocks whose registers a multiprocessor has at once."""
    threads, each = point.warps * machine.warp, -(-point.registers // UNIT) * UNIT
    return max(1, machine.registers // (threads * each))


def options_of(point: Point) -> WarpOptions:
    """What the passes are told."""
    return WarpOptions(point.warps, Staging(point.stages, point.queries, point.registers))
