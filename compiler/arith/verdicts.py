"""What a mask does to one tile of a bound problem, and whether every row keeps a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tilec.arith.affine import Affine, affine, canonical, express, minus, plus, times
from tilec.arith.constraints import Atom, Congruence, Conjunction, Opaque, Order, Uniform
from tilec.arith.evaluate import Env
from tilec.arith.exists import Box, holds_in, keeps, rows_held
from tilec.arith.facts import Facts, greatest, least
from tilec.arith.formula import Normal
from tilec.arith.solve import solve
from tilec.ir.build import compare
from tilec.ir.expr import ONE, ZERO, Expr, Int, Var, free_vars, substitute

Verdict = Literal["empty", "full", "partial", "unknown"]


@dataclass(frozen=True)
class Safety:
    """Does every row keep a key?  None: not decided.  `witness` says which rows do not, or may not."""

    safe: bool | None
    witness: str = ""


def verdict(normal: Normal, box: Box, env: Env) -> Verdict:
    """The state of the tile q0..q1, k0..k1 (both inclusive, not empty), with symbols and arrays bound by `env`.

    Exact without opaque atoms and unbound names; with them 'unknown' unless the other atoms decide."""
    some = holds_in(normal.union, box, env, normal)
    if some is False:
        return "empty"
    if normal.negation is None:
        return "unknown"
    missing = holds_in(normal.negation, box, env, normal)
    if missing is False:
        return "full"
    return "partial" if some and missing else "unknown"


def rows_safe(normal: Normal, M: Expr, N: Expr, assumes: Iterable[Expr] = (), env: Env | None = None) -> Safety:
    """Does every row of 0 … M keep at least one of the keys 0 … N?

    Exact where M and N are constants and `env` binds the rest.  Over symbols, safe is proved by naming a key that every
    row keeps: an end of its interval, or the row's own position; unsafe by a first or last row that cannot keep any."""
    if isinstance(M, Int) and isinstance(N, Int):
        exact = _bound(normal, M.value, N.value, env or {})
        if exact.safe is not None:
            return exact
    row = Var(normal.q)
    facts = Facts((compare("<=", ZERO, row), compare("<", row, M), *assumes))
    rows = [_Row(normal, atoms, N, facts) for atoms in normal.union]
    if any(r.keeps_key() for r in rows):
        return Safety(True)
    for name, at in (("row 0", ZERO), ("the last row", minus(M, 1))):
        if all(r.dead_at(at, M) for r in rows):
            return Safety(False, f"{name} keeps no key")
    return Safety(None, _doubt(rows, M))


def _bound(normal: Normal, M: int, N: int, env: Env) -> Safety:
    """Every row in turn, but for those that difference constraints cover."""
    if M <= 0:
        return Safety(True)
    covered: list[tuple[int, int]] = []
    if N > 0:
        ranges = (rows_held(atoms, (0, M - 1, 0, N - 1), env) for atoms in normal.union)
        covered = sorted(r for r in ranges if r is not None and r[0] <= r[1])
    missing, nxt = [], 0
    for lo, hi in [*covered, (M, M)]:
        missing.append(range(nxt, lo))
        nxt = max(nxt, hi + 1)
    for rows in missing:
        for q, kept in keeps(normal, iter(rows), N, env):
            if not kept:
                return Safety(kept, f"row {q} keeps no key" if kept is False else f"row {q} may keep no key")
    return Safety(True)


class _Row:
    """One conjunction at row q: the ends of its interval of keys, and conditions on the row alone."""

    def __init__(self, normal: Normal, atoms: Conjunction, N: Expr, facts: Facts) -> None:
        self.normal, self.atoms, self.N, self.facts = normal, atoms, N, facts
        self.lows: list[Expr] = [ZERO]
        self.highs: list[Expr] = [minus(N, 1)]
        self.rows: list[Expr] = []
        for a in atoms:
            match a:
                case Order(q, k, rest, _):
                    at = rest if q is None else plus(times(q.term, -q.coef), rest)
                    if k is None:
                        self.rows.append(at)
                    elif not k.reads:
                        end, x = solve(k, at, normal.k)
                        self.lows += [x] if end == "lo" else []
                        self.highs += [minus(x, 1)] if end == "hi" else []

    def keeps_key(self) -> bool:
        """Is there a key, as a function of the row, at which every atom is proved?"""
        own = Var(self.normal.q)
        candidates = [least(self.facts, *self.highs), greatest(self.facts, *self.lows), own]
        return any(
            self.facts.at_most(ZERO, k)
            and self.facts.at_most(plus(k, 1), self.N)
            and all(self.kept(a, k) for a in self.atoms)
            for k in dict.fromkeys(candidates)
        )

    def kept(self, a: Atom, key: Expr) -> bool:
        at: dict[Expr, Expr] = {Var(self.normal.k): key}
        match a:
            case Order(q, k, rest, _):
                sides = (times(canonical(substitute(s.term, at)), s.coef) for s in (q, k) if s is not None)
                return self.facts.at_most(plus(*sides), rest)
            case Congruence(q, k, shift, period, width):
                form = plus(times(Var(self.normal.q), q), times(key, k), minus(ZERO, shift))
                return self.facts.at_most(ZERO, width) and self.facts.multiple(form, period)
            case Uniform(condition):
                return self.facts.holds(condition)
            case Opaque():
                return False

    def dead_at(self, row: Expr, M: Expr) -> bool:
        """Is it proved that no key is left at this row?"""
        at: dict[Expr, Expr] = {Var(self.normal.q): row}
        facts = self.facts.with_(compare(">=", M, ONE))
        pairs = ((lo, hi) for lo in self.lows for hi in self.highs)
        return any(facts.at_most(plus(hi, 1), lo) for lo, hi in _at(pairs, at)) or any(
            facts.at_most(plus(x, 1), ZERO) for x, _ in _at(((r, ZERO) for r in self.rows), at)
        )

    def gap(self) -> Affine | None:
        """A form that is negative at rows without a key and is not proved nonnegative; one that tells rows apart, if any."""
        forms = [affine(hi) - affine(lo) for hi in reversed(self.highs) for lo in reversed(self.lows)]
        forms += [affine(r) for r in self.rows]
        unproved = [f for f in forms if not self.facts.nonnegative(f)]
        return next((f for f in unproved if f.coefficient(Var(self.normal.q))), unproved[0] if unproved else None)


def _at(pairs: Iterable[tuple[Expr, Expr]], at: dict[Expr, Expr]) -> Iterable[tuple[Expr, Expr]]:
    return ((canonical(substitute(a, at)), canonical(substitute(b, at))) for a, b in pairs)


def _doubt(rows: list[_Row], M: Expr) -> str:
    """Which rows may keep no key: exactly those of a single conjunction of intervals."""
    if not rows:
        return "no row keeps a key"
    if len(rows) > 1:
        return "no key is proved to be kept by every row"
    one = rows[0]
    gap = one.gap()
    if gap is None:
        masked = (a.condition for a in one.atoms if isinstance(a, Opaque | Congruence))
        return f"{next(masked, 'the mask')} may leave a row without a key"
    q = Var(one.normal.q)
    rest, slope = gap.without(q), gap.coefficient(q)
    if q.name in free_vars(express(rest)) or slope not in (-1, 0, 1):
        return f"rows with {_positive(gap.scaled(-1))} keep no key"
    if slope == 1:
        edge = rest.scaled(-1)  # rows below it have none
        return f"rows 0 to {express(edge.shifted(-1))} keep no key when {_positive(edge)}"
    if slope == -1:
        past = affine(M) - rest.shifted(1)
        return f"rows {express(rest.shifted(1))} to {minus(M, 1)} keep no key when {_positive(past)}"
    return f"no row keeps a key when {_positive(gap.scaled(-1))}"


def _positive(form: Affine) -> str:
    """form > 0 with only positive terms on either side."""
    left = Affine(tuple((t, c) for t, c in form.terms if c > 0), max(form.const, 0))
    right = Affine(tuple((t, -c) for t, c in form.terms if c < 0), max(-form.const, 0))
    return f"{express(left)} > {express(right)}"
