"""The affine normal form keeps the value; proofs from facts are sound; least and greatest drop only what does not matter."""

from __future__ import annotations

import pytest
from arith_masks import read
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.arith.affine import canonical
from tilec.arith.evaluate import evaluate
from tilec.arith.facts import Facts, greatest, least
from tilec.ir.build import compare, lift
from tilec.ir.expr import Expr, Op, Var

NAMES = ("x", "y", "z", "N")


def expressions() -> st.SearchStrategy[Expr]:
    leaf = st.one_of(st.integers(-9, 9).map(lift), st.sampled_from(NAMES).map(Var))

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        binary = st.builds(
            lambda op, a, b: Op(op, (a, b)), st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner
        )
        quotient = st.builds(
            lambda op, a, n: Op(op, (a, lift(n))), st.sampled_from(["//", "%"]), inner, st.integers(1, 6)
        )
        unary = st.builds(lambda op, a: Op(op, (a,)), st.sampled_from(["neg", "abs"]), inner)
        choice = st.builds(lambda a, b, c: Op("where", (Op("<", (a, b)), b, c)), inner, inner, inner)
        return st.one_of(binary, binary, quotient, unary, choice)

    return st.recursive(leaf, grow, max_leaves=7)


VALUES = st.fixed_dictionaries({n: st.integers(-20, 20) for n in "xyz"} | {"N": st.integers(0, 20)})


@settings(max_examples=400, deadline=None)
@given(expressions(), VALUES)
def test_the_normal_form_keeps_the_value(e: Expr, env: dict[str, int]):
    assert evaluate(canonical(e), env) == evaluate(e, env)
    assert canonical(canonical(e)) is canonical(e)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("q - M + 1 + N", "q + 1 - M + N"),
        ("2 * (x + 3) - x", "x + 6"),
        ("(128 * m + 127) // 64", "m * 2 + 1"),
        ("(64 * (x // 64) + 5) // 64", "x // 64"),
        ("(4 * x + 8) // 6", "(x * 2 + 1) // 3 + 1"),
        ("x - x", "0"),
        ("5 - x - 7", "-x - 2"),
        ("(x + 64 * y) % 64", "x % 64"),
        ("y * x - x * y", "0"),
    ],
)
def test_what_the_normal_form_reads_like(text: str, want: str):
    assert str(canonical(read(text))) == want


@settings(max_examples=400, deadline=None)
@given(
    expressions(),
    st.lists(st.tuples(expressions(), expressions()), max_size=4),
    st.lists(VALUES, min_size=20, max_size=20),
)
def test_proofs_are_sound(e: Expr, pairs: list[tuple[Expr, Expr]], points: list[dict[str, int]]):
    known = [compare("<=", a, b) for a, b in pairs]
    facts = Facts(known)
    proved = facts.nonnegative(e)
    low, high = least(facts, e, *(a for a, _ in pairs)), greatest(facts, e, *(b for _, b in pairs))
    for env in points:
        if all(evaluate(k, env) for k in known):
            assert not proved or evaluate(e, env) >= 0
            assert evaluate(low, env) == min(evaluate(x, env) for x in (e, *(a for a, _ in pairs)))
            assert evaluate(high, env) == max(evaluate(x, env) for x in (e, *(b for _, b in pairs)))


@pytest.mark.parametrize(
    ("known", "goal"),
    [
        ("0 <= first", "first + 5 >= 0"),
        ("first <= last and last < M", "M - first >= 1"),
        ("N >= M and last < M", "N - last - 1 >= 0"),
        ("M == N", "max(0, M - N) <= 0"),
        ("first <= last", "min(N, first + 1 + N - M) <= min(N, last + 1 + N - M)"),
        ("first <= last", "first // 64 * 64 <= last"),
        ("first <= last", "(first + 1) // TK <= (last + TK) // TK"),
        ("0 <= first", "first // T >= 0"),
        ("N % 128 == 0", "N % 64 == 0"),
        ("x >= 3", "where(x > 2, 1, -1) > 0"),
        ("a <= b and b <= c and c <= d", "a <= d"),
        ("True", "q * 0 + N >= 0"),
    ],
)
def test_what_is_proved(known: str, goal: str):
    assert Facts((read(known),)).holds(read(goal))


@pytest.mark.parametrize(
    ("known", "goal"), [("first <= last", "last <= first"), ("True", "x >= 0"), ("N % 64 == 0", "N % 128 == 0")]
)
def test_what_is_not_proved(known: str, goal: str):
    assert not Facts((read(known),)).holds(read(goal))


def test_effort_is_bounded():
    """Hard questions end: many facts, nested cases, and no proof."""
    known = [read(f"x{i} + x{j} <= max(x{i + 1}, min(x{j + 1}, N))") for i in range(6) for j in range(6)]
    facts = Facts(known)
    e = read("max(x0, x1) - " + " - ".join(f"max(min(x{i}, x{i + 1}), x{i + 2} // 3)" for i in range(5)))
    assert not facts.nonnegative(e)
