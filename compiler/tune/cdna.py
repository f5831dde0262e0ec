"""Shapes of kernels of waves in the order in which they are tried: the table's, then smaller ones.

The table is text in the repository, `cdna.toml`; a user's own record, which `tilec tune` writes, has the same form and comes
first.  A point without a source is an error.  What a schedule pins is taken as it is; what it leaves free comes from the table.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources

from tilec.cdna_lines import BLOCK, TURNS
from tilec.ir.attention import Attention
from tilec.passes.split_rows import LEGAL
from tilec.schedule import Schedule
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


@dataclass(frozen=True)
class Row:
    """For kernels of `width` contracted features and `value` of the value's (None: as many)."""

    width: int
    point: Point
    source: str
    value: int | None = None

    @property
    def widths(self) -> tuple[int, int]:
        """Features contracted, and of the value."""
        return self.width, self.value or self.width


def read_rows(text: str, path: str) -> tuple[Row, ...]:
    """The tables `waves` of a record, in the order of the text.  ValueError for one without a source or with a name that is no
    field."""
    out = []
    for row in tomllib.loads(text).get(TABLE, []):
        head = {n: row.pop(n, None) for n in ("width", "value", "source")}
        if not head["source"] or not head["width"]:
            raise ValueError(f"{path}: {row} has no source or no width")
        try:
            out.append(Row(int(head["width"]), Point(**{"seldom": None, **row}), str(head["source"]), head["value"]))
        except TypeError as wrong:
            raise ValueError(f"{path}: {row}: {wrong}") from None
    return tuple(out)


def write_rows(rows: Iterable[Row]) -> str:
    """TOML that `read_rows` reads back."""
    out = [HEAD]
    for r in rows:
        values = {"width": r.width, "value": r.value, **asdict(r.point), "source": r.source}
        values.pop("by")
        lines = (f"{n} = {json.dumps(v)}\n" for n, v in values.items() if v is not None)
        out.append(f"\n[[{TABLE}]]\n" + "".join(lines))
    return "".join(out)


def put(rows: Iterable[Row], row: Row) -> tuple[Row, ...]:
    """`rows` with `row` in place of one for the same widths, or at the end."""
    return (*(r for r in rows if r.widths != row.widths), row)


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
