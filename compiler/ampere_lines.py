"""Which schedule lines a kernel of warp-wide matrix instructions can honour; one that it cannot is an error, never a no-op.

E0808  warps or stages out of range
E0811  a line that its passes do not decide
E0812  a tile size that its matrix instructions do not have
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.dsl.faults import Fault, ScheduleFault
from tilec.ir.attention import Attention
from tilec.line_faults import at, refused, tile_faults
from tilec.passes.split_rows import LEGAL
from tilec.passes.stage_copies import STAGES
from tilec.schedule import Schedule

DEPTH = 16  # keys of one step of the product with values, and of a pair of columns of the one with queries
WIDEST = 256  # keys of a tile
WARPS = (1, 2, 4, 8)


def faults(attn: Attention, schedule: Schedule) -> Iterator[Fault]:
    """One for every line that cannot be honoured."""
    yield from _tiles(attn, schedule)
    yield from _warps(attn, schedule)
    yield from _others(schedule)


def row_tiles() -> tuple[int, ...]:
    """Rows that some number of warps share out."""
    return tuple(sorted({n * count for n in LEGAL["warp"] for count in WARPS}))


def _tiles(attn: Attention, s: Schedule) -> Iterator[Fault]:
    legal = {attn.q: row_tiles(), attn.k: range(DEPTH, WIDEST + 1, DEPTH)}
    notes = {
        attn.q: "each of 1, 2, 4 or 8 warps has 16 or 32 rows",
        attn.k: f"tile sizes along {attn.k} are multiples of {DEPTH} up to {WIDEST}",
    }
    return tile_faults(attn, s, legal, notes)


def _warps(attn: Attention, s: Schedule) -> Iterator[Fault]:
    if s.stages is not None and s.stages not in STAGES:
        yield ScheduleFault("E0808", f"{s.stages} stages of keys and values", at(s, "stages"), hint="1 and 2 are legal")
    if s.warps is None:
        return
    span, count = at(s, "warps"), s.warps.get("warp")
    if count is None:
        ((_, number),) = s.warps.args
        line = f"warps {s.warps.name}(consumer = {number})"
        yield refused(line, span, "every warp copies and multiplies", "`warps split_q(4)`")
    elif count not in WARPS:
        near = min(WARPS, key=lambda n: (abs(n - count), n))
        yield ScheduleFault("E0808", f"{count} warps", span, hint=f"`warps split_q({near})` is the nearest")
    else:
        size, some = s.size(attn.q), dict(s.choices).get(attn.q, ())
        rows = some if size is None else (size,)
        if rows and not any(count * n in rows for n in LEGAL["warp"]):
            note = f"each of {count} warps has 16 or 32 rows, and the tile has {' or '.join(map(str, rows))}"
            hint = f"`{attn.q} = {16 * count}`"
            yield ScheduleFault("E0812", f"`warps split_q({count})` does not fit the tile", span, note=note, hint=hint)


def _others(s: Schedule) -> Iterator[Fault]:
    if s.cluster is not None:
        yield refused(f"cluster {s.cluster}", at(s, "cluster"), "each block copies for itself")
    if s.overlap:
        note = "a warp waits for each of its products; other warps and blocks run meanwhile"
        yield refused("overlap on", at(s, "overlap"), note)
    if s.split is not None:
        name, count = s.split
        line = f"split {name} = {'auto' if count is None else count}"
        yield refused(line, at(s, "split"), "a block walks all keys of its rows")
    if s.rescale is not None and s.rescale[0] != "delayed":
        line = " ".join(["rescale", s.rescale[0], *(() if s.rescale[1] is None else (f"{s.rescale[1]:g}",))])
        note = "the output is rescaled at every step, and divided by the sum once"
        yield refused(line, at(s, "rescale"), note, "remove the line, or write `rescale delayed`")
    if s.skip == "table":
        yield refused("skip table", at(s, "skip"), "tables of tiles", "remove the line, or write `skip proved`")
    if s.map is not None and s.map[0] == "xcd":
        yield refused("map xcd", at(s, "map"), "there is one L2 for all blocks", "`map longest_first` is the nearest")
