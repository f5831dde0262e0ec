"""Masks for the prover's tests: written as Python text, drawn at random, and evaluated by Python itself.

Brute force never uses the prover's evaluator: a mask's printed text is Python, and Python runs it."""

from __future__ import annotations

import ast
import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from tilec.arith.evaluate import evaluate
from tilec.ir.build import call, compare, lift
from tilec.ir.expr import Expr, Fetch, Int, Op, Var

FACTS = {"doc": frozenset({"nondecreasing"}), "seg": frozenset[str]()}

# The thirteen masks of the language reference.
MASKS = {
    "full": "k >= 0",
    "causal": "k <= q + (N - M)",
    "window": "k <= q and q - k < 128",
    "window and first tokens": "k <= q and (q - k < 128 or k < 4)",
    "two-sided window": "abs(q - k) <= 100",
    "prefix-lm": "k <= q or k < 77",
    "chunked": "q // 64 == k // 64 and k <= q",
    "block-causal": "k // 48 <= q // 48",
    "dilated": "abs(q - k) <= 200 and (q - k) % 4 == 0",
    "strided": "k <= q and (q - k < 32 or (q - k) % 32 == 0)",
    "global tokens": "k <= q and (k < 16 or q < 16 or q - k < 64)",
    "not causal": "not (k <= q)",
    "anti-window": "k <= q and not (q - k < 90)",
}

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.Div: "/"}
_COMPARE = {ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.Eq: "==", ast.NotEq: "!="}


def read(text: str) -> Expr:
    """A mask from Python text."""
    return _read(ast.parse(text, mode="eval").body)


def _read(node: ast.AST) -> Expr:
    match node:
        case ast.Constant(value):
            return lift(value)
        case ast.Name(name):
            return Var(name)
        case ast.BinOp(a, op, b):
            return Op(_BINARY[type(op)], (_read(a), _read(b)))
        case ast.UnaryOp(ast.USub(), ast.Constant(value)):
            return Int(-value)
        case ast.UnaryOp(op, a):
            return Op("neg" if isinstance(op, ast.USub) else "not", (_read(a),))
        case ast.BoolOp(op, values):
            out = _read(values[0])
            for v in values[1:]:
                out = Op("and" if isinstance(op, ast.And) else "or", (out, _read(v)))
            return out
        case ast.Compare(a, [op], [b]):
            return Op(_COMPARE[type(op)], (_read(a), _read(b)))
        case ast.Call(ast.Name(name), args):
            return Op(name, tuple(_read(a) for a in args))
        case ast.Subscript(ast.Name(name), ast.Tuple(index)):
            return Fetch(name, tuple(_read(i) for i in index))
        case ast.Subscript(ast.Name(name), index):
            return Fetch(name, (_read(index),))
    raise TypeError(ast.dump(node))


class Array:
    """A nested list that `a[i, j]` reads, for Python's evaluation of printed text."""

    def __init__(self, cells: Any) -> None:
        self.cells = cells

    def __getitem__(self, index: Any) -> Any:
        out = self.cells
        for i in index if isinstance(index, tuple) else (index,):
            assert i >= 0
            out = out[i]
        return out


def where(c: Any, a: Any, b: Any) -> Any:
    return a if c else b


def table(mask: Expr, env: Mapping[str, Any], by: str = "q", shape: tuple[int, int] | None = None) -> list[int]:
    """The mask at every (q, k) of M x N (or of `shape`): a row's keys, or by "k" a key's rows, as the bits of an integer."""
    rows, keys = shape or (env["M"], env["N"])
    code = compile(f"[[bool({mask}) for k in range({keys})] for q in range({rows})]", "<mask>", "eval")
    scope: dict[str, Any] = {n: Array(v) if isinstance(v, list) else v for n, v in env.items()}
    live = eval(code, scope | {"where": where, "true": True, "false": False})
    if by == "k":
        live = [[row[k] for row in live] for k in range(keys)]
    return [sum(1 << p for p, x in enumerate(row) if x) for row in live]


# Random masks

OPS = st.sampled_from(["<=", "<", ">=", ">", "==", "!="])
SMALL = st.integers(-9, 30)
M, N, W, T, Q, K, B = (Var(x) for x in "MNWTqkb")


def _op(name: str, *args: Expr | int) -> Expr:
    return Op(name, tuple(lift(a) for a in args))


def frees() -> st.SearchStrategy[Expr]:
    """Expressions free of q and k."""
    shapes = st.sampled_from([_op("-", N, M), _op("-", M, N), N, M, W, _op("//", N, 2), _op("-", W, M), _op("*", M, 2)])
    return st.one_of(SMALL.map(lift), shapes)


def linears() -> st.SearchStrategy[Expr]:
    """q, k and their differences, sometimes scaled."""
    plain = [Q, K, _op("-", Q, K), _op("-", K, Q), _op("+", Q, _op("-", N, M))]
    odd = [_op("*", 2, _op("-", Q, K)), _op("*", 3, K), _op("-", _op("*", 2, K), Q), _op("+", Q, K), _op("neg", Q)]
    return st.one_of(st.sampled_from(plain), st.sampled_from(plain + odd))


def atoms() -> st.SearchStrategy[Expr]:
    """One comparison of the language of proofs, or one outside it."""
    c, size = SMALL, st.sampled_from([1, 2, 3, 4, 5, 8, 16])
    linear = st.builds(lambda op, a, b: compare(op, a, b), OPS, linears(), frees())
    causal = st.builds(lambda op, b: _op(op, K, _op("+", Q, b)), OPS, frees())
    chunk = st.builds(
        lambda op, a, b, m, n: _op(op, _op("//", _op("+", Q, a), m), _op("//", _op("+", K, b), n)),
        OPS,
        c,
        c,
        size,
        size,
    )
    half = st.builds(lambda op, x, n, b: _op(op, _op("//", x, n), b), OPS, linears(), size, frees())
    mod = st.builds(
        lambda op, x, n, r: _op(op, _op("%", x, n), r),
        OPS,
        linears(),
        st.one_of(size.map(lift), st.just(T)),
        st.integers(-1, 9),
    )
    near = st.builds(lambda op, b: _op(op, call("abs", _op("-", Q, K)), b), OPS, frees())
    limit = st.builds(
        lambda op, f, b, x: _op(op, K, _op(f, x, b)), OPS, st.sampled_from(["min", "max"]), frees(), linears()
    )
    doc_q, doc_k = Fetch("doc", (B, Q)), Fetch("doc", (B, K))
    docs = st.one_of(
        st.builds(lambda op: _op(op, doc_q, doc_k), OPS),
        st.builds(lambda op, b: _op(op, _op("+", doc_k, b), doc_q), OPS, st.integers(-2, 2)),
        st.builds(
            lambda op, x, b: _op(op, x, b), OPS, st.sampled_from([doc_q, doc_k, _op("//", doc_k, 2)]), st.integers(0, 4)
        ),
    )
    outside = st.sampled_from(
        [
            _op("<=", _op("*", Q, K), 40),
            _op("==", Fetch("seg", (B, Q)), Fetch("seg", (B, K))),
            _op("<", _op("+", Q, _op("//", Q, 2)), K),
        ]
    )
    uniform = st.sampled_from([_op(">", N, M), _op("<=", W, 5), _op("==", Fetch("head", (B,)), 1)])
    choose = st.builds(
        lambda op, x, a, b: _op(op, K, call("where", _op("<", x, 7), a, b)),
        OPS,
        st.sampled_from([Q, M]),
        frees(),
        frees(),
    )
    return st.one_of(linear, causal, causal, chunk, half, mod, near, limit, docs, outside, uniform, choose)


def formulas() -> st.SearchStrategy[str]:
    """Atoms under and, or, not, as text for `read`."""
    return st.recursive(
        atoms(),
        lambda inner: st.one_of(
            st.builds(lambda a, b: _op("and", a, b), inner, inner),
            st.builds(lambda a, b: _op("or", a, b), inner, inner),
            inner.map(lambda a: _op("not", a)),
        ),
        max_leaves=4,
    ).map(str)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Extents, symbols and arrays."""
    m, n = draw(st.integers(0, 22)), draw(st.integers(0, 22))
    if draw(st.booleans()):
        n = m
    doc = sorted(draw(st.lists(st.integers(0, 4), min_size=23, max_size=23)))
    seg = draw(st.lists(st.integers(0, 2), min_size=23, max_size=23))
    symbols = {"W": draw(st.integers(0, 12)), "T": draw(st.integers(1, 6)), "b": 0, "head": [draw(st.integers(0, 1))]}
    return {"M": m, "N": n, "doc": [doc], "seg": [seg], **symbols}


# Running bounds


def sought(seeks: tuple[Any, ...], env: Mapping[str, Any]) -> dict[str, Any]:
    """`env` with the results of the bisections."""
    out = dict(env)
    for s in seeks:
        lo, hi = evaluate(s.lo, out), evaluate(s.hi, out)
        holds = [evaluate(s.cond, {**out, s.name: v}) for v in range(lo, hi)]
        assert all(a <= b for a, b in pairwise(holds)), f"{s.cond} is not monotone"
        out[s.name] = lo + bisect.bisect_left(holds, True)
    return out


@dataclass
class Walk:
    """What the segments do for one tile of rows, in order."""

    visited: list[int]
    unmasked: set[int]


def walk_segments(segments: tuple[Any, ...], env: Mapping[str, Any]) -> Walk:
    """Runs the loops, checking order and the flags."""
    visited: list[int] = []
    unmasked: set[int] = set()
    for s in segments:
        lo, full_lo, full_hi, hi = (evaluate(x, env) for x in (s.lo, s.full_lo, s.full_hi, s.hi))
        assert 0 <= lo <= full_lo <= full_hi <= hi
        assert not visited or visited[-1] < lo or lo == hi
        assert not (s.left_empty and lo < full_lo)
        assert not (s.full_empty and full_lo < full_hi)
        assert not (s.right_empty and full_hi < hi)
        visited += range(lo, hi)
        unmasked |= set(range(full_lo, full_hi))
    return Walk(visited, unmasked)
