"""Which schedule lines a native Hopper kernel can honour; one that it cannot is an error, never a no-op.

E0808  more consumers than registers can be traded among
E0811  a line that its passes do not decide
E0812  a tile size that its matrix instructions do not have
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.dsl.faults import Fault, ScheduleFault
from tilec.dsl.spans import Span
from tilec.ir.attention import Attention
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


def _at(schedule: Schedule, *names: str) -> Span | None:
    return next((schedule.spans[n] for n in names if n in schedule.spans), None)


def _refused(line: str, span: Span | None, note: str, hint: str = "remove the line") -> Fault:
    return ScheduleFault("E0811", f"the cuda backend cannot honour `{line}`", span, note=note, hint=hint)


def _tiles(attn: Attention, s: Schedule) -> Iterator[Fault]:
    pinned = [("tile", name, (size,)) for name, size in s.tile]
    units = {attn.q: (ROWS, ROWS * MOST), attn.k: (DEPTH, WIDEST)}
    for line, name, sizes in [*pinned, *(("choices", n, some) for n, some in s.choices)]:
        if name not in units:
            hint = f"tiles are of {attn.q} and {attn.k}: every other index is one value or whole"
            span = _at(s, f"{line}.{name}", line)
            yield ScheduleFault("E0812", f"`{name}` cannot be tiled", span, hint=hint)
            continue
        unit, most = units[name]
        for size in sizes:
            if size % unit or not unit <= size <= most:
                near = min(range(unit, most + 1, unit), key=lambda n: (abs(n - size), n))
                note = f"tile sizes along {name} are multiples of {unit} up to {most}"
                span, hint = _at(s, f"{line}.{name}", line), f"`{name} = {near}` is the nearest"
                yield ScheduleFault("E0812", f"a tile of {size} is not legal", span, note=note, hint=hint)


def _warps(attn: Attention, s: Schedule) -> Iterator[Fault]:
    if s.warps is None:
        return
    span, count = _at(s, "warps"), s.warps.get("consumer")
    if count is None:
        ((_, number),) = s.warps.args
        line = f"warps {s.warps.name}({number})"
        note = "its rows are split over warpgroups, which a producer warp loads for"
        yield _refused(line, span, note, "`warps specialized(consumer = 2)`")
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
        yield _refused(line, span, "one warpgroup has nobody to take turns with", "`warps specialized(consumer = 1)`")


def _others(attn: Attention, s: Schedule) -> Iterator[Fault]:
    if s.cluster is not None and s.cluster not in (1, PAIR):
        note = "keys and values are shared by pairs of blocks"
        yield _refused(f"cluster {s.cluster}", _at(s, "cluster"), note, f"`cluster {PAIR}` is the nearest")
    if s.split is not None:
        name, count = s.split
        line = f"split {name} = {'auto' if count is None else count}"
        yield _refused(line, _at(s, "split"), "a block walks all keys of its rows")
    if s.rescale is not None and s.rescale[0] == "eager":
        note = "the output is divided by the sum once, behind the last step"
        yield _refused("rescale eager", _at(s, "rescale"), note, "remove the line, or write `rescale delayed`")
    elif s.rescale is not None and s.rescale[1] is not None and not s.rescale[1] <= FARTHEST:
        line = f"rescale conditional {s.rescale[1]:g}"
        note = f"weights go up to 2 to that power, and 2 ** {FARTHEST} is the greatest in f16"
        yield _refused(line, _at(s, "rescale"), note, "`rescale conditional 8`")
    if s.skip == "table":
        yield _refused("skip table", _at(s, "skip"), "tables of tiles", "remove the line, or write `skip proved`")
    if s.order is not None and s.order != (attn.q,):
        note = "tiles of a residue class are no boxes, and rows are walked in one order"
        yield _refused(f"order {', '.join(s.order)}", _at(s, "order"), note, f"`order {attn.q}`")
