"""Bounds in tiles: which tiles a loop walks, and which of them need no mask.

A segment is four tile numbers lo <= full_lo <= full_hi <= hi: tiles lo … full_lo and full_hi … hi apply the mask, those between
need none.  A tile is full if all its positions are; so a tile over the end of the sequence never is.  Segments of a
union are disjoint and increasing: where their order is not proved, a compare-exchange network sorts them at run time
(Knuth, The Art of Computer Programming 3, 5.3.4), and each starts where those before it have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.arith.affine import canonical, divided, divided_up
from tilec.arith.bounds import Bounds
from tilec.arith.facts import Facts, greatest, least
from tilec.arith.pieces import Piece, Range, hull
from tilec.ir.build import compare, where
from tilec.ir.expr import ONE, Expr, children

TEXT = 250


@dataclass(frozen=True)
class TileSegment:
    """Tile numbers, exclusive at the right; the flags say which of the three loops are *proved* never to run."""

    lo: Expr
    full_lo: Expr
    full_hi: Expr
    hi: Expr
    left_empty: bool
    full_empty: bool
    right_empty: bool
    because: str


def tile_segments(bounds: Bounds, size: Expr) -> tuple[TileSegment, ...]:
    """The segments of tiles of `size` positions (a positive constant expression).

    Where keeping the pieces apart would take expressions of more than `TEXT` nodes, pieces are walked as one."""
    size = canonical(size)
    facts = bounds.facts.with_(compare(">=", size, ONE))
    pieces = bounds.pieces
    while True:
        segments = [s for p in pieces if (s := _segment(p, size, facts)) is not None]
        parted = _parted(_sorted(segments, facts), facts)
        if len(pieces) < 2 or all(_nodes(s) <= TEXT for s in parted):
            break
        pieces = (*pieces[:-2], hull(pieces[-2], pieces[-1], facts))
    return tuple(flagged for s in parted if (flagged := _flagged(s, facts)) is not None)


def _nodes(s: TileSegment) -> int:
    """Nodes of the longest of a segment's expressions, written out."""
    counts: dict[Expr, int] = {}

    def count(e: Expr) -> int:
        if e not in counts:
            counts[e] = 1 + sum(count(c) for c in children(e))
        return counts[e]

    return max(count(x) for x in (s.lo, s.full_lo, s.full_hi, s.hi))


def _segment(p: Piece, size: Expr, facts: Facts) -> TileSegment | None:
    lo, hi = _down(p.live.lo, size), _up(p.live.hi, size, facts)
    if facts.at_most(hi, lo):
        return None
    if facts.multiple(p.live.lo, size):
        hi = greatest(facts, lo, hi)
    elif not facts.holds(some := compare("<", p.live.lo, p.live.hi)):
        hi = where(some, hi, lo)  # an empty range in the middle of a tile must not reach into it
    full_lo, full_hi = _full(p.full, size, facts, lo, hi)
    return TileSegment(lo, full_lo, full_hi, hi, False, False, False, p.because)


def _full(full: Range | None, size: Expr, facts: Facts, lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    """Full tiles, inside lo … hi; a range without any is lo … lo, so that one masked loop is left."""
    if full is None:
        return lo, lo
    full_lo = least(facts, hi, greatest(facts, lo, _up(full.lo, size, facts)))
    full_hi = least(facts, hi, _down(full.hi, size))
    if facts.at_most(full_hi, full_lo):
        return lo, lo
    return full_lo, greatest(facts, full_lo, full_hi)


def _down(x: Expr, size: Expr) -> Expr:
    return divided(x, size)


def _up(x: Expr, size: Expr, facts: Facts) -> Expr:
    return divided(x, size) if facts.multiple(x, size) else divided_up(x, size)


def _sorted(segments: list[TileSegment], facts: Facts) -> list[TileSegment]:
    """By `lo`, with a bubble network; comparisons that are proved take no code."""
    out = list(segments)
    for end in range(len(out) - 1, 0, -1):
        for i in range(end):
            out[i], out[i + 1] = _exchanged(out[i], out[i + 1], facts)
    return out


def _exchanged(a: TileSegment, b: TileSegment, facts: Facts) -> tuple[TileSegment, TileSegment]:
    if facts.at_most(a.lo, b.lo):
        return a, b
    if facts.at_most(b.lo, a.lo):
        return b, a
    swap = compare(">", a.lo, b.lo)
    because = a.because if a.because == b.because else f"{a.because}  and  {b.because}, in order of their first tile"

    def chosen(x: TileSegment, y: TileSegment) -> tuple[Expr, Expr, Expr]:
        pairs = ((x.full_lo, y.full_lo), (x.full_hi, y.full_hi), (x.hi, y.hi))
        lo, mid, hi = (where(swap, q, p) for p, q in pairs)
        return lo, mid, hi

    low = TileSegment(least(facts, a.lo, b.lo), *chosen(a, b), False, False, False, because)
    high = TileSegment(greatest(facts, a.lo, b.lo), *chosen(b, a), False, False, False, because)
    return low, high


def _parted(segments: list[TileSegment], facts: Facts) -> list[TileSegment]:
    """Each begins no earlier than those before it end."""
    out: list[TileSegment] = []
    for s in segments:
        if out:
            done = out[-1].hi
            ends = (greatest(facts, done, x) for x in (s.lo, s.full_lo, s.full_hi, s.hi))
            lo, full_lo, full_hi, hi = ends
            s = replace(s, lo=lo, full_lo=full_lo, full_hi=full_hi, hi=hi)
        out.append(s)
    return out


def _flagged(s: TileSegment, facts: Facts) -> TileSegment | None:
    """With the flags set; None if no tile is left."""
    left, full, right = (facts.at_most(b, a) for a, b in ((s.lo, s.full_lo), (s.full_lo, s.full_hi), (s.full_hi, s.hi)))
    if left and full and right:
        return None
    return replace(s, left_empty=left, full_empty=full, right_empty=right)
