"""Shapes of kernels of waves in the order in which they are tried: the table's, then smaller ones.

The table is text in the repository, `cdna.toml`; a user's own record, which `tilec tune` writes, has the same form and comes
first.  A point without a source is an error.  What a schedule pins is taken as it is; what it leaves free comes from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources

from tilec.cdna_lines import BLOCK, TURNS
from tilec.ir.attention import Attention
from tilec.passes.split_rows import LEGAL
from tilec.schedule import Schedule
from tilec.tune import tables
from tilec.tune.hopper import width_of, widths_of

TABLE = "waves"  # of a record
HEAD = "# Shapes of gfx942's native kernels, as models predict them; name this file in TILEC_RECORD to use it.\n"


@dataclass(frozen=True)
class Point:
    """Tiles of `rows`, shared out by `waves`, and of `keys`; `seldom` as `WaveOptions` has it, `ahead` as `Turns`; `turns`: two
    groups of waves a barrier apart.  `by`: who decides."""

    waves: int
    rows: int
    keys: int
    keys_ahead: int
    values_ahead: int
    seldom: float | None
    turns: bool = True
    by: str = "record"

    @property
    def registers(self) -> int:
        """Of a lane: a SIMD has 512 for its waves (AMD CDNA 3 white paper), and there are 4."""
        return 512 // max(1, self.waves // 4)


def wrong(p: Point) -> str:
    """What no kernel of waves can have; empty if there is nothing."""
    if p.turns and p.waves != TURNS:
        return f"waves is {p.waves}, and those that take turns are {TURNS}"
    if p.rows % p.waves or p.rows // p.waves not in LEGAL["wave"]:
        each = " or ".join(map(str, sorted(LEGAL["wave"])))
        return f"rows is {p.rows}, and should be {each} for each of {p.waves} waves"
    step = 4 * BLOCK
    return f"keys is {p.keys}, and should be a multiple of {step}" if p.keys % step else ""


Row = tables.Row[Point]


def read_rows(text: str, path: str) -> tuple[Row, ...]:
    """The tables `waves` of a record, in the order of the text.  Raises ValueError as `tables.read`."""
    found = tables.read(text, path, TABLE, Point, {"value": int}, ("keys_ahead", "values_ahead"), wrong)
    return tuple(Row(point=point, **head) for point, head in found)


def write_rows(some: Iterable[Row]) -> str:
    """TOML that `read_rows` reads back."""
    out = HEAD
    for r in some:
        point = {n: v for n, v in asdict(r.point).items() if n != "by"}
        out += "\n" + tables.show(TABLE, {"width": r.width, "value": r.value, **point, "source": r.source})
    return out


@cache
def table() -> tuple[tuple[int, Point], ...]:
    """(width, point) of each row of `cdna.toml`, in the order of the text; `width` there is that of the wider product."""
    text = resources.files("tilec.tune").joinpath("cdna.toml").read_text(encoding="utf-8")
    return tuple((r.width, r.point) for r in read_rows(text, "cdna.toml"))


def points(attn: Attention, schedule: Schedule, own: tuple[Row, ...] = ()) -> Iterator[Point]:
    """Every shape that the schedule allows, best guess first: rows of `own` for exactly its widths; the table's for the least
    width that is not smaller; then the same with fragments read later, with fewer keys, with 16 rows to a wave, and with a wave
    to a SIMD.  Ends after the smallest."""
    widths = sorted({w for w, _ in table()})
    width = next((w for w in widths if w >= width_of(attn)), widths[-1])
    rows = [r.point for r in own if r.widths == widths_of(attn)]
    rows += [p for w, p in table() if w == width]
    seen: set[Point] = set()
    for p in (*rows, *(x for r in rows for x in _smaller(r))):
        for found in _pinned(p, attn, schedule):
            if found not in seen:
                seen.add(found)
                yield found


def _smaller(p: Point) -> Iterator[Point]:
    yield replace(p, keys_ahead=p.keys_ahead // 2, values_ahead=p.values_ahead // 2 // 16 * 16)
    for turns, waves in ((True, 8), (False, 4)):
        for each in LEGAL["wave"]:
            keys = p.keys
            while waves * each <= p.rows and keys >= max(each, waves * BLOCK):
                yield replace(p, waves=waves, turns=turns, rows=waves * each, keys=keys)
                keys //= 2


def _pinned(p: Point, attn: Attention, s: Schedule) -> Iterator[Point]:
    """`p` with what the schedule says in place of what it does not allow."""
    by = "spec" if s.tile or s.choices or s.warps or s.rescale else p.by
    seldom = p.seldom if s.rescale is None else s.rescale[1]
    options = [(p.turns, p.waves), (True, TURNS), (False, 4), (False, 8)]
    if s.warps is not None:
        waves = s.warps.get("wave")
        options = [(False, s.warps.get("warp") or 4)] if waves is None else [(True, waves)]
    wanted, keys = _sizes(s, attn.q), _sizes(s, attn.k)
    for rows in wanted or (p.rows,):
        fits = [(turns, n) for turns, n in options if rows in [n * each for each in LEGAL["wave"]]]
        if not fits and not wanted:
            fits, rows = options[:1], options[0][1] * LEGAL["wave"][0]
        if fits:
            (turns, waves), *_ = fits
            size = p.keys if not keys or p.keys in keys else min(keys, key=lambda n: (abs(n - p.keys), n))
            yield replace(p, turns=turns, waves=waves, rows=rows, keys=size, seldom=seldom, by=by)


def _sizes(schedule: Schedule, index: str) -> tuple[int, ...]:
    """What a `tile` or a `tune` line says of an index; empty without one."""
    size = schedule.size(index)
    return dict(schedule.choices).get(index, ()) if size is None else (size,)
