"""The softmax of a key step in parts of its keys, so that a part's exponentials stand beside a product that needs none of them.

A step's statements are sorted into

    statistics  scores, running maximum, the factor by which what was gathered shrinks: of all parts, before any exponential
    weights     per part: exponentials, their sum, and the rounded operand

PART    a tile over the keys is a stage of its buffer per part, whose lanes count from the part's first key
SUM     a row that is scaled and to which sums over the keys are added is scaled among the statistics; each part adds its own
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.expr import Expr, Float, Int, Op, Read, Reduce, transform, walk
from tilec.ir.nodes import Buffer, Compute, Load, Slot, Stmt, map_exprs
from tilec.passes.key_steps import shifted

NOTHING = Float(0.0)
COMBINE: dict[str, str] = {"max": "max", "min": "min", "sum": "+"}


@dataclass(frozen=True)
class Parts:
    """`count` parts of `size` keys each; `wide`: buffers over the key axis `k`, which have a stage per part."""

    k: str
    wide: frozenset[str]
    count: int
    size: int

    def stage(self, part: int) -> Int | None:
        """Of a wide buffer."""
        return Int(part) if self.count > 1 else None

    def buffer(self, b: Buffer) -> Buffer:
        """A wide buffer in parts."""
        axes = tuple(replace(a, size=Int(self.size)) if a.name == self.k else a for a in b.axes)
        return replace(b, axes=axes, stages=self.count)

    def of(self, s: Stmt, part: int) -> Stmt:
        """The part's share of a statement that computes or loads a wide buffer."""
        assert isinstance(s, Compute | Load)
        s = shifted(map_exprs(s, lambda e: self._reads(e, part)), self.k, Int(part * self.size)) if part else s
        s = s if part else map_exprs(s, lambda e: self._reads(e, 0))
        assert isinstance(s, Compute | Load)
        return replace(s, dst=Slot(s.dst.buffer, self.stage(part)))

    def whole(self, s: Stmt) -> Stmt:
        """A statement over rows, with its reductions over all parts."""

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Reduce) or e.axis != self.k:
                return None
            found = self.reduction(e, 0)
            for part in range(1, self.count):
                found = Op(COMBINE[e.op], (found, self.reduction(e, part)))
            return found

        return map_exprs(s, lambda e: _once(e, rule))

    def reduction(self, e: Reduce, part: int) -> Expr:
        """Of the part alone."""
        return Reduce(e.op, e.axis, self._reads(e.x, part), e.chains)

    def _reads(self, e: Expr, part: int) -> Expr:
        def rule(x: Expr) -> Expr | None:
            return Read(x.buffer, self.stage(part)) if isinstance(x, Read) and x.buffer in self.wide else None

        return transform(e, rule)


def _once(e: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """`rule` where it first applies from the top: not inside what it made."""
    found = rule(e)
    if found is not None:
        return found
    match e:
        case Op(name, args):
            return Op(name, tuple(_once(a, rule) for a in args))
    return e


@dataclass(frozen=True)
class Softmax:
    """The sorted statements; `weights` has those of each part."""

    statistics: tuple[Stmt, ...]
    weights: tuple[tuple[Stmt, ...], ...]


def sort(statements: tuple[Stmt, ...], parts: Parts) -> Softmax:
    """The softmax of a step, `statements` in order.  ScheduleFault E0811 where a part cannot stand for itself."""
    first = _first_weights(statements, parts)
    statistics: list[Stmt] = []
    for s in statements[:first]:
        statistics += [parts.of(s, p) for p in range(parts.count)] if _wide(s, parts) else [parts.whole(s)]
    weights: list[list[Stmt]] = [[] for _ in range(parts.count)]
    later = [s for s in statements[first:] if _wide(s, parts)]
    for s in statements[first:]:
        if _wide(s, parts):
            for p in range(parts.count):
                weights[p].append(parts.of(s, p))
            continue
        assert isinstance(s, Compute | Load)
        me, total = Read(s.dst.buffer), _total(s)
        if any(me in walk(e) for x in later for e in _values(x)) or (total is None and _reduces(s, parts)):
            raise ScheduleFault(
                "E0811",
                f"`{s.dst.buffer}` is not computed part by part of the keys",
                hint="the portable backend takes it",
            )
        if total is None:
            statistics.append(s)
            continue
        before, added = total
        if before is not me:
            statistics.append(Compute(s.dst, before))
        for p in range(parts.count):
            weights[p].append(Compute(s.dst, Op("+", (me, parts.reduction(added, p)))))
    return Softmax(tuple(statistics), tuple(map(tuple, weights)))


def _first_weights(statements: tuple[Stmt, ...], parts: Parts) -> int:
    """Number of the first statement over the keys behind the maximum of a row."""
    seen = False
    for n, s in enumerate(statements):
        if seen and _wide(s, parts):
            return n
        seen |= any(isinstance(x, Reduce) and x.op == "max" and x.axis == parts.k for e in _values(s) for x in walk(e))
    return len(statements)


def _wide(s: Stmt, parts: Parts) -> bool:
    return isinstance(s, Compute | Load) and s.dst.buffer in parts.wide


def _reduces(s: Compute | Load, parts: Parts) -> bool:
    return any(isinstance(x, Reduce) and x.axis == parts.k for e in _values(s) for x in walk(e))


def _values(s: Stmt) -> list[Expr]:
    found: list[Expr] = []

    def note(e: Expr) -> Expr:
        found.append(e)
        return e

    map_exprs(s, note)
    return found


def _total(s: Compute | Load) -> tuple[Expr, Reduce] | None:
    """What a row is before sums over the keys are added to it, and the sum; None for another form."""
    if not isinstance(s, Compute):
        return None
    match s.value:
        case Op("+", (before, Reduce("sum") as added)):
            return before, added
        case Reduce("sum") as added:
            return NOTHING, added
    return None


def same_rows(wanted: tuple[Stmt, ...], own: tuple[Stmt, ...]) -> tuple[Compute, ...]:
    """What gives rows that `wanted` reads the values of those that `own` reads in their place.

    ScheduleFault E0811 where the two differ by more than the rows that they read."""
    pairs: dict[str, str] = {}
    alike = len(wanted) == len(own) and all(_match(a, b, pairs) for a, b in zip(wanted, own, strict=True))
    if not alike:
        message = "the loops over keys compute their weights in more than one way"
        raise ScheduleFault("E0811", message, hint="the portable backend takes it")
    return tuple(Compute(Slot(a), Read(b)) for a, b in pairs.items())


def _match(a: Stmt, b: Stmt, pairs: dict[str, str]) -> bool:
    mine, other = _values(a), _values(b)
    same = type(a) is type(b) and len(mine) == len(other)
    return same and all(_like(x, y, pairs) for x, y in zip(mine, other, strict=True))


def _like(a: Expr, b: Expr, pairs: dict[str, str]) -> bool:
    """Whether the two are alike but for rows, whose names become a pair."""
    if a is b:
        return True
    match a, b:
        case Read(x, None), Read(y, None):
            return pairs.setdefault(x, y) == y
        case (Op(f, mine), Op(g, other)) if f == g and len(mine) == len(other):
            return all(_like(x, y, pairs) for x, y in zip(mine, other, strict=True))
        case Reduce(f, i, x), Reduce(g, j, y):
            return (f, i) == (g, j) and _like(x, y, pairs)
    return False
