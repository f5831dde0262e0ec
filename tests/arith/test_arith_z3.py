"""A second judge: z3 proves the closed forms for all extents, all tiles and all positions, not only small ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import z3
from arith_masks import read

from tilec.arith.bounds import k_bounds, q_bounds
from tilec.arith.formula import normalise
from tilec.arith.segments import tile_segments
from tilec.ir.expr import Bool, Expr, Int, Op, Var

MASKS = {
    "causal": "k <= q + N - M",
    "window": "k <= q + N - M and q + N - M - k < W",
    "prefix-lm": "k <= q or k < P",
    "chunked": "q // 64 == k // 64 and k <= q",
    "block-causal": "k // 48 <= q // 48",
    "two-sided window": "abs(q - k) <= W",
    "window and first tokens": "k <= q and (q - k < 128 or k < 4)",
    "dilated": "abs(q - k) <= 200 and (q - k) % 4 == 0",
    "global rows": "k <= q and (q < 16 or q - k < W)",
    "anti-diagonal": "q + k < W",
    "two windows": "abs(q - k) <= 9 or abs(q - k - W) <= 9",
}

_OPS: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a / b,  # integers with a positive divisor: z3 floors
    "%": lambda a, b: a % b,
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "and": z3.And,
    "or": z3.Or,
    "not": z3.Not,
    "neg": lambda a: -a,
    "min": lambda a, b: z3.If(a <= b, a, b),
    "max": lambda a, b: z3.If(a >= b, a, b),
    "abs": lambda a: z3.If(a >= 0, a, -a),
    "where": z3.If,
}


def term(e: Expr) -> Any:
    match e:
        case Int(v):
            return z3.IntVal(v)
        case Bool(v):
            return z3.BoolVal(v)
        case Var(name):
            return z3.Int(name)
        case Op(name, args):
            return _OPS[name](*map(term, args))
    raise TypeError(str(e))


def prove(known: list[Any], goal: Any) -> None:
    solver = z3.Solver()
    solver.set("timeout", 60_000)
    solver.add(*known, z3.Not(goal))
    answer = solver.check()
    assert answer == z3.unsat, (answer, solver.model() if answer == z3.sat else solver.reason_unknown())


@pytest.mark.parametrize("side", ["k", "q"])
@pytest.mark.parametrize("name", MASKS)
def test_for_all_extents_and_tiles(name: str, side: str):
    mask = read(MASKS[name])
    of, row, extent = (k_bounds, "q", Var("N")) if side == "k" else (q_bounds, "k", Var("M"))
    bounds = of(normalise(mask), Var("first"), Var("last"), extent)
    segments = tile_segments(bounds, Int(64))

    first, last, at, x, tile = z3.Ints(f"first last {side} {row} tile")
    n, live = term(extent), term(mask)
    shape = [z3.Int("M") >= 0, z3.Int("N") >= 0, z3.Int("W") >= 0, z3.Int("P") >= 0]
    rows = [*shape, first >= 0, first <= x, x <= last]
    inside = [*rows, at >= 0, at < n]

    ranges = [(term(p.live.lo), term(p.live.hi)) for p in bounds.pieces]
    prove([*inside, live], z3.Or(*(z3.And(lo <= at, at < hi) for lo, hi in ranges)))
    for lo, hi in ranges:
        prove([*rows, lo <= at, at < hi], z3.And(at >= 0, at < n))
    for p in bounds.pieces:
        if p.full is not None:
            prove([*rows, term(p.full.lo) <= at, at < term(p.full.hi)], z3.And(at >= 0, at < n, live))

    ends = [[term(e) for e in (s.lo, s.full_lo, s.full_hi, s.hi)] for s in segments]
    prove([*inside, live, tile == at / 64], z3.Or(*(z3.And(e[0] <= tile, tile < e[3]) for e in ends)))
    order = [z3.IntVal(0), *(e for four in ends for e in four)]
    prove([*shape, first >= 0, first <= last], z3.And(*(a <= b for a, b in pairwise(order))))
    for _, full_lo, full_hi, _ in ends:
        prove([*rows, tile == at / 64, full_lo <= tile, tile < full_hi], z3.And(at < n, live))
