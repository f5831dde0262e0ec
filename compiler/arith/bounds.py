"""Which keys a tile of query rows needs (`k_bounds`), and which rows a tile of keys needs (`q_bounds`), in closed form.

Of one conjunction, for positions y and all rows x in first..last: every Order atom is solved for y at the row where
its limit is loosest (live: the hull of the union over rows) and where it is tightest (full: the intersection over
rows).  Limits are monotone in the row, so those rows are the ends of the tile.  An atom in x alone narrows the rows, and guards
the range.  Congruences and opaque atoms leave `live` sound and make `full` unknown.

    live    every live (row, position) pair has its position inside      necessary
    full    every (row, position) pair inside is live                    sufficient

A limit through a nondecreasing tensor is the result of a bisection, which the program runs first (`Bounds.seeks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilec.arith.affine import canonical, minus, plus, times
from tilec.arith.constraints import Atom, Congruence, Conjunction, Opaque, Order, Side, Uniform
from tilec.arith.facts import Facts, greatest, least, negated
from tilec.arith.formula import Normal
from tilec.arith.pieces import Piece, Range, merged
from tilec.arith.solve import solve
from tilec.ir.build import all_of, compare, where
from tilec.ir.expr import FALSE, TRUE, ZERO, Expr, Fetch, Op, Var, free_vars, substitute
from tilec.ir.nodes import Seek

__all__ = ["Bounds", "Piece", "Range", "k_bounds", "q_bounds"]


@dataclass(frozen=True)
class Bounds:
    """`seeks` are run in order before anything else.  Pieces may overlap: `tile_segments` orders them and parts them."""

    seeks: tuple[Seek, ...]
    pieces: tuple[Piece, ...]
    facts: Facts = field(compare=False, repr=False)


def k_bounds(
    normal: Normal, first: Expr, last: Expr, extent: Expr, assumes: Iterable[Expr] = (), *, name: str = "seek"
) -> Bounds:
    """Key positions of 0 … extent that the rows first..last (inclusive, 0 <= first <= last) need.

    `assumes` may say more about the scalars (`last < M`, `N >= M`); seeks are called `{name}0`, `{name}1`, …"""
    return _bounds(normal, normal.k, normal.q, first, last, extent, assumes, name)


def q_bounds(
    normal: Normal, first: Expr, last: Expr, extent: Expr, assumes: Iterable[Expr] = (), *, name: str = "seek"
) -> Bounds:
    """Row positions of 0 … extent that need the keys first..last (inclusive)."""
    return _bounds(normal, normal.q, normal.k, first, last, extent, assumes, name)


def _bounds(
    normal: Normal,
    var: str,
    row: str,
    first: Expr,
    last: Expr,
    extent: Expr,
    assumes: Iterable[Expr],
    name: str,
) -> Bounds:
    known = (compare("<=", ZERO, first), compare("<=", first, last), compare("<=", ZERO, extent), *assumes)
    solver = _Solver(normal, var, row, canonical(first), canonical(last), canonical(extent), Facts(known), name)
    pieces = [p for c in normal.union if (p := solver.piece(c)) is not None]
    kept = merged(pieces, solver.facts)
    used = {v for p in kept for r in (p.live, p.full) if r for v in free_vars(r.lo) | free_vars(r.hi)}
    return Bounds(tuple(s for s in solver.seeks.values() if s.name in used), tuple(kept), solver.facts)


class _Solver:
    """Bounds `var` for the rows first..last of `row`."""

    def __init__(
        self, normal: Normal, var: str, row: str, first: Expr, last: Expr, extent: Expr, facts: Facts, name: str
    ) -> None:
        self.var, self.row, self.first, self.last, self.extent = var, row, first, last, extent
        self.facts, self.name = facts, name
        self.is_k = var == normal.k
        self.seeks: dict[tuple[Expr, str, Expr], Seek] = {}
        self.beyond: dict[Expr, Expr] = {}  # seek: a position p with seek >= min(p, extent)

    def piece(self, atoms: Conjunction) -> Piece | None:
        """The ranges of one conjunction; None if it is proved to have no live position."""
        orders = [a for a in atoms if isinstance(a, Order)]
        rows = [a for a in orders if self.own(a) is None]
        uniform = [a.condition for a in atoms if isinstance(a, Uniform)]
        first, last, live_guard, full_guard = self.rows(rows)

        live: dict[str, list[Expr]] = {"lo": [], "hi": []}
        full: dict[str, list[Expr]] = {"lo": [], "hi": []}
        shown: dict[str, list[tuple[str, Expr]]] = {}
        for a in orders:
            if (own := self.own(a)) is None:
                continue
            other = self.other(a)
            falls = other is not None and other.direction > 0  # the limit falls as the row grows
            loose, tight = (first, self.last) if falls else (last, self.first)
            if other is not None and other.reads:  # narrowed rows may lie outside the tensor
                loose = self.first if falls else self.last
            side, limit = self.solve(own, self.rest(a, loose))
            live[side].append(limit)
            full[side].append(self.solve(own, self.rest(a, tight))[1])
            shown.setdefault(str(a.source), []).append((side, limit))

        because = [f"of rows with {a.source}" for a in rows]
        for source, limits in shown.items():
            kept = [(s, x) for s, x in limits if s == "lo" or not self.surpassed(x, live["hi"])]
            ends = ", ".join(f"{self.var} {'<' if s == 'hi' else '>='} {x}" for s, x in kept)
            if kept:
                because.append(source if ends == source else f"{source}  =>  {ends}")
        because += [f"only when {c}" for c in uniform]
        return self.finish(atoms, live, full, all_of(*uniform, *live_guard), all_of(*uniform, *full_guard), because)

    def finish(
        self,
        atoms: Conjunction,
        live: dict[str, list[Expr]],
        full: dict[str, list[Expr]],
        live_guard: Expr,
        full_guard: Expr,
        why: list[str],
    ) -> Piece | None:
        """Clips to 0 … extent and applies the guards."""
        live_range = self.clipped(live, live_guard)
        if live_range is None:
            return None
        masked = [text for a in atoms if (text := _needs_mask(a))]
        full_range = None if masked else self.clipped(full, full_guard)
        return Piece(live_range, full_range, "; ".join(why + masked) or "every position is live")

    def clipped(self, limits: dict[str, list[Expr]], guard: Expr) -> Range | None:
        lo = greatest(self.facts, ZERO, *limits["lo"])
        hi = least(self.facts, self.extent, *(x for x in limits["hi"] if not self.surpassed(x, limits["hi"])))
        if guard is FALSE or self.facts.at_most(hi, lo):
            return None
        return Range(lo, where(guard, hi, ZERO))

    def surpassed(self, x: Expr, limits: list[Expr]) -> bool:
        """Is x a seek that is at least the minimum of the extent and another limit?"""
        floor = self.beyond.get(x)
        return floor is not None and any(y not in self.beyond and self.facts.at_most(y, floor) for y in limits)

    def rows(self, atoms: list[Order]) -> tuple[Expr, Expr, list[Expr], list[Expr]]:
        """Of atoms in the row alone: the rows of first..last they leave, when there are any, when all are left."""
        limits: dict[str, list[Expr]] = {"lo": [], "hi": []}
        live: list[Expr] = []
        full: list[Expr] = []
        for a in atoms:
            own = self.other(a)
            assert own is not None
            if own.reads:
                lower, upper = (self.first, self.last) if own.direction > 0 else (self.last, self.first)
                live.append(compare("<=", self.side_at(own, lower), a.rest))
                full.append(compare("<=", self.side_at(own, upper), a.rest))
                continue
            side, limit = solve(own, a.rest, self.row)
            limits[side].append(limit)
        first = greatest(self.facts, self.first, *limits["lo"])
        last = least(self.facts, self.last, *(minus(x, 1) for x in limits["hi"]))
        live += [compare("<", self.first, x) for x in limits["hi"]]
        live += [compare("<=", x, self.last) for x in limits["lo"]]
        live += [compare("<", a, b) for a in limits["lo"] for b in limits["hi"]]
        full += [compare("<", self.last, x) for x in limits["hi"]]
        full += [compare("<=", x, self.first) for x in limits["lo"]]
        return first, last, self.open(live), self.open(full)

    def open(self, conditions: list[Expr]) -> list[Expr]:
        """Conditions that are not proved; one that is refuted becomes false."""
        out: list[Expr] = []
        for c in conditions:
            assert isinstance(c, Op) or c is TRUE or c is FALSE
            if isinstance(c, Op) and self.facts.holds(negated(c)):
                return [FALSE]
            if not self.facts.holds(c):
                out.append(c)
        return out

    # One atom

    def own(self, a: Order) -> Side | None:
        """The side of the bounded variable."""
        return a.k if self.is_k else a.q

    def other(self, a: Order) -> Side | None:
        """The side of the row."""
        return a.q if self.is_k else a.k

    def rest(self, a: Order, at: Expr) -> Expr:
        """The limit of the own side at a row."""
        other = self.other(a)
        return a.rest if other is None else plus(minus(ZERO, self.side_at(other, at)), a.rest)

    def side_at(self, side: Side, at: Expr) -> Expr:
        """A side of the row, at a row."""
        return times(canonical(substitute(side.term, {Var(self.row): at})), side.coef)

    def solve(self, side: Side, v: Expr) -> tuple[str, Expr]:
        """`side <= v`, solved for the bounded variable."""
        return solve(side, v, self.var, self.seek)

    def seek(self, read: Fetch, op: str, v: Expr) -> Expr:
        """The least position whose element is `op` v, or the end of the sequence."""
        key = (read, op, v)
        if key not in self.seeks:
            name = Var(f"{self.name}{len(self.seeks)}")
            cond = Op(op, (substitute(read, {Var(self.var): name}), v))
            self.seeks[key] = Seek(name.name, ZERO, self.extent, cond)
            self.facts = self.facts.with_(compare("<=", ZERO, name), compare("<=", name, self.extent))
            self.relate(key, name)
        return Var(self.seeks[key].name)

    def relate(self, key: tuple[Expr, str, Expr], name: Var) -> None:
        """What follows from the order of the tensor.

        `doc[v] > doc[x]` is first true after x, `doc[v] >= doc[x]` not after x; positions are ordered as the values sought."""
        read, op, v = key
        if (at := self.position(read, v)) is None:
            return
        known: list[Expr] = []
        if op == ">=":
            known.append(compare("<=", name, at))
        elif self.facts.at_most(plus(at, 1), self.extent):
            known.append(compare(">=", name, plus(at, 1)))
        self.beyond |= {name: plus(at, 1)} if op == ">" else {}
        for (r, o, w), s in self.seeks.items():
            if s.name != name.name and r is read and (x := self.position(r, w)) is not None:
                if self.facts.at_most(at, x) and (op == o or op == ">="):
                    known.append(compare("<=", name, Var(s.name)))
                elif self.facts.at_most(x, at) and (op == o or o == ">="):
                    known.append(compare("<=", Var(s.name), name))
        self.facts = self.facts.with_(*known)

    def position(self, read: Expr, v: Expr) -> Expr | None:
        """x if v is what `read` gives at x."""
        if isinstance(v, Fetch) and isinstance(read, Fetch):
            for x in (self.first, self.last):
                if substitute(read, {Var(self.var): x}) is v:
                    return x
        return None


def _needs_mask(a: Atom) -> str | None:
    match a:
        case Congruence():
            return f"{a.condition} is tested per element"
        case Opaque(_, culprit, reason):
            return f"{culprit} is tested per element: {reason}"
    return None
