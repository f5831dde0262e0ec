"""What is known about scalars, and proofs of `e >= 0` from it.

A proof is a nonnegative combination of known forms (Farkas), found by eliminating one term after another; `min`, `max`, `abs` and
`where` are split into cases, and floored quotients bring their own bounds.  Proofs are sound for all integers; the
search is bounded, so `False` means "not proved".  Upper-case variables are extents and tile constants: never negative,
and positive where something is divided by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import permutations

from tilec.arith.affine import Affine, affine, canonical, minus
from tilec.ir.build import maximum, minimum
from tilec.ir.expr import ONE, ZERO, Bool, Expr, Int, Op, Var, walk

DEPTH = 6  # eliminations in one proof
STEPS = 200  # forms tried in one proof
EFFORT = 5_000  # forms looked at by one set of facts; after that nothing new is proved
LEVELS = 6  # guards taken as facts inside each other


class Facts:
    """Known comparisons.  Anything that is not a comparison of affine forms, or `x % n == 0`, is ignored."""

    def __init__(self, known: Iterable[Expr] = ()) -> None:
        self.known: tuple[Expr, ...] = tuple(known)
        self._forms: list[Affine] = []
        self._multiples: list[tuple[Expr, Expr]] = []
        self._memo: dict[Affine, bool] = {}
        self._absurd = False
        self._level = 0
        self._effort = [EFFORT]
        self._derived: dict[Expr, Facts] = {}
        for e in self.known:
            self._learn(e)

    def with_(self, *more: Expr) -> Facts:
        """These facts and more."""
        return Facts((*self.known, *more))

    def _learn(self, e: Expr) -> None:
        match e:
            case Op("and", (a, b)):
                self._learn(a)
                self._learn(b)
            case Op("==", (Op("%", (x, n)), Int(0))):
                self._multiples.append((canonical(x), canonical(n)))
            case Op(op, (a, b)) if op in ("<=", "<", ">=", ">", "=="):
                d = affine(b) - affine(a)
                if op in ("<=", "<", "=="):
                    self._forms += _conjuncts(d.shifted(-1 if op == "<" else 0))
                if op in (">=", ">", "=="):
                    self._forms += _conjuncts(d.scaled(-1).shifted(-1 if op == ">" else 0))

    def nonnegative(self, e: Expr | Affine) -> bool:
        """Is e >= 0 proved?"""
        form = affine(e) if isinstance(e, Expr) else e
        if form not in self._memo and self._level <= LEVELS and self._effort[0] > 0:
            self._effort[0] -= 1
            self._memo[form] = False  # a proof that needs itself is none
            self._memo[form] = self._cases(form)
        return self._memo.get(form, False)

    def at_most(self, a: Expr, b: Expr) -> bool:
        """Is a <= b proved?"""
        return a is b or self.nonnegative(affine(b) - affine(a))

    def holds(self, cond: Expr) -> bool:
        """Is a comparison, or a combination of them by `and` and `or`, proved?"""
        match cond:
            case Bool(v):
                return v
            case Op("and", (a, b)):
                return self.holds(a) and self.holds(b)
            case Op("or", (a, b)):
                return self.holds(a) or self.holds(b)
            case Op("<=", (a, b)) | Op(">=", (b, a)):
                return self.at_most(a, b)
            case Op("<", (a, b)) | Op(">", (b, a)):
                return self.nonnegative((affine(b) - affine(a)).shifted(-1))
            case Op("==", (Op("%", (x, n)), Int(0))):
                return self.multiple(x, n)
            case Op("==", (a, b)):
                return self.at_most(a, b) and self.at_most(b, a)
            case Op("!=", (a, b)):
                return self.holds(Op("<", (a, b))) or self.holds(Op(">", (a, b)))
        return cond in self.known

    def multiple(self, e: Expr, n: Expr) -> bool:
        """Is e proved to be a multiple of n?"""
        form, n = affine(e), canonical(n)
        if any(x is canonical(e) and _divides(n, m) for x, m in self._multiples):
            return True
        if form.const and not (isinstance(n, Int) and n.value and form.const % n.value == 0):
            return False
        return all(
            (isinstance(n, Int) and n.value and c % n.value == 0) or self._multiple_term(t, n) for t, c in form.terms
        )

    def _multiple_term(self, t: Expr, n: Expr) -> bool:
        if t is n or any(x is t and _divides(n, m) for x, m in self._multiples):
            return True
        match t:
            case Op("min" | "max", (a, b)) | Op("where", (_, a, b)):
                return self.multiple(a, n) and self.multiple(b, n)
            case Op("*", (a, b)):
                return self.multiple(a, n) or self.multiple(b, n)
        return False

    def _cases(self, form: Affine) -> bool:
        """Splits min, max, abs and where; first those of which every case must hold, then those of which one must."""
        splits = [(t, c, s) for t, c in form.terms if (s := _cases_of(t))]
        for t, c, (kind, options) in splits:
            if kind == "where":
                rest, (cond, *branches) = form.without(t), options
                cases = zip((cond, negated(cond)), branches, strict=True)
                return all(self._under(g).nonnegative(rest + affine(o).scaled(c)) for g, o in cases)
        for every in (True, False):
            for t, c, (kind, options) in splits:
                if ((kind == "min") == (c > 0)) == every:
                    rest = form.without(t)
                    proofs = (self.nonnegative(rest + affine(o).scaled(c)) for o in options)
                    return all(proofs) if every else any(proofs)
        return self._absurd or self._linear(form)

    def _under(self, guard: Expr) -> Facts:
        """These facts and a guard; where they contradict each other, everything is proved."""
        if guard not in self._derived:
            inner = self.with_(guard)
            inner._level, inner._effort = self._level + 1, self._effort
            forms = inner._forms[len(self._forms) :]
            inner._absurd = self._absurd or any(inner._linear(f.scaled(-1).shifted(-1)) for f in forms)
            self._derived[guard] = inner
        return self._derived[guard]

    def _linear(self, form: Affine) -> bool:
        if not form.terms:
            return form.const >= 0
        facts = [*self._forms, *self._implied(form)]
        seen: set[Affine] = set()
        proved = _combine(form, facts, DEPTH, seen)
        self._effort[0] -= len(seen)
        return proved

    def _implied(self, form: Affine) -> Iterator[Affine]:
        """Bounds that the terms have by what they are."""
        terms = list(dict.fromkeys(t for f in (form, *self._forms) for t, _ in f.terms))
        variables = dict.fromkeys(v for t in terms for v in walk(t) if isinstance(v, Var))
        yield from (Affine(((v, 1),)) for v in variables if v.name[0].isupper())
        quotients = []
        for t in terms:
            match t:
                case Op("//", (x, d)):
                    quotients.append((t, x, d))
                    if isinstance(d, Int) and d.value > 0:
                        gap = affine(x) - Affine(((t, d.value),))
                        yield from _conjuncts(gap)
                        yield from _conjuncts(gap.scaled(-1).shifted(d.value - 1))
                    elif isinstance(d, Var):
                        yield Affine(((d, 1),), -1)
                    if self.nonnegative(x):
                        yield Affine(((t, 1),))
                case Op("%", (_, d)) if isinstance(d, Int) and d.value > 0:
                    yield Affine(((t, 1),))
                    yield Affine(((t, -1),), d.value - 1)
                case Op("*", (a, b)) if self.nonnegative(a) and self.nonnegative(b):
                    yield Affine(((t, 1),))
        in_form = {t for t, _ in form.terms}
        inside = [(t, x, d) for t, x, d in quotients if t in in_form and (isinstance(d, Var) or _positive(d))]
        for (t, x, d), (u, y, e) in permutations(inside, 2):
            # x >= y gives x // d >= y // d;  x + d >= y gives x // d + 1 >= y // d
            gap, known = affine(x) - affine(y), self._under(Op(">=", (d, ONE)))
            if d is e and known.nonnegative(gap):
                yield Affine(((t, 1), (u, -1)))
            elif d is e and known.nonnegative(gap + affine(d)):
                yield Affine(((t, 1), (u, -1)), 1)


def _positive(e: Expr) -> bool:
    return isinstance(e, Int) and e.value > 0


def _divides(n: Expr, m: Expr) -> bool:
    return n is m or (isinstance(n, Int) and isinstance(m, Int) and n.value != 0 and m.value % n.value == 0)


def _cases_of(t: Expr) -> tuple[str, tuple[Expr, ...]] | None:
    match t:
        case Op("min" | "max" as kind, options):
            return kind, options
        case Op("abs", (x,)):
            return "max", (x, minus(ZERO, x))
        case Op("where", options):
            return "where", options
    return None


def negated(condition: Expr) -> Expr:
    """The opposite of a condition, comparisons turned around."""
    flip = {"<=": ">", "<": ">=", ">=": "<", ">": "<=", "==": "!=", "!=": "=="}
    match condition:
        case Bool(v):
            return Bool(not v)
        case Op("not", (c,)):
            return c
        case Op("and" | "or" as op, (a, b)):
            return Op("or" if op == "and" else "and", (negated(a), negated(b)))
        case Op(op, args) if op in flip:
            return Op(flip[op], args)
    return Op("not", (condition,))


def _conjuncts(form: Affine) -> Iterator[Affine]:
    """Known forms without min and max: `min(a, b) + c >= 0` is two of them; a disjunction is dropped."""
    for t, c in form.terms:
        if split := _cases_of(t):
            kind, options = split
            if kind != "where" and (kind == "min") == (c > 0):
                for o in options:
                    yield from _conjuncts(form.without(t) + affine(o).scaled(c))
            return
    yield form


def _combine(form: Affine, facts: list[Affine], depth: int, seen: set[Affine]) -> bool:
    """form = sum of nonnegative multiples of facts, plus a nonnegative constant?"""
    if not form.terms:
        return form.const >= 0
    if depth == 0 or form in seen or len(seen) > STEPS:
        return False
    seen.add(form)
    choices = [[(f, c, d) for f in facts if (d := f.coefficient(t)) * c > 0] for t, c in form.terms]
    # Every term has to go: begin with the one that the fewest facts can take away.
    return any(
        _combine(form.scaled(abs(d)) - f.scaled(abs(c)), facts, depth - 1, seen) for f, c, d in min(choices, key=len)
    )


def least(facts: Facts, *xs: Expr) -> Expr:
    """Their minimum, without those that are proved not to matter."""
    return minimum(*_undominated(_flat("min", xs), facts.at_most))


def greatest(facts: Facts, *xs: Expr) -> Expr:
    """Their maximum, without those that are proved not to matter; max(min(n, a), min(n, b)) is min(n, max(a, b))."""
    kept = _undominated(_flat("max", xs), lambda a, b: facts.at_most(b, a))
    caps = [x.args for x in kept if isinstance(x, Op) and x.name == "min"]
    if len(kept) > 1 and len(caps) == len(kept) and all(c[0] is caps[0][0] for c in caps):
        return minimum(caps[0][0], greatest(facts, *(c[1] for c in caps)))
    return maximum(*kept)


def _flat(name: str, xs: Iterable[Expr]) -> list[Expr]:
    out: list[Expr] = []
    for x in map(canonical, xs):
        out += _flat(name, x.args) if isinstance(x, Op) and x.name == name else [x]
    return out


def _undominated(xs: list[Expr], wins: Callable[[Expr, Expr], bool]) -> list[Expr]:
    kept = list(dict.fromkeys(xs))
    for x in tuple(kept):
        if len(kept) > 1 and any(y is not x and wins(y, x) for y in kept):
            kept.remove(x)
    return kept
