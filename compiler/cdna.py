"""Passes that follow `map_blocks` for kernels of waves with MFMA (CDNA 3), as a list to read.

write_positions  positions as arithmetic
fetch_pages      block tables read where rows are fetched
values_apart     a second tile for values that are keys, which lie in shared memory features first
split_rows       16 or 32 query rows to a wave
row_values       what all features of a row need, once a row
rescale_seldom   the running maximum moves only where it falls behind, if that was asked for
ping_pong        clusters of computing and of moving memory, in turns
place_fragments  lanes and units; what does not fit is refused

`shaped` runs these at one of the `points` of the tuning table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilec.ir.attention import Attention
from tilec.ir.expr import Int
from tilec.ir.nodes import Interleave, Program
from tilec.passes.choose_tiles import Choice, choose_tiles
from tilec.passes.fetch_pages import fetch_pages
from tilec.passes.map_blocks import map_blocks
from tilec.passes.names import distinct_indices
from tilec.passes.ping_pong import Turns, ping_pong
from tilec.passes.place_fragments import place_fragments
from tilec.passes.rescale_seldom import rescale_seldom
from tilec.passes.row_values import row_values
from tilec.passes.split_rows import split_rows
from tilec.passes.tidy import tidy
from tilec.passes.values_apart import values_apart
from tilec.passes.wave_operands import FEATURES
from tilec.passes.write_positions import write_positions
from tilec.pipeline import Case, Pass, block_map
from tilec.tune.cdna import Point as Point
from tilec.tune.cdna import points as points


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
        ("values_apart", values_apart),
        ("split_rows", lambda p: split_rows(p, options.waves, unit="wave")),
        ("row_values", row_values),
        *seldom,
        ("ping_pong", lambda p: ping_pong(p, options.turns)),
        ("place_fragments", place_fragments),
    )


def shaped(program: Program, case: Case, point: Point) -> Iterator[tuple[str, Program]]:
    """At this point of the tuning table, through every pass that is left of one walk over the keys."""
    attn, order = distinct_indices(case.attn), block_map(case)
    choice = Choice(point.rows, point.keys, point.waves, None, point.by)
    rest: tuple[Pass, ...] = (
        ("choose_tiles", lambda p: choose_tiles(p, attn, choice, pad=FEATURES)),
        ("map_blocks", lambda p: tidy(map_blocks(p, order))),
        *wave_passes(options_of(point, attn)),
    )
    for name, run in rest:
        program = run(program)
        yield name, program


def options_of(point: Point, attn: Attention) -> WaveOptions:
    """What the passes are told."""
    rows = point.rows // point.waves
    deep = 8 if rows == 32 else 16  # contracted by one instruction, of rows x rows
    keys = sum(_extent(attn, d) for d in attn.contracted) // deep * point.keys // rows
    values = _extent(attn, attn.feature) // rows * point.keys // deep
    read = (keys // 2 - point.keys_ahead // (2 * deep), values // 2 - values * point.values_ahead // (2 * point.keys))
    scores, outputs = (interleaved(n, r) for n, r in zip((keys, values), read, strict=True))
    turns = Turns(
        offset=point.turns,
        keys_ahead=point.keys_ahead,
        values_ahead=point.values_ahead,
        scores=scores if point.turns else mixed(keys + values),
        outputs=outputs if point.turns else (),
        registers=point.registers,
    )
    return WaveOptions(point.waves, turns, point.seldom)


def interleaved(matrices: int, reads: int) -> tuple[Interleave, ...]:
    """An order of a compute cluster's instructions: two reads from shared memory, then one more behind each product as long as
    there are some, so that fragments are there before the product that takes them."""
    behind = max(0, min(matrices, reads - 2))
    first = (Interleave(1, (("lds_read", 2),)),) if reads > 1 else ()
    both = (Interleave(behind, (("matrix", 1), ("lds_read", 1))),) if behind else ()
    left = matrices - behind
    return (*first, *both, *((Interleave(left, (("matrix", 1),)),) if left else ()))


def mixed(matrices: int) -> tuple[Interleave, ...]:
    """An order of the one compute cluster of a wave that has a SIMD to itself: reads, exponentials and the rest of the softmax in
    slots behind products, of which one of 32 rows leaves 7 (AMD matrix instruction calculator, cdna3: co-executed VALU)."""
    half = matrices // 2
    first = (("matrix", 1), ("lds_read", 1), ("vector", 3), ("special", 1))
    return (
        Interleave(1, (("lds_read", 4),)),
        Interleave(half, first),
        Interleave(matrices - half, (("matrix", 1), ("vector", 5))),
    )


def _extent(attn: Attention, name: str) -> int:
    """Of a feature index, as its tile is padded."""
    extent = attn.index(name).extent
    return -(-extent.value // FEATURES) * FEATURES if isinstance(extent, Int) else 1
