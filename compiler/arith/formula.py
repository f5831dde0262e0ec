"""Normalises a mask to a union of conjunctions of atoms (see `constraints`), and its negation as well.

Rewriting rules, all of them equivalences over the integers (d is an affine form, C and T are positive):

    SPLIT    s*max(a, b) + d <= 0    both hold for s > 0, one for s < 0; min the other way; abs(x) = max(x, -x);
             where(c, a, b)          (c and …a…) or (not c and …b…)
    EQUAL    a == b                  a <= b and b <= a;    a != b: a < b or a > b
    MODULO   x % T <= w              Congruence(x, shift 0, width w);   x % T >= m: Congruence(x, shift m, width T - 1 - m)
             x % T == r              0 <= r < T and Congruence(x, shift r, width 0)
    FLOOR    x // C <= v             x <= C*v + C - 1;     x // C >= v: x >= C*v         where x mixes q and k
    ORDER    a*Q(q) + b*K(k) <= v    divided by the greatest common divisor of a and b

Whatever is left is Opaque, with the sub-expression to blame.  A mask whose union would have more than `LIMIT` conjunctions
is Opaque as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from tilec.arith.affine import Affine, affine, divided, express, minus, plus, times
from tilec.arith.constraints import Atom, Congruence, Opaque, Order, Side, Uniform, Union, always, both, either
from tilec.ir.build import all_of, call, compare
from tilec.ir.expr import COMPARISONS, ZERO, Bool, Expr, Fetch, Float, Int, Op, Var, children, free_vars

LIMIT = 24
NEGATED = {"<=": ">", "<": ">=", ">=": "<", ">": "<=", "==": "!=", "!=": "=="}
Facts = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Normal:
    """A mask in normal form.  `union` has no conjunction for an empty mask and one empty conjunction for a full mask.

    `negation` is the normal form of `not mask`, None if it is too large.  `opaque` lists what is outside the language.
    """

    mask: Expr
    q: str
    k: str
    union: Union
    negation: Union | None
    opaque: tuple[Opaque, ...]


class _TooLarge(Exception):
    """The union has too many conjunctions."""


def normalise(mask: Expr, *, q: str = "q", k: str = "k", params: Facts | None = None) -> Normal:
    """The normal form of a mask over `Var(q)` and `Var(k)`.  `params`: declared facts of the tensors it reads."""
    rules = _Rules(q, k, params or {})
    try:
        union = rules.formula(mask, False)
    except _TooLarge:
        whole = Opaque(mask, mask, f"it has more than {LIMIT} alternatives")
        return Normal(mask, q, k, ((whole,),), None, (whole,))
    negation: Union | None
    try:
        negation = rules.formula(mask, True)
    except _TooLarge:
        negation = None
    opaque = dict.fromkeys((a.culprit, a.reason) for c in union for a in c if isinstance(a, Opaque))
    named = {(a.culprit, a.reason): a for c in union for a in c if isinstance(a, Opaque)}
    return Normal(mask, q, k, union, negation, tuple(named[x] for x in opaque))


class _Rules:
    def __init__(self, q: str, k: str, params: Facts) -> None:
        self.q, self.k, self.params = q, k, params

    def depends(self, e: Expr) -> bool:
        return bool(free_vars(e) & {self.q, self.k})

    # Formulas

    def formula(self, e: Expr, negate: bool) -> Union:
        match e:
            case Bool(v):
                return ((),) if v != negate else ()
            case Op("not", (a,)):
                return self.formula(a, not negate)
            case Op("and" | "or" as op, (a, b)):
                join = either if (op == "or") != negate else both
                return self.bounded(join(self.formula(a, negate), self.formula(b, negate)))
            case Op("where", (c, a, b)):
                yes = both(self.formula(c, False), self.formula(a, negate))
                no = both(self.formula(c, True), self.formula(b, negate))
                return self.bounded(either(yes, no))
            case Op(op, (a, b)) if op in COMPARISONS:
                return self.bounded(self.comparison(NEGATED[op] if negate else op, a, b))
        return self.opaque(call("not", e) if negate else e)

    def bounded(self, union: Union) -> Union:
        if len(union) > LIMIT:
            raise _TooLarge
        return union

    def comparison(self, op: str, a: Expr, b: Expr) -> Union:
        source = compare(op, a, b)
        if not self.depends(source):
            return self.one(Uniform(source))
        if reason := self.blame(source, arithmetic=False):
            return self.one(Opaque(source, *reason))
        d = affine(a) - affine(b)
        match op:
            case "<=" | "<":
                return self.at_most(d.shifted(op == "<"), source)
            case ">=" | ">":
                return self.at_most(d.scaled(-1).shifted(op == ">"), source)
        if (exact := self.residue(op, d, source)) is not None:
            return exact
        if op == "==":
            return both(self.at_most(d, source), self.at_most(d.scaled(-1), source))
        return either(self.at_most(d.shifted(1), source), self.at_most(d.scaled(-1).shifted(1), source))

    def one(self, atom: Atom) -> Union:
        match always(atom):
            case True:
                return ((),)
            case False:
                return ()
        return ((atom,),)

    def opaque(self, condition: Expr) -> Union:
        if not self.depends(condition):
            return self.one(Uniform(condition))
        culprit, reason = self.blame(condition, arithmetic=True) or (condition, "it is not in the language of proofs")
        return self.one(Opaque(condition, culprit, reason))

    # Atoms

    def at_most(self, d: Affine, source: Expr) -> Union:
        """d <= 0."""
        moving = [(t, c) for t, c in d.terms if self.depends(t)]
        rest = minus(ZERO, express(Affine(tuple(x for x in d.terms if x not in moving), d.const)))
        if not moving:
            return self.one(Uniform(compare("<=", ZERO, rest)))
        for t, c in moving:  # SPLIT
            match t:
                case Op("abs", (x,)):
                    return self.split(d, t, c, (x, minus(ZERO, x)), every=c > 0, source=source)
                case Op("max", options):
                    return self.split(d, t, c, options, every=c > 0, source=source)
                case Op("min", options):
                    return self.split(d, t, c, options, every=c < 0, source=source)
                case Op("where", (cond, x, y)):
                    yes, no = (self.at_most(d.without(t) + affine(v).scaled(c), source) for v in (x, y))
                    return self.bounded(
                        either(both(self.formula(cond, False), yes), both(self.formula(cond, True), no))
                    )
        if len(moving) == 1:
            (t, c) = moving[0]
            v = divided(rest, abs(c)) if c > 0 else minus(ZERO, divided(rest, abs(c)))  # t <= v, or t >= v
            match t:
                case Op("%", (x, period)) if (form := self.linear(x)) and self.positive(period):  # MODULO
                    shift, width = (ZERO, v) if c > 0 else (v, minus(minus(period, 1), v))
                    return self.one(self.congruence(form, shift, period, width, source))
                case Op("//", (x, divisor)) if self.mixes(x) and self.positive(divisor):  # FLOOR
                    if c > 0:
                        return self.at_most(affine(minus(x, plus(times(divisor, v), minus(divisor, 1)))), source)
                    return self.at_most(affine(minus(times(divisor, v), x)), source)
        return self.order(moving, rest, source)

    def split(self, d: Affine, t: Expr, c: int, options: tuple[Expr, ...], *, every: bool, source: Expr) -> Union:
        parts = [self.at_most(d.without(t) + affine(o).scaled(c), source) for o in options]
        out = parts[0]
        for p in parts[1:]:
            out = both(out, p) if every else either(out, p)
        return self.bounded(out)

    def order(self, moving: list[tuple[Expr, int]], rest: Expr, source: Expr) -> Union:
        sides: dict[str, Side] = {}
        for t, c in moving:
            name = self.k if self.k in free_vars(t) else self.q
            trend = None if self.mixes(t) or name in sides else monotone(t, name, self.params)
            if trend is None:
                culprit, reason = self.blame(source, arithmetic=True) or (source, "it is not in the language of proofs")
                return self.one(Opaque(source, culprit, reason))
            sides[name] = Side(c, t, trend)
        g = gcd(*(s.coef for s in sides.values()))
        q, k = (Side(s.coef // g, s.term, s.trend) if (s := sides.get(n)) else None for n in (self.q, self.k))
        return self.one(Order(q, k, divided(rest, g), source))

    def residue(self, op: str, d: Affine, source: Expr) -> Union | None:
        """x % T == r or x % T != r, if d = 0 says that."""
        moving = [(t, c) for t, c in d.terms if self.depends(t)]
        match moving:
            case [(Op("%", (x, period)) as t, (1 | -1) as c)] if (form := self.linear(x)) and self.positive(period):
                r = express(d.without(t).scaled(-c))
                inside = all_of(compare("<=", ZERO, r), compare("<", r, period) if r is not ZERO else True)
                here = self.congruence(form, r, period, ZERO, source)
                if op == "==":
                    return both(self.formula(inside, False), self.one(here))
                return either(self.formula(inside, True), self.one(here.negated))
        return None

    def congruence(self, form: Affine, shift: Expr, period: Expr, width: Expr, source: Expr) -> Congruence:
        q, k = form.coefficient(Var(self.q)), form.coefficient(Var(self.k))
        free = express(form.without(Var(self.q)).without(Var(self.k)))
        return Congruence(q, k, minus(shift, free), period, width, (self.q, self.k), source)

    # What an expression is

    def linear(self, x: Expr) -> Affine | None:
        """The form of x if q and k occur in it as plain variables only."""
        form = affine(x)
        return form if all(isinstance(t, Var) or not self.depends(t) for t, _ in form.terms) else None

    def mixes(self, e: Expr) -> bool:
        return {self.q, self.k} <= free_vars(e)

    def positive(self, e: Expr) -> bool:
        return not self.depends(e) and positive(e)

    def blame(self, e: Expr, *, arithmetic: bool) -> tuple[Expr, str] | None:
        """The innermost sub-expression that is outside the language, and why; only those that are not integer
        arithmetic at all unless `arithmetic`."""
        for c in children(e):
            if found := self.blame(c, arithmetic=arithmetic):
                return found
        if not self.depends(e):
            return None
        match e:
            case Op(name, _) if name in _ARITHMETIC or name in COMPARISONS:
                ...
            case Op(name, _):
                return e, f"`{name}` is not integer arithmetic"
            case Float():
                return e, "it is not an integer"
        if arithmetic:
            match e:
                case Op("*", (a, b)) if not isinstance(a, Int) and not isinstance(b, Int):
                    return e, f"`{e}` is not affine"
                case Op("//" | "%" as op, (_, b)) if not self.positive(b):
                    return e, f"`{op}` needs a positive divisor that is the same for all q and k"
                case Fetch(name, index) if self.mixes(e):
                    return e, f"`{e}` depends on both positions"
                case Fetch(name, _) if "nondecreasing" not in self.params.get(name, frozenset()):
                    return e, f"`{name}` is not declared nondecreasing"
                case Fetch(_, index) if not all(self.linear(i) for i in index):
                    return e, f"`{e}` is read at a position that is not affine"
                case Op("%", _):
                    return e, f"`{e}` is compared with more than a constant"
        return None


_ARITHMETIC = {"+", "-", "*", "//", "%", "neg", "min", "max", "abs", "where", "and", "or", "not"}


def positive(e: Expr) -> bool:
    """A divisor that may be taken as positive: a positive constant or a symbol."""
    return e.value > 0 if isinstance(e, Int) else isinstance(e, Var) and e.name[0].isupper()


def monotone(t: Expr, name: str, params: Facts) -> int | None:
    """1 or -1 if t, which depends on `name`, is nondecreasing or nonincreasing in it; None if that is not known.

    The shapes are those that `solve` can invert: the variable, a floored quotient of one such term, a nondecreasing
    tensor read at a growing linear function of the variable."""
    match t:
        case Var():
            return 1
        case Op("//", (x, divisor)) if positive(divisor) and name not in free_vars(divisor):
            moving = [(u, c) for u, c in affine(x).terms if name in free_vars(u)]
            if len(moving) == 1 and (inner := monotone(moving[0][0], name, params)) is not None:
                return inner if moving[0][1] > 0 else -inner
        case Fetch(tensor, index) if "nondecreasing" in params.get(tensor, frozenset()):
            reads = [affine(i) for i in index if name in free_vars(i)]
            moving = [(u, c) for form in reads for u, c in form.terms if name in free_vars(u)]
            if len(moving) == 1 and moving[0][0] is Var(name) and moving[0][1] > 0:
                return 1
    return None
