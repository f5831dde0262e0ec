"""Shapes of native Hopper kernels in the order in which they are tried: what was measured, then what is near it.

The table is text in the repository, `hopper.toml`; a user's own record, which `tilec tune` writes, has the same form and comes
first.  A point without a source is an error.  A row may name the classes of masks, scores and lengths (`tune.classes`) that it
holds for; the first row that holds counts.  What a schedule pins is taken as it is; what it leaves free comes from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from itertools import product
from typing import Literal

from tilec.ir.attention import Attention
from tilec.ir.expr import Int
from tilec.schedule import Schedule
from tilec.tune import tables
from tilec.tune.classes import LengthClass, known_length, mask_class, score_class

TABLE = "point"  # of a record
HEAD = "# Shapes of native Hopper kernels, as measured; name this file in TILEC_RECORD to use it.\n"
ROWS = 64  # of a warpgroup's matrix instruction
DEPTH = 16  # keys of one step of the product with values
MOST_KEYS = 256  # of one product: PTX ISA, wgmma.mma_async, n
MOST_WARPGROUPS = 3  # whose registers hold tiles: passes.specialize has splits for these
QUERIES: tuple[Literal["registers", "shared"], ...] = ("registers", "shared")
AHEAD: tuple[Literal["nothing", "number", "scores"], ...] = ("nothing", "number", "scores")


@dataclass(frozen=True)
class Point:
    """Tiles of 64 rows for each of `warpgroups` and of `keys`; the other choices as `native.HopperOptions` has them, with
    `wait` as a part of the exponentials.  `seldom`: what `rescale conditional` says, None for a rescale at every step.
    `ahead`: what of the next tile is done before one ends, where all tiles have rows.  `cluster`: CTAs that share keys, in calls
    of whole tensors.  `chains`: of a thread's sum of a step's weights, 0 as the printer has them.  `by`: who decides."""

    warpgroups: int
    keys: int
    queries: Literal["registers", "shared"]
    turns: bool
    wait: float
    stages: int
    by: str = "record"
    seldom: float | None = None
    ahead: Literal["nothing", "number", "scores"] = "nothing"
    cluster: int = 1
    chains: Literal[0, 2] = 0


def wrong(p: Point) -> str:
    """What no kernel of Hopper's can have; empty if there is nothing."""
    if p.warpgroups > MOST_WARPGROUPS:
        return f"warpgroups is {p.warpgroups}, and should be at most {MOST_WARPGROUPS}"
    if p.keys % DEPTH or p.keys > MOST_KEYS:
        return f"keys is {p.keys}, and should be a multiple of {DEPTH} up to {MOST_KEYS}"
    if p.wait > 1:
        return f"wait is {p.wait:g}, and should be a part of the exponentials, at most 1"
    return "" if p.cluster in (1, 2) else f"cluster is {p.cluster}, and should be 1 or 2"


CLASSES = ("mask", "score", "length")
Words = tuple[frozenset[str], frozenset[str], frozenset[str]]


@dataclass(frozen=True)
class Row(tables.Row[Point]):
    """`classes`: for each of CLASSES the words of which one must apply; empty for all kernels."""

    classes: Words = (frozenset(), frozenset(), frozenset())

    @property
    def kernels(self) -> object:
        """Those of its widths and its classes."""
        return self.widths, self.classes

    def holds(self, attn: Attention, length: LengthClass | None = None) -> bool:
        """Whether the classes of the kernel are among those of the row; `length` is that of its calls, where the text of the
        kernel does not say it.  A length that is not known is one of any class."""
        if not any(self.classes):
            return True
        found = (mask_class(attn), score_class(attn), known_length(attn) or length)
        return all(not some or has is None or has in some for some, has in zip(self.classes, found, strict=True))


def read_rows(text: str, path: str) -> tuple[Row, ...]:
    """The tables `point` of a record, in the order of the text.  Raises ValueError as `tables.read`."""
    out = []
    heads = {"value": int, **dict.fromkeys(CLASSES, str)}
    for point, head in tables.read(text, path, TABLE, Point, heads, wrong=wrong):
        mask, score, length = (frozenset(head.pop(n, "").split()) for n in CLASSES)
        out.append(Row(point=point, classes=(mask, score, length), **head))
    return tuple(out)


def write_rows(some: Iterable[Row]) -> str:
    """TOML that `read_rows` reads back."""
    out = HEAD
    for r in some:
        classes = {n: " ".join(sorted(words)) or None for n, words in zip(CLASSES, r.classes, strict=True)}
        point = {n: v for n, v in asdict(r.point).items() if n != "by"}
        values = {"width": r.width, "value": r.value, **classes, **point, "source": r.source}
        out += "\n" + tables.show(TABLE, values)
    return out


@cache
def rows() -> tuple[Row, ...]:
    """The rows of `hopper.toml`."""
    text = resources.files("tilec.tune").joinpath("hopper.toml").read_text(encoding="utf-8")
    return read_rows(text, "hopper.toml")


def table() -> tuple[tuple[tuple[int, int], Point], ...]:
    """(widths, point) of each row of `hopper.toml`."""
    return tuple((r.widths, r.point) for r in rows())


def widths_of(attn: Attention) -> tuple[int, int]:
    """Features of the two products: of all contracted pairs together, and of the value."""
    extents = {i.name: i.extent.value if isinstance(i.extent, Int) else 1 for i in attn.indices}
    return sum(extents[d] for d in attn.contracted), extents[attn.feature]


def width_of(attn: Attention) -> int:
    """Features of the wider product."""
    return max(widths_of(attn))


def measured_points(
    attn: Attention, schedule: Schedule, own: tuple[Row, ...] = (), length: LengthClass | None = None
) -> list[Point]:
    """What records say of this kernel, in calls of that class of lengths: rows of `own` for exactly its widths, then those of
    the table for the least widths of which neither is smaller, of which rows for this class come first and rows for a class
    that is not known to be the kernel's not at all; with what the schedule pins."""
    (width, value), known = widths_of(attn), sorted({r.widths for r in rows()})
    near = next(((w, v) for w, v in known if w >= width and v >= value), known[-1])
    known_class = known_length(attn) or length
    held = [r for r in own if r.widths == (width, value) and r.holds(attn, length)]
    shared = [r for r in rows() if r.widths == near and r.holds(attn, length)]
    held += [r for r in shared if r.classes[2] and known_class] + [r for r in shared if not r.classes[2]]
    return [_pinned(r.point, schedule) for r in held]


def points(
    attn: Attention, schedule: Schedule, own: tuple[Row, ...] = (), length: LengthClass | None = None
) -> Iterator[Point]:
    """Every shape that the schedule allows, best guess first: `measured_points`; then, with fewer keys at each
    step, the same with queries in either place; then with fewer stages; then one warpgroup.  Ends after the smallest."""
    measured = measured_points(attn, schedule, own, length)
    groups = [n // ROWS for n in _sizes(schedule, attn.q)]
    shapes = [p for p in measured if not groups or p.warpgroups in groups]
    rest = [replace(measured[0], warpgroups=n) for n in (groups or (1,)) if schedule.warps is None or not shapes]
    deepest = max(p.keys for p in measured)
    keys = sorted(_sizes(schedule, attn.k), key=lambda n: (abs(n - deepest), -n)) or range(deepest, 0, -DEPTH)
    fewer = range(measured[0].stages if schedule.stages is None else 1)
    near = (
        replace(p, stages=p.stages - less, keys=k, queries=q)
        for some in (shapes, rest)
        for less, k, p, q in product(fewer, keys, some, QUERIES)
        if p.stages > less
    )
    seen: set[Point] = set()
    for p in (*(p for p in shapes if p.keys in keys), *near):
        p = replace(p, turns=p.turns and p.warpgroups > 1)
        if p not in seen:
            seen.add(p)
            yield p


def _pinned(p: Point, s: Schedule) -> Point:
    """`p` with what `warps`, `stages` and `rescale` lines say."""
    if s.warps is not None:
        p = replace(p, warpgroups=s.warps.get("consumer") or p.warpgroups, turns=s.warps.name == "ping_pong")
    if s.rescale is not None:
        p = replace(p, seldom=s.rescale[1])
    pinned = s.tile or s.choices or s.warps or s.stages
    return replace(p, stages=s.stages or p.stages, by="spec" if pinned else p.by)


def _sizes(schedule: Schedule, index: str) -> tuple[int, ...]:
    """What a `tile` or a `tune` line says of an index; empty without one."""
    size = schedule.size(index)
    return dict(schedule.choices).get(index, ()) if size is None else (size,)
