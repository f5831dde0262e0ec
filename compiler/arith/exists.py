"""Does a union of conjunctions hold somewhere in a box of positions?  Exact for bound symbols, but for opaque atoms.

Difference constraints with at most one congruence are decided by closure: every integer of the closed range of q, k or q - k is
attained, so the congruence is a test on that range.  Everything else is scanned by rows, each with an interval of keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.arith.affine import canonical, plus, times
from tilec.arith.constraints import (
    KEY,
    ORIGIN,
    ROW,
    Atom,
    Congruence,
    Conjunction,
    Differences,
    Opaque,
    Order,
    Uniform,
    Union,
    difference_nodes,
)
from tilec.arith.evaluate import Env, evaluate
from tilec.arith.formula import Normal
from tilec.arith.solve import End, solve
from tilec.ir.expr import Expr

Box = tuple[int, int, int, int]  # q0..q1, k0..k1, inclusive


def holds_in(union: Union, box: Box, env: Env, normal: Normal) -> bool | None:
    """Does some conjunction hold at some position of the box?  None: an opaque atom or an unbound name leaves it open."""
    doubt = False
    for atoms in union:
        found = _exists(atoms, box, env, normal)
        if found:
            return True
        doubt |= found is None
    return None if doubt else False


def rows_held(atoms: Conjunction, box: Box, env: Env) -> tuple[int, int] | None:
    """The rows of the box that keep a key, as a range (lo > hi: none), for a conjunction of difference constraints;
    None for any other conjunction."""
    bound = [_Bound(a, env) for a in atoms]
    if any(b.never for b in bound):
        return 0, -1
    if any(b.unknown or isinstance(b.atom, Congruence) or (isinstance(b.atom, Order) and not b.nodes) for b in bound):
        return None
    system = _system(bound, box)
    return system.range_of(ROW) if system.close() else (0, -1)


class _Bound:
    """An atom with its numbers.  `unknown`: opaque, or a name that `env` does not bind; `never`: it holds nowhere."""

    def __init__(self, atom: Atom, env: Env) -> None:
        self.atom = atom
        self.unknown = self.never = False
        self.rest = self.shift = self.period = self.width = 0
        self.nodes = difference_nodes(atom) if isinstance(atom, Order) else None
        try:
            match atom:
                case Order(_, _, rest, _):
                    self.rest = evaluate(rest, env)
                case Congruence(_, _, shift, period, width):
                    self.shift, self.period, self.width = (evaluate(x, env) for x in (shift, period, width))
                    self.never = self.width < 0
                case Uniform(condition):
                    self.never = not evaluate(condition, env)
                case Opaque():
                    self.unknown = True
        except (KeyError, ValueError):
            self.unknown = True

    def meets(self, lo: int, hi: int) -> bool:
        """Is there x in lo..hi with (x - shift) % period <= width?"""
        return (lo - self.shift) % self.period <= self.width or lo + (self.shift - lo) % self.period <= hi


def _exists(atoms: Conjunction, box: Box, env: Env, normal: Normal) -> bool | None:
    bound = [_Bound(a, env) for a in atoms]
    if any(b.never for b in bound):
        return False
    known = [b for b in bound if not b.unknown]
    congruences = [b.atom for b in known if isinstance(b.atom, Congruence)]
    simple = len(congruences) <= 1 and all({abs(c.q), abs(c.k), abs(c.q + c.k)} <= {0, 1} for c in congruences)
    found: bool | None
    if simple and all(b.nodes or not isinstance(b.atom, Order) for b in known):
        found = _closed(known, box)
    else:
        found = _scanned([b.atom for b in known], box, env, normal)
    return None if found and len(known) < len(bound) else found


def _system(bound: list[_Bound], box: Box) -> Differences:
    system = Differences(*box)
    for b in bound:
        if b.nodes:
            system.limit(*b.nodes, b.rest)
    return system


def _closed(known: list[_Bound], box: Box) -> bool:
    system = _system(known, box)
    if not system.close():
        return False
    for b in known:
        if isinstance(b.atom, Congruence):
            c = b.atom
            i, j = (ROW, KEY) if c.q and c.k else (ROW if c.q else KEY, ORIGIN)
            lo, hi = system.range_of(i, j)
            return b.meets(lo, hi) if (c.q or c.k) > 0 else b.meets(-hi, -lo)
    return True


def _scanned(atoms: list[Atom], box: Box, env: Env, normal: Normal) -> bool | None:
    """Row by row; None if a tensor is not bound."""
    q0, q1, k0, k1 = box
    limits, tests, guards = _split(atoms, normal)
    try:
        for q in range(q0, q1 + 1):
            row = {**env, normal.q: q}
            if not all(evaluate(g, row) for g in guards):
                continue
            lo = max([k0, *(evaluate(x, row) for end, x in limits if end == "lo")])
            hi = min([k1, *(evaluate(x, row) - 1 for end, x in limits if end == "hi")])
            for k in range(lo, hi + 1):
                if all(evaluate(t, {**row, normal.k: k}) for t in tests):
                    return True
    except (KeyError, IndexError):
        return None
    return False


def _split(atoms: list[Atom], normal: Normal) -> tuple[list[tuple[End, Expr]], list[Expr], list[Expr]]:
    """Limits of k over a row, conditions to test per element, conditions of the row alone."""
    limits: list[tuple[End, Expr]] = []
    tests: list[Expr] = []
    guards: list[Expr] = []
    for a in atoms:
        match a:
            case Order(_, None, _, _):
                guards.append(a.condition)
            case Order(q, k, rest, _) if k is not None and not k.reads:
                at = rest if q is None else plus(times(canonical(q.term), -q.coef), rest)
                limits.append(solve(k, at, normal.k))
            case Uniform():
                ...
            case _:
                tests.append(a.condition)
    return limits, tests, guards


def keeps(normal: Normal, rows: Iterator[int], keys: int, env: Env) -> Iterator[tuple[int, bool | None]]:
    """Of each row, whether it keeps a key."""
    for q in rows:
        yield q, holds_in(normal.union, (q, q, 0, keys - 1), env, normal) if keys > 0 else False
