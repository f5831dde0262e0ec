"""Which schedule lines a kernel of waves can honour; one that it cannot is an error, never a no-op.

E0808  waves or stages out of range
E0811  a line that its passes do not decide
E0812  a tile size that its matrix instructions do not have
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.dsl.faults import Fault, ScheduleFault
from tilec.ir.attention import Attention
from tilec.line_faults import at, refused, tile_faults
from tilec.passes.split_rows import LEGAL
from tilec.schedule import Schedule

BLOCK = 4  # keys that a lane turns at once
WIDEST = 256  # keys of a tile
TURNS = 8  # waves that take turns: two for each SIMD
WAVES = (4, 8)
STAGES = 2
FARTHEST = 15  # powers of two that f16 holds


def faults(attn: Attention, schedule: Schedule) -> Iterator[Fault]:
    """One for every line that cannot be honoured."""
    rows = sorted({n * count for n in LEGAL["wave"] for count in WAVES})
    legal = {attn.q: rows, attn.k: range(4 * BLOCK, WIDEST + 1, 4 * BLOCK)}
    notes = {
        attn.q: "each of 4 or 8 waves has 16 or 32 rows",
        attn.k: f"tile sizes along {attn.k} are multiples of {4 * BLOCK} up to {WIDEST}",
    }
    yield from tile_faults(attn, schedule, legal, notes)
    yield from _warps(attn, schedule)
    yield from _others(schedule)


def _warps(attn: Attention, s: Schedule) -> Iterator[Fault]:
    if s.stages is not None and s.stages != STAGES:
        note = "a tile is in use while the next one comes"
        yield ScheduleFault(
            "E0808", f"{s.stages} stages of keys and values", at(s, "stages"), note=note, hint="`stages 2`"
        )
    if s.warps is None:
        return
    span, turning = at(s, "warps"), s.warps.get("wave")
    count = turning or s.warps.get("warp")
    if count is None:
        ((name, number),) = s.warps.args
        line = f"warps {s.warps.name}({name} = {number})"
        yield refused(line, span, "every wave copies and multiplies", "`warps ping_pong(wave = 8)`", backend="hip")
    elif turning is not None and turning != TURNS:
        note = "two groups of four take turns, one wave of each on a SIMD"
        yield ScheduleFault("E0808", f"{turning} waves in turns", span, note=note, hint="`warps ping_pong(wave = 8)`")
    elif count not in WAVES:
        near = min(WAVES, key=lambda n: (abs(n - count), n))
        yield ScheduleFault("E0808", f"{count} waves", span, hint=f"`warps split_q({near})` is the nearest")
    else:
        size, some = s.size(attn.q), dict(s.choices).get(attn.q, ())
        rows = some if size is None else (size,)
        if rows and not any(count * n in rows for n in LEGAL["wave"]):
            note = f"each of {count} waves has 16 or 32 rows, and the tile has {' or '.join(map(str, rows))}"
            hint = f"`{attn.q} = {32 * count}`"
            yield ScheduleFault("E0812", f"{count} waves do not fit the tile", span, note=note, hint=hint)


def _others(s: Schedule) -> Iterator[Fault]:
    if s.overlap is False:
        note = "values trail scores by a step"
        yield refused("overlap off", at(s, "overlap"), note, backend="hip")
    if s.split is not None:
        name, count = s.split
        line = f"split {name} = {'auto' if count is None else count}"
        yield refused(line, at(s, "split"), "a block walks all keys of its rows", backend="hip")
    if s.rescale is not None and s.rescale[0] == "eager":
        note = "the output is divided by the sum once, behind the last step"
        yield refused(
            "rescale eager", at(s, "rescale"), note, "remove the line, or write `rescale delayed`", backend="hip"
        )
    elif s.rescale is not None and s.rescale[1] is not None and not s.rescale[1] <= FARTHEST:
        line = f"rescale conditional {s.rescale[1]:g}"
        note = f"weights go up to 2 to that power, and 2 ** {FARTHEST} is the greatest in f16"
        yield refused(line, at(s, "rescale"), note, "`rescale conditional 8`", backend="hip")
    if s.skip == "table":
        yield refused(
            "skip table", at(s, "skip"), "tables of tiles", "remove the line, or write `skip proved`", backend="hip"
        )
    if s.map is not None and s.map[0] == "persistent":
        note = "addresses of a block's tiles, one after the other, do not fit in scalar registers"
        yield refused("map persistent", at(s, "map"), note, "`map longest_first`", backend="hip")
