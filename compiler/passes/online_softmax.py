"""online_softmax: one walk over the keys instead of two, in the base-2 domain.

Contract.  In: the textbook's clusters `row_max` and `weights` (see `lower_attention`), their loops split or not.  Out: cluster
`row_max` is gone; each loop of `weights` keeps a running maximum and sum and rescales what it has gathered when
the maximum grows; before cluster `finish`, `row_max` is turned back to the natural domain, so `finish` is untouched.  Results
differ from the input's by rounding only.  Source: Milakov and Gimelshein, arXiv 1805.02867; the single division at the end
(delayed rescale): Dao, FlashAttention-2, arXiv 2307.08691, section 3.1.

    BASE2    exp(x) = exp2(x * log2 e); the constant joins the scale (see `score_algebra`: FOLD, FACTOR)
    ROW      row-constant terms leave the loop and join the LSE
    GUARD    a row may have seen no live key, in a masked loop or where score lines can give -inf (a bias of -inf): its
             maximum -inf is replaced by 0 before subtracting.  Scores of other loops are finite
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir.build import add, call, compare, mul, sub, where
from tilec.ir.expr import NEG_INFINITY, ZERO, Expr, Fetch, Float, Iota, Op, Read, Reduce, Var, substitute, walk
from tilec.ir.nodes import Buffer, Cluster, Compute, For, If, Let, Mma, Program, Slot, Stmt, map_exprs
from tilec.ir.nodes import walk as statements
from tilec.passes.score_algebra import Split, constant, scaled, split_rows

LOG2E = math.log2(math.e)
LN2 = math.log(2.0)


def online_softmax(program: Program, q: str, k: str) -> Program:
    """The one-pass form; `q`, `k` name the row and key axes.  Raises ValueError if the textbook clusters are missing."""
    role = program.roles[0]
    buffers = {b.name: b for b in role.buffers}
    if not all(n in buffers for n in ("scores", "row_max", "row_sum", "weights")):
        raise ValueError("online_softmax needs the textbook clusters of lower_attention")
    for name in ("new_max", "base", "shrink"):
        buffers[name] = Buffer(name, "register", "f32", buffers["row_max"].axes)
    fusion = _Fusion(q, k, buffers)
    body = fusion.body(role.body)
    if not fusion.done:
        raise ValueError("online_softmax needs the textbook clusters of lower_attention")
    used = _mentioned(body)
    kept = tuple(b for b in buffers.values() if b.name in used)
    return program.with_(roles=(replace(role, body=body, buffers=kept),))


class _Fusion:
    def __init__(self, q: str, k: str, buffers: dict[str, Buffer]) -> None:
        self.q, self.k, self.buffers = q, k, buffers
        self.done = False
        self.split: Split | None = None
        self.bounded = {"scores"}  # buffers and scalars that hold products or positions: never infinite

    def body(self, statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in statements:
            match s:
                case Let(name, value) if not any(isinstance(x, Fetch) for x in walk(value)):
                    self.bounded.add(name)
                    out.append(s)
                case Cluster("row_max", _):
                    continue
                case Cluster("weights", loops):
                    out.append(Cluster("keys", tuple(self._loop(x) if isinstance(x, For) else x for x in loops)))
                    out += self._natural()
                    self.done = True
                case If(cond, then, orelse):
                    out.append(If(cond, self.body(then), orelse))
                case _:
                    out.append(s)
        return tuple(out)

    def _natural(self) -> list[Stmt]:
        """row_max back from the loop's units, row-constant terms included: rule ROW."""
        if self.split is None:
            return []
        value = add(mul(Read("row_max"), Float(self.split.factor * LN2)), scaled(LN2, self.split.row))
        if self.split.row is ZERO:
            value = mul(Read("row_max"), Float(self.split.factor * LN2))
        return [Compute(Slot("row_max"), value)]

    def _loop(self, loop: For) -> For:
        """Scores are computed as before; what follows them is the online update."""
        before: list[Stmt] = []
        after: list[Stmt] = []
        score: Expr = Read("scores")
        live: Expr | None = None
        self.bounded |= {s.dst.buffer for s in loop.body if isinstance(s, Mma)} | {loop.var}
        for s in loop.body:
            match s:
                case Compute(Slot("scores"), Op("where", (cond, _, x))) if x is NEG_INFINITY:
                    live = cond
                case Compute(Slot("scores"), value):
                    score = substitute(value, {Read("scores"): score})
                case Compute(Slot("weights"), Op("where", (_, _, Op("exp", _)))):
                    after += self._update(score, live, before)
                case Compute(Slot("row_sum"), _):
                    continue
                case Mma(Slot("acc")):
                    after.append(s)
                case _ if after:
                    after.append(s)
                case _:
                    before.append(s)
        return replace(loop, body=(*before, *after))

    def _update(self, score: Expr, live: Expr | None, before: list[Stmt]) -> list[Stmt]:
        self.split = split_rows(mul(Float(LOG2E), score), self.q, self.k, Var(f"{self.q}_first"), self._axes)
        inside, a = self.split.inside, self.split.factor
        guarded = live is not None or not self._is_finite(score)
        scores, base = Read("scores"), Read("base" if guarded else "new_max")
        if live is not None:
            before.append(Compute(Slot("scores"), where(live, inside, NEG_INFINITY)))
        elif inside is not scores:
            before.append(Compute(Slot("scores"), inside))
        out: list[Stmt] = [
            Compute(Slot("new_max"), call("max", Read("row_max"), Reduce("max", self.k, scores))),
        ]
        if guarded:
            dead = compare("==", Read("new_max"), NEG_INFINITY)
            out.append(Compute(Slot("base"), where(dead, Float(0.0), Read("new_max"))))
        out += [
            Compute(Slot("shrink"), call("exp2", scaled(a, sub(Read("row_max"), base)))),
            Compute(Slot("weights"), call("exp2", sub(scaled(a, scores), scaled(a, base)))),
            Compute(
                Slot("row_sum"),
                add(mul(Read("row_sum"), Read("shrink")), Reduce("sum", self.k, Read("weights"))),
            ),
            Compute(Slot("acc"), mul(Read("acc"), Read("shrink"))),
            Compute(Slot("row_max"), Read("new_max")),
        ]
        return out

    def _is_finite(self, e: Expr) -> bool:
        """Whether a score over finite products cannot be infinite, by syntax; overflow aside."""
        if (c := constant(e)) is not None:
            return math.isfinite(c)
        match e:
            case Iota():
                return True
            case Var(name):
                return name in self.bounded or name.isupper()
            case Read(name, _):
                return name in self.bounded or self.buffers[name].dtype == "i32"
            case Op("tanh", _):
                return True
            case Op("/", (x, y)):
                return bool(constant(y)) and self._is_finite(x)
            case Op("+" | "-" | "*" | "neg" | "abs" | "min" | "max" | "float", args):
                return all(map(self._is_finite, args))
            case Op("where", (_, x, y)):
                return self._is_finite(x) and self._is_finite(y)
        return False

    def _axes(self, e: Expr) -> frozenset[str]:
        """Tile axes an expression varies along."""
        out: set[str] = set()
        for x in walk(e):
            match x:
                case Read(name, _):
                    out |= {axis.name for axis in self.buffers[name].axes}
                case Iota(axis):
                    out.add(axis)
                case _:
                    ...
        return frozenset(out)


def _mentioned(body: tuple[Stmt, ...]) -> set[str]:
    """Buffers that any statement reads or writes."""
    names: set[str] = set()

    def note(e: Expr) -> Expr:
        names.update(x.buffer for x in walk(e) if isinstance(x, Read))
        return e

    for s in statements(body):
        map_exprs(s, note)
        for part in (getattr(s, "dst", None), getattr(s, "a", None), getattr(s, "b", None)):
            if isinstance(part, Slot):
                names.add(part.buffer)
    return names
