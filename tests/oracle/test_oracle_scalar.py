"""Scalar expressions on arrays: kinds, flooring, width of floats."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_specs import op

from tilec.ir.expr import Expr, Fetch, Float, Int, Iota, Read, Var
from tilec.oracle.scalar import evaluate

x, i = Var("x"), Var("i")


def value(e: Expr, real=np.float64, **env):
    return evaluate(e, env, lambda name, index: np.asarray(index[0]) * 10, real)


@pytest.mark.parametrize(
    ("e", "env", "expected"),
    [
        (op("//", i, 4), {"i": np.array([-5, -4, -1, 0, 3, 4])}, [-2, -1, -1, 0, 0, 1]),
        (op("%", i, 4), {"i": np.array([-5, -4, -1, 0, 3, 4])}, [3, 0, 3, 0, 3, 0]),
        (op("//", x, 2.0), {"x": np.array([-3.0, 3.0])}, [-2.0, 1.0]),
        (op("/", i, 2), {"i": np.array([1, 3])}, [0.5, 1.5]),
        (op("**", i, 3), {"i": np.array([-2, 3])}, [-8, 27]),
        (op("min", i, 2.5), {"i": np.array([1, 3])}, [1.0, 2.5]),
        (op("abs", op("neg", i)), {"i": np.array([-1, 3])}, [1, 3]),
        (op("where", op(">", i, 1), i, 0.5), {"i": np.array([1, 3])}, [0.5, 3.0]),
        (op("+", op(">", i, 1), 1), {"i": np.array([1, 3])}, [1, 2]),
        (op("and", op("not", op("==", i, 1)), op("<=", i, 3)), {"i": np.array([1, 3, 4])}, [False, True, False]),
        (op("exp2", op("log2", i)), {"i": np.array([1, 8])}, [1.0, 8.0]),
        (op("float", i), {"i": np.array([2])}, [2.0]),
        (Fetch("t", (op("+", i, 1),)), {"i": np.array([2, 3])}, [30, 40]),
    ],
    ids=str,
)
def test_values(e, env, expected):
    got = value(e, **env)
    assert got.tolist() == expected
    assert got.dtype.kind == np.asarray(expected).dtype.kind


@pytest.mark.parametrize(
    "e",
    [
        op("*", i, 0.1),
        op("/", i, 3),
        op("sqrt", op("+", x, 1)),
        op("max", x, i),
        op("where", op(">", x, 1.0), x, i),
        op("tanh", i),
        Float(0.1),
    ],
    ids=str,
)
def test_floats_keep_the_width_asked_for(e):
    env = {"i": np.arange(4), "x": np.arange(4, dtype=np.float32)}
    assert value(e, np.float32, **env).dtype == np.float32
    assert value(e, np.float64, **env).dtype == np.float64


def test_shared_parts_are_read_once():
    calls = []

    def lookup(name, index):
        calls.append(name)
        return np.asarray(1.0)

    read = Fetch("t", (Int(0),))
    evaluate(op("+", op("*", read, read), read), {}, lookup)
    assert calls == ["t"]


@pytest.mark.parametrize("e", [Read("buffer"), Iota("q")], ids=str)
def test_tile_leaves_are_refused(e):
    with pytest.raises(TypeError, match="tile program"):
        value(e)
