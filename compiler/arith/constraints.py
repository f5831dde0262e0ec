"""The language of mask proofs: atoms, their conjunctions, and the closure of difference constraints.

A mask is a union of conjunctions of these atoms over the query position q and the key position k:

    Order        a*Q(q) + b*K(k) <= rest     Q, K monotone: the variable, `(q + 3) // 64`, a nondecreasing `doc[b, q]`
    Congruence   (a*q + b*k - shift) % period <= width      equality is width 0; its negation is of the same form
    Uniform      a condition free of q and k
    Opaque       anything else, with the reason

Difference constraints (a = -b = 1, Q = q, K = k, or one of them absent) have integral vertices, so the shortest-path closure
over three nodes decides exactly whether a box holds a solution (Cormen et al., Introduction to Algorithms, 24.4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.arith.affine import minus, plus, times
from tilec.ir.build import call, compare, mod
from tilec.ir.expr import FALSE, ZERO, Bool, Expr, Fetch, Int, Var, walk

INFINITE = 1 << 62


@dataclass(frozen=True)
class Side:
    """`coef * term`; the term depends on one of q and k alone and is monotone in it: `trend` is 1 or -1."""

    coef: int
    term: Expr
    trend: int = 1

    @property
    def direction(self) -> int:
        """1 if the side grows with its variable, -1 if it falls."""
        return self.trend if self.coef > 0 else -self.trend

    @property
    def reads(self) -> bool:
        """Does it read a tensor?"""
        return any(isinstance(x, Fetch) for x in walk(self.term))


@dataclass(frozen=True)
class Order:
    """q + k <= rest, where an absent side counts as 0; not both are absent."""

    q: Side | None
    k: Side | None
    rest: Expr
    source: Expr = field(compare=False)

    @property
    def condition(self) -> Expr:
        """The atom as an expression, `k <= q + 5` rather than `k - q <= 5`."""
        left: list[Expr] = []
        right: list[Expr] = []
        for s in (self.k, self.q):
            if s is not None:
                (left if s.coef > 0 else right).append(times(s.term, abs(s.coef)))
        if left:
            return compare("<=", plus(*left), plus(*right, self.rest))
        return compare(">=", plus(*right), minus(ZERO, self.rest))


@dataclass(frozen=True)
class Congruence:
    """(q*Q + k*K - shift) % period <= width, for q, k the integer coefficients of the positions; the period is positive."""

    q: int
    k: int
    shift: Expr
    period: Expr
    width: Expr
    names: tuple[str, str]
    source: Expr = field(compare=False)

    @property
    def condition(self) -> Expr:
        """The atom as an expression."""
        form = plus(times(Var(self.names[0]), self.q), times(Var(self.names[1]), self.k), minus(ZERO, self.shift))
        op = "==" if self.width is ZERO else "<="
        return compare(op, mod(form, self.period), self.width)

    @property
    def negated(self) -> Congruence:
        """The rest of the residues: (x - shift - width - 1) % period <= period - width - 2."""
        return Congruence(
            self.q,
            self.k,
            plus(self.shift, self.width, 1),
            self.period,
            plus(minus(self.period, self.width), -2),
            self.names,
            call("not", self.source),
        )


@dataclass(frozen=True)
class Uniform:
    """A condition that is the same for all q and k."""

    condition: Expr

    @property
    def source(self) -> Expr:
        return self.condition


@dataclass(frozen=True)
class Opaque:
    """A condition outside the language.  `culprit` is the sub-expression (of the mask as written) that put it there."""

    condition: Expr
    culprit: Expr
    reason: str

    @property
    def source(self) -> Expr:
        return self.condition


Atom = Order | Congruence | Uniform | Opaque
Conjunction = tuple[Atom, ...]
Union = tuple[Conjunction, ...]


def both(a: Union, b: Union) -> Union:
    """The intersection of two unions; repeated atoms and repeated or false conjunctions are dropped."""
    return _tidy(tuple(tuple(dict.fromkeys((*x, *y))) for x in a for y in b))


def either(a: Union, b: Union) -> Union:
    """The union of two unions."""
    return _tidy((*a, *b))


def _tidy(union: Union) -> Union:
    distinct = {frozenset(c): c for c in union}.values()
    kept = [c for c in distinct if not any(isinstance(a, Uniform) and a.condition is FALSE for a in c)]
    if () in kept:
        return ((),)
    return tuple(c for c in kept if not any(d is not c and set(d) < set(c) for d in kept))


# Nodes of a difference system.
ORIGIN, ROW, KEY = 0, 1, 2


class Differences:
    """Integer difference constraints on a row q and a key k: `most[i][j]` bounds x_i - x_j, x_ORIGIN being 0."""

    def __init__(self, q0: int, q1: int, k0: int, k1: int) -> None:
        self.most = [[0 if i == j else INFINITE for j in range(3)] for i in range(3)]
        self.limit(ROW, ORIGIN, q1)
        self.limit(ORIGIN, ROW, -q0)
        self.limit(KEY, ORIGIN, k1)
        self.limit(ORIGIN, KEY, -k0)

    def limit(self, i: int, j: int, c: int) -> None:
        """Adds x_i - x_j <= c."""
        self.most[i][j] = min(self.most[i][j], c)

    def close(self) -> bool:
        """Shortest paths; False if the system has no integer solution.  Afterwards every bound is attained."""
        d = self.most
        for m in range(3):
            for i in range(3):
                for j in range(3):
                    d[i][j] = min(d[i][j], d[i][m] + d[m][j])
        return all(d[i][i] >= 0 for i in range(3))

    def range_of(self, i: int, j: int = ORIGIN) -> tuple[int, int]:
        """Least and greatest value of x_i - x_j, after `close`; every integer between is attained."""
        return -self.most[j][i], self.most[i][j]


def difference_nodes(atom: Order) -> tuple[int, int] | None:
    """(i, j) if the atom is the difference constraint x_i - x_j <= rest, else None."""

    def coefficient(s: Side | None) -> int | None:
        return 0 if s is None else s.coef if isinstance(s.term, Var) else None

    table = {(1, 0): (ROW, ORIGIN), (-1, 0): (ORIGIN, ROW), (0, 1): (KEY, ORIGIN), (0, -1): (ORIGIN, KEY)}
    table |= {(1, -1): (ROW, KEY), (-1, 1): (KEY, ROW)}
    key = (coefficient(atom.q), coefficient(atom.k))
    return table.get((key[0], key[1])) if key[0] is not None and key[1] is not None else None


def always(atom: Atom) -> bool | None:
    """True or False for an atom that is decided by its constants alone, else None."""
    match atom:
        case Uniform(condition):
            return condition.value if isinstance(condition, Bool) else None
        case Congruence(_, _, _, period, width) if isinstance(width, Int):
            if width.value < 0:
                return False
            if isinstance(period, Int) and width.value >= period.value - 1:
                return True
    return None
