"""Which schedule lines a native Hopper kernel can honour; one that it cannot is an error, never a no-op.

E0808  more consumers than registers can be traded among
E0811  a line that its passes do not decide
E0812  a tile size that its matrix instructions do not have
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.dsl.faults import Fault, ScheduleFault
from tilec.ir.attention import Attention
from tilec.line_faults import at, refused, tile_faults
from tilec.passes.pair_heads import PAIR
from tilec.schedule import Schedule
from tilec.tune.hopper import DEPTH, ROWS

MOST = 3  # consumer warpgroups
FARTHEST = 15  # powers of two that f16 holds
WIDEST = 256  # keys of one product: PTX ISA, wgmma.mma_async, n


def faults(attn: Attention, schedule: Schedule) -> Iterator[Fault]:
    """One for every line that cannot be honoured."""
    yield from _tiles(attn, schedule)
    yield from _warps(attn, schedule)
    yield from _others(attn, schedule)


def _tiles(attn: Attention, s: Schedule) -> Iterator[Fault]:
    units = {attn.q: (ROWS, ROWS * MOST), attn.k: (DEPTH, WIDEST)}
    legal = {name: range(unit, most + 1, unit) for name, (unit, most) in units.items()}
    notes = {n: f"tile sizes along {n} are multiples of {unit} up to {most}" for n, (unit, most) in units.items()}
    return tile_faults(attn, s, legal, notes)


def _warps(attn: Attention, s: Schedule) -> Iterator[Fault]:
    if s.warps is None:
        return
    span, count = at(s, "warps"), s.warps.get("consumer")
    if count is None:
        ((_, number),) = s.warps.args
        line = f"warps {s.warps.name}({number})"
        note = "its rows are split over warpgroups, which a producer warp loads for"
        yield refused(line, span, note, "`warps specialized(consumer = 2)`")
        return
    line = f"warps {s.warps.name}(consumer = {count})"
    size, some = s.size(attn.q), dict(s.choices).get(attn.q, ())
    rows = some if size is None else (size,)
    if count > MOST:
        yield ScheduleFault("E0808", f"{count} consumer warpgroups", span, hint=f"1 to {MOST} are legal")
    elif rows and ROWS * count not in rows:
        note = f"each of {count} warpgroups has {ROWS} rows, and the tile has {' or '.join(map(str, rows))}"
        yield ScheduleFault("E0812", f"`{line}` does not fit the tile", span, note=note, hint=f"`q = {ROWS * count}`")
    elif count == 1 and s.warps.name == "ping_pong":
        yield refused(line, span, "one warpgroup has nobody to take turns with", "`warps specialized(consumer = 1)`")


def _others(attn: Attention, s: Schedule) -> Iterator[Fault]:
    if s.cluster is not None and s.cluster not in (1, PAIR):
        note = "keys and values are shared by pairs of blocks"
        yield refused(f"cluster {s.cluster}", at(s, "cluster"), note, f"`cluster {PAIR}` is the nearest")
    if s.split is not None:
        name, count = s.split
        line = f"split {name} = {'auto' if count is None else count}"
        yield refused(line, at(s, "split"), "a block walks all keys of its rows")
    if s.rescale is not None and s.rescale[0] == "eager":
        note = "the output is divided by the sum once, behind the last step"
        yield refused("rescale eager", at(s, "rescale"), note, "remove the line, or write `rescale delayed`")
    elif s.rescale is not None and s.rescale[1] is not None and not s.rescale[1] <= FARTHEST:
        line = f"rescale conditional {s.rescale[1]:g}"
        note = f"weights go up to 2 to that power, and 2 ** {FARTHEST} is the greatest in f16"
        yield refused(line, at(s, "rescale"), note, "`rescale conditional 8`")
    if s.skip == "table":
        yield refused("skip table", at(s, "skip"), "tables of tiles", "remove the line, or write `skip proved`")
