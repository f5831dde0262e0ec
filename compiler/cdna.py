"""Passes that follow `map_blocks` for kernels of waves with MFMA (CDNA 3), as a list to read.

write_positions  positions as arithmetic
fetch_pages      block tables read where rows are fetched
split_rows       16 or 32 query rows to a wave
row_values       what all features of a row need, once a row
rescale_seldom   the running maximum moves only where it falls behind, if that was asked for
ping_pong        clusters of computing and of moving memory, in turns
place_fragments  lanes and units; what does not fit is refused
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.passes.fetch_pages import fetch_pages
from tilec.passes.ping_pong import Turns, ping_pong
from tilec.passes.place_fragments import place_fragments
from tilec.passes.rescale_seldom import rescale_seldom
from tilec.passes.row_values import row_values
from tilec.passes.split_rows import split_rows
from tilec.passes.tidy import tidy
from tilec.passes.write_positions import write_positions
from tilec.pipeline import Pass


@dataclass(frozen=True)
class WaveOptions:
    """`waves` share the rows of a tile; `turns` is what `ping_pong` takes; `seldom`: how far maxima may rise before outputs are
    rescaled, in powers of two; None: these are rescaled at every step."""

    waves: int = 8
    turns: Turns = field(default_factory=Turns)
    seldom: float | None = None


def wave_passes(options: WaveOptions = WaveOptions()) -> tuple[Pass, ...]:
    """The passes with what they are told; each raises ScheduleFaults for what it cannot express."""
    most = options.seldom
    seldom: tuple[Pass, ...] = () if most is None else (("rescale_seldom", lambda p: rescale_seldom(p, most)),)
    return (
        ("write_positions", lambda p: tidy(write_positions(p))),
        ("fetch_pages", fetch_pages),
        ("split_rows", lambda p: split_rows(p, options.waves, unit="wave")),
        ("row_values", row_values),
        *seldom,
        ("ping_pong", lambda p: ping_pong(p, options.turns)),
        ("place_fragments", place_fragments),
    )
