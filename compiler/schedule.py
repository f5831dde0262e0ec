"""Schedules as data: what the `schedule` blocks of a spec say, merged per target.

Which lines a target can honour is not decided here; every field is what was written, or None (or empty) where nothing was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from tilec.dsl import ast
from tilec.dsl.spans import Span


@dataclass(frozen=True)
class Strategy:
    """`ping_pong(consumer = 2)`.  The argument of `split_q(4)` is called `warp` here."""

    name: str
    args: tuple[tuple[str, int], ...] = ()

    def get(self, name: str) -> int | None:
        """The argument of that name, if written."""
        return dict(self.args).get(name)


@dataclass(frozen=True)
class Schedule:
    """The lines of one schedule block.  `spans`: where each field's line stands, by field name; sizes of a `tile` line and
    choices of `tune` lines also as `tile.q`, `choices.k`."""

    tile: tuple[tuple[str, int], ...] = ()
    choices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    warps: Strategy | None = None
    stages: int | None = None
    overlap: bool | None = None
    rescale: tuple[str, float | None] | None = None
    skip: str | None = None
    order: tuple[str, ...] | None = None
    split: tuple[str, int | None] | None = None  # None counts for `auto`
    map: tuple[str, str | None] | None = None
    cluster: int | None = None
    spans: Mapping[str, Span] = field(default_factory=dict, compare=False, hash=False)

    def size(self, index: str) -> int | None:
        """The pinned tile size of an index."""
        return dict(self.tile).get(index)


EMPTY = Schedule()


def merge(base: Schedule, over: Schedule) -> Schedule:
    """`base` overridden by the lines that `over` has.  Tile sizes and choices override index by index: a size pinned in one
    block replaces choices in the other."""
    changed = {
        f.name: getattr(over, f.name)
        for f in fields(Schedule)
        if f.name not in ("tile", "choices", "spans") and getattr(over, f.name) is not None
    }
    said = {n for n, _ in over.tile} | {n for n, _ in over.choices}
    return replace(
        base,
        tile=(*((n, v) for n, v in base.tile if n not in said), *over.tile),
        choices=(*((n, v) for n, v in base.choices if n not in said), *over.choices),
        spans={**base.spans, **over.spans},
        **changed,
    )


def read_schedule(block: ast.Schedule) -> Schedule:
    """A checked schedule block as data."""
    out = EMPTY
    for s in block.statements:
        out = _line(out, s)
    return out


def _line(out: Schedule, s: ast.ScheduleStatement) -> Schedule:
    match s:
        case ast.Tile(pins):
            for p in pins:
                out = replace(out, tile=(*out.tile, (p.name.text, p.value.value)))
                out = _at(out, f"tile.{p.name.text}", p.span)
            return _at(out, "tile", s.span)
        case ast.Tune(n, choices):
            out = replace(out, choices=(*out.choices, (n.text, tuple(c.value for c in choices))))
            return _at(_at(out, f"choices.{n.text}", s.span), "choices", s.span)
        case ast.Warps(n, args):
            named = tuple((a.name.text if a.name else "warp", a.value.value) for a in args or ())
            return _at(replace(out, warps=Strategy(n.text, named)), "warps", s.span)
        case ast.Stages(n):
            return _at(replace(out, stages=n.value), "stages", s.span)
        case ast.Overlap(w):
            return _at(replace(out, overlap=w.text == "on"), "overlap", s.span)
        case ast.Rescale(w, bound):
            value = None if bound is None else float(bound.value)
            return _at(replace(out, rescale=(w.text, value)), "rescale", s.span)
        case ast.Skip(w):
            return _at(replace(out, skip=w.text), "skip", s.span)
        case ast.Order(names):
            return _at(replace(out, order=tuple(n.text for n in names)), "order", s.span)
        case ast.Split(n, count):
            return _at(replace(out, split=(n.text, count.value if count else None)), "split", s.span)
        case ast.Map(w, by):
            return _at(replace(out, map=(w.text, by.text if by else None)), "map", s.span)
        case ast.Cluster(n):
            return _at(replace(out, cluster=n.value), "cluster", s.span)


def _at(out: Schedule, key: str, span: Span) -> Schedule:
    return replace(out, spans={**out.spans, key: span})
