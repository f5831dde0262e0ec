"""Residue order: walking q and k by residue class, so that a dilated mask becomes dense.

If every live pair has (q - k) % T == r, a row of class rq (q % T == rq) only meets keys of class (rq - r) % T.  With q = T*i + rq
and k = T*j + rk the congruence holds by itself, and each linear atom a*q + b*k <= c becomes
a*i + b*j <= (c - a*rq - b*rk) // T: a dilated window turns into a plain window of a T-th of the length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilec.arith.affine import canonical, divided, divided_up, minus, plus, times
from tilec.arith.constraints import Atom, Congruence, Order
from tilec.arith.formula import Normal, normalise
from tilec.ir.build import all_of, any_of, mod
from tilec.ir.expr import ONE, ZERO, Expr, Var, substitute


@dataclass(frozen=True)
class Residue:
    """Every live pair has (q - k) % period == shift, 0 <= shift < period."""

    period: Expr
    shift: Expr


@dataclass(frozen=True)
class ResidueClass:
    """One class of rows.  `normal` is the mask over positions i, j in the class, still named q and k: row T*i + row_class,
    key T*j + key_class; `rows` and `keys` are the extents of i and j."""

    normal: Normal
    row_class: Expr
    key_class: Expr
    rows: Expr
    keys: Expr


def residue_of(normal: Normal) -> Residue | None:
    """The congruence that every conjunction contains, or None.  An empty mask has none."""
    common: set[Residue] | None = None
    for atoms in normal.union:
        found = {r for a in atoms if isinstance(a, Congruence) and (r := _residue(a)) is not None}
        common = found if common is None else common & found
    if not common:
        return None
    return max(common, key=lambda r: (getattr(r.period, "value", 0), str(r.period), str(r.shift)))


def _residue(a: Congruence) -> Residue | None:
    """(q - k) % T == r, from either sign; T = 1 is none."""
    if (a.q, a.k) not in ((1, -1), (-1, 1)) or a.width is not ZERO or a.period is ONE:
        return None
    shift = a.shift if a.q == 1 else minus(ZERO, a.shift)
    return Residue(a.period, canonical(mod(shift, a.period)))


def in_class(
    normal: Normal,
    residue: Residue,
    row_class: Expr,
    extents: tuple[Expr, Expr],
    params: Mapping[str, frozenset[str]] | None = None,
) -> ResidueClass:
    """The mask on rows of class `row_class` (0 <= row_class < period), for extents (M, N)."""
    period = residue.period
    key_class = row_class if residue.shift is ZERO else canonical(mod(minus(row_class, residue.shift), period))
    offset = {normal.q: row_class, normal.k: key_class}
    conjunctions = []
    for atoms in normal.union:
        left = (a for a in atoms if not (isinstance(a, Congruence) and _residue(a) == residue))
        conjunctions.append(all_of(*(_in_class(a, period, offset, normal) for a in left)))
    mask = any_of(*conjunctions)
    rows, keys = (divided_up(minus(e, c), period) for e, c in zip(extents, (row_class, key_class), strict=True))
    return ResidueClass(normalise(mask, q=normal.q, k=normal.k, params=params), row_class, key_class, rows, keys)


def _in_class(a: Atom, period: Expr, offset: Mapping[str, Expr], normal: Normal) -> Expr:
    """One atom as an expression over positions in the class."""
    if isinstance(a, Order) and all(s is None or isinstance(s.term, Var) for s in (a.q, a.k)):
        sides = ((a.q, offset[normal.q]), (a.k, offset[normal.k]))
        shift = plus(*(times(c, s.coef) for s, c in sides if s is not None))
        return Order(a.q, a.k, divided(minus(a.rest, shift), period), a.source).condition
    there: dict[Expr, Expr] = {Var(n): plus(times(Var(n), period), c) for n, c in offset.items()}
    return substitute(a.condition, there)
