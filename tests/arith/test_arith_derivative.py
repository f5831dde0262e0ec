"""Derivative rules against finite differences and autograd, their values at corners, and the form of the results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.arith.derivative import NoDerivative, derivative, reads
from tilec.ir.expr import Expr, Fetch, Float, Int, Op, Var, lift
from tilec.oracle.scalar import evaluate

s, t, h = Var("s"), Var("t"), Var("h")
slope = Fetch("slope", (h,))


def op(name: str, *args: Expr | int | float) -> Expr:
    return Op(name, tuple(lift(a) for a in args))


def value(e: Expr, **env: float) -> float:
    return float(evaluate(e, {"h": 3, **env}, lambda name, index: np.asarray(0.75)))


SMOOTH = [
    op("+", s, op("*", 3, s)),
    op("-", op("*", s, s), t),
    op("neg", op("*", s, t)),
    op("/", s, 50.0),
    op("/", t, s),
    op("/", s, op("+", s, t)),
    op("**", s, 2),
    op("**", s, 3),
    op("**", s, -1),
    op("**", s, 0.5),
    op("**", 2.0, s),
    op("**", s, s),
    op("**", s, h),
    op("*", 50.0, op("tanh", op("/", s, 50.0))),
    op("exp", op("*", s, t)),
    op("exp2", op("*", s, 0.3)),
    op("log", op("+", op("*", s, s), 1.0)),
    op("log2", s),
    op("sqrt", op("+", s, 2)),
    op("abs", op("-", s, 5.0)),
    op("min", s, op("*", s, s)),
    op("max", s, op("*", 2.0, t)),
    op("where", op(">", s, 1), op("*", s, s), op("exp", s)),
    op("-", s, op("*", slope, s)),
    op("*", op(">", s, 0.5), s),
    op("float", s),
]


@pytest.mark.parametrize("e", SMOOTH, ids=str)
@pytest.mark.parametrize("at", [0.4, 1.7, 3.1])
def test_against_central_differences(e, at):
    step = 1e-5
    slope_of = (value(e, s=at + step, t=0.9) - value(e, s=at - step, t=0.9)) / (2 * step)
    assert value(derivative(e, s), s=at, t=0.9) == pytest.approx(slope_of, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("x", [-2.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize(
    ("e", "f"),
    [
        (op("abs", s), lambda x: x.abs()),
        (op("max", s, 1.0), lambda x: torch.maximum(x, torch.ones_like(x))),
        (op("min", s, 1.0), lambda x: torch.minimum(x, torch.ones_like(x))),
        (op("max", op("*", 2, s), s), lambda x: torch.maximum(2 * x, x)),
        (op("where", op(">=", s, 1), op("*", s, s), s), lambda x: torch.where(x >= 1, x * x, x)),
    ],
    ids=["abs", "max", "min", "max2", "where"],
)
def test_corners_agree_with_autograd(e, f, x):
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    f(leaf).backward()
    assert value(derivative(e, s), s=x) == leaf.grad.item()


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (s, "1"),
        (t, "0"),
        (op("*", 3, s), "3"),
        (op("-", s, op("*", slope, h)), "1"),
        (op("*", 50.0, op("tanh", op("/", s, 50.0))), "1 - tanh(s / 50.0) * tanh(s / 50.0)"),
        (op("**", s, 2), "2 * s"),
        (op("max", s, 0.0), "where(s < 0.0, 0, where(s > 0.0, 1, 0.5))"),
        (op("exp", s), "exp(s)"),
        (op("sqrt", s), "0.5 / sqrt(s)"),
    ],
    ids=str,
)
def test_results_are_folded(e, expected):
    assert str(derivative(e, s)) == expected


def test_by_a_read():
    line = op("-", s, op("*", slope, op("-", Var("q"), Var("k"))))
    assert reads(line) == (slope,)
    assert str(derivative(line, slope)) == "k - q"
    other = Fetch("slope", (op("+", h, 1),))
    assert derivative(line, other) is Int(0)


def test_shares_the_forward_node():
    tanh = op("tanh", s)
    match derivative(tanh, s):
        case Op("-", (Int(1), Op("*", (left, right)))):
            assert left is tanh and right is tanh
        case other:
            pytest.fail(str(other))


@pytest.mark.parametrize("e", [op("//", s, 2), op("%", s, 2.0), Fetch("table", (s,))], ids=str)
def test_refuses_what_has_no_derivative(e):
    with pytest.raises(NoDerivative) as caught:
        derivative(op("+", s, e), s)
    assert caught.value.part is e
    assert derivative(op("+", t, op("where", op(">", e, 0), t, 1.0)), s) is Int(0)


leaves = st.sampled_from([s, t, Float(0.7), Float(2.0), Int(3)])
trees = st.recursive(
    leaves,
    lambda x: st.one_of(
        st.builds(lambda n, a, b: op(n, a, b), st.sampled_from(["+", "-", "*", "max", "min"]), x, x),
        st.builds(lambda n, a: op(n, a), st.sampled_from(["tanh", "neg", "abs"]), x),
        st.builds(lambda a, b: op("/", a, op("+", op("*", b, b), 1.0)), x, x),
        st.builds(lambda a, b: op("where", op(">", s, 1.0), a, b), x, x),
    ),
    max_leaves=12,
)


def through_torch(e: Expr, env: dict[str, torch.Tensor]) -> torch.Tensor:
    match e:
        case Int(v) | Float(v):
            return torch.tensor(float(v), dtype=torch.float64)
        case Var(name):
            return env[name]
        case Op(name, args):
            a = [through_torch(x, env) for x in args]
            return {
                "+": lambda: a[0] + a[1],
                "-": lambda: a[0] - a[1],
                "*": lambda: a[0] * a[1],
                "/": lambda: a[0] / a[1],
                "max": lambda: torch.maximum(a[0], a[1]),
                "min": lambda: torch.minimum(a[0], a[1]),
                "neg": lambda: -a[0],
                "abs": lambda: a[0].abs(),
                "tanh": lambda: torch.tanh(a[0]),
                ">": lambda: a[0] > a[1],
                "where": lambda: torch.where(a[0], a[1], a[2]),
            }[name]()
    raise AssertionError(e)


@settings(max_examples=150, deadline=None)
@given(trees, st.sampled_from([-1.3, 0.0, 0.6, 1.0, 2.5]))
def test_random_expressions_against_autograd(e, x):
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    result = through_torch(e, {"s": leaf, "t": torch.tensor(-0.4, dtype=torch.float64)})
    (grad,) = torch.autograd.grad(result, leaf, allow_unused=True) if result.requires_grad else (None,)
    expected = 0.0 if grad is None else grad.item()
    assert value(derivative(e, s), s=x, t=-0.4) == pytest.approx(expected, rel=1e-9, abs=1e-9)
