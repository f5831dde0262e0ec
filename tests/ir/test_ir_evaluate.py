"""Expressions as NumPy closures against the same expressions lane by lane on Python integers."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilec.arith.evaluate import evaluate
from tilec.ir.axes import Scope, axes_of, lanes_of
from tilec.ir.evaluate import compile_expr, spread
from tilec.ir.execute import Extents
from tilec.ir.expr import Bool, Expr, Int, Iota, Op, Var, substitute, walk

SIZES = {"q": 3, "k": 4}
VALUES = {"a": -3, "b": 7}

integers = st.deferred(
    lambda: st.one_of(
        st.integers(-9, 9).map(Int),
        st.sampled_from([Iota("q"), Iota("k"), Var("a"), Var("b")]),
        st.builds(
            lambda n, x, y: Op(n, (x, y)), st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), integers, integers
        ),
        st.builds(lambda n, x: Op(n, (x,)), st.sampled_from(["neg", "abs"]), integers),
        st.builds(lambda c, x, y: Op("where", (c, x, y)), booleans, integers, integers),
    )
)
booleans = st.deferred(
    lambda: st.one_of(
        st.booleans().map(Bool),
        st.builds(
            lambda n, x, y: Op(n, (x, y)), st.sampled_from(["==", "!=", "<=", "<", ">=", ">"]), integers, integers
        ),
        st.builds(lambda n, x, y: Op(n, (x, y)), st.sampled_from(["and", "or"]), booleans, booleans),
        st.builds(lambda x: Op("not", (x,)), booleans),
    )
)


def by_lane(e: Expr, q: int, k: int) -> int:
    return evaluate(substitute(e, {Iota("q"): Int(q), Iota("k"): Int(k)}), VALUES)


@given(st.one_of(integers, booleans))
@settings(max_examples=500, deadline=None)
def test_every_lane_has_the_value_of_its_indices(e: Expr):
    assume(sum(1 for _ in walk(e)) < 60)
    try:
        expected = np.array([[by_lane(e, q, k) for k in range(4)] for q in range(3)])
    except ZeroDivisionError:
        return
    assume(np.abs(expected).max() < 2**31)
    scope = Scope({}, {"Q": (("q", 3),), "K": (("k", 4),)}, {})
    code = compile_expr(e, scope, lanes_of(scope, {}, e))
    assert code.axes == axes_of(e, scope)
    try:
        with np.errstate(all="ignore"):
            got = np.asarray(code.run(Extents(VALUES), None))
    except ZeroDivisionError:  # by a scalar, in a value that no lane selects
        return
    np.testing.assert_array_equal(np.broadcast_to(spread(got, code.axes, ("q", "k")), (3, 4)), expected)


@given(st.sampled_from(["where", "and", "or"]), st.booleans())
@settings(deadline=None)
def test_a_scalar_condition_leaves_the_rest_alone(name: str, tiles: bool):
    zero = Op("//", (Var("a"), Int(0)))
    rest = Op("==", (Op("+", (zero, Iota("k"))) if tiles else zero, Int(1)))
    decided = Op(
        name, (Bool(True), Op("==", (Iota("q"), Int(1))), rest) if name == "where" else (Bool(name == "or"), rest)
    )
    scope = Scope({}, {"Q": (("q", 3),), "K": (("k", 4),)}, {})
    code = compile_expr(decided, scope, lanes_of(scope, {}, decided))
    got = np.asarray(code.run(Extents(VALUES), None))
    assert got.shape == tuple(SIZES[a] for a in code.axes)
