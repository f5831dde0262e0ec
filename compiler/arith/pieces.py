"""Ranges of live positions, and the union of several: joined where it is proved that nothing is lost.

A piece must stay sound whatever its ends are at run time: `live` covers every live position of its conjunctions, and no
position of `full` needs the mask for any row.  Pieces of a union may overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.arith.facts import Facts, greatest, least
from tilec.ir.build import where
from tilec.ir.expr import ZERO, Expr, Op

PIECES = 3  # ranges a program may walk one after the other; more are merged into their hull


@dataclass(frozen=True)
class Range:
    """Positions lo … hi, exclusive; empty if lo >= hi.  A range that is guarded by a condition has hi = 0 where it fails."""

    lo: Expr
    hi: Expr


@dataclass(frozen=True)
class Piece:
    """One range of live positions and the part of it where no mask is needed (None: nowhere)."""

    live: Range
    full: Range | None
    because: str


def merged(pieces: list[Piece], facts: Facts) -> list[Piece]:
    """Joins pieces that are proved to be one range with one full part; then, if there are too many, the last ones."""
    out: list[Piece] = []
    for p in pieces:
        out.append(p)
        again = True
        while again and len(out) > 1:
            again = False
            *rest, new = out
            for i, old in enumerate(rest):
                if (joined := _joined(old, new, facts)) is not None:
                    out = [*rest[:i], *rest[i + 1 :], joined]
                    again = True
                    break
    while len(out) > PIECES:
        *out, a, b = out
        out.append(hull(a, b, facts))
    return out


def _joined(a: Piece, b: Piece, facts: Facts) -> Piece | None:
    live = _one_range(a.live, b.live, facts)
    if live is None:
        return None
    if a.full is None or b.full is None:
        full = a.full or b.full
    elif (full := _one_range(a.full, b.full, facts)) is None:
        return None
    because = a.because if a.because == b.because else f"{a.because}  or  {b.because}"
    return Piece(live, full, because)


def _one_range(a: Range, b: Range, facts: Facts) -> Range | None:
    """The union of two ranges where it is proved to be a range whatever is empty."""
    for x, y in ((a, b), (b, a)):
        if facts.at_most(x.lo, y.lo) and facts.at_most(y.hi, x.hi):
            return x
    if a.lo is b.lo:
        return Range(a.lo, greatest(facts, a.hi, b.hi))
    if a.hi is b.hi:
        return Range(least(facts, a.lo, b.lo), a.hi)
    for x, y in ((a, b), (b, a)):
        match y.hi:
            case Op("where", (guard, hi, end)) if end is ZERO and facts.at_most(y.lo, x.lo) and facts.at_most(x.hi, hi):
                return Range(where(guard, y.lo, x.lo), where(guard, hi, x.hi))
    return None


def hull(a: Piece, b: Piece, facts: Facts) -> Piece:
    """One range around both, whether or not they are empty: loose, but short."""
    live = Range(least(facts, a.live.lo, b.live.lo), greatest(facts, a.live.hi, b.live.hi))
    return Piece(live, a.full or b.full, f"{a.because}  or  {b.because}")
