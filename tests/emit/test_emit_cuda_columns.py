"""Limits of columns are the comparisons that they stand for."""

import itertools

import pytest

from tilec.backends.cuda.columns import limit_of, limits_of
from tilec.ir.build import all_of
from tilec.ir.expr import Int, Iota, Op, Var, show

COLUMN, Q, J = Iota("k"), Var("q"), Var("j")
SIDES = [
    Op("+", (J, COLUMN)),
    Op("+", (Op("*", (Op("+", (J, COLUMN)), Int(3))), Int(2))),
    Op("-", (Q, Op("*", (Op("+", (Int(5), COLUMN)), Int(4))))),
    Op("neg", (Op("*", (COLUMN, Int(2))),)),
]


def text(e, outer):
    return f"({show(e)})"


def value(limit, column, **names):
    scope = {"floor_div": lambda x, y: x // y, "min": min, "max": max, **names}
    return eval(f"column {limit.symbol} ({limit.text})", {}, {**scope, "column": column})


@pytest.mark.parametrize("name", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize("side", SIDES, ids=str)
def test_a_limit_is_the_comparison(side, name):
    limit = limit_of(name, side, Q, COLUMN, text)
    scaled = "*" in show(side)
    assert (limit is None) == (scaled and name in ("==", "!="))
    if limit is None:
        return
    assert limit.scaled == scaled
    for column, q, j, col0 in itertools.product(range(8), range(-30, 60, 7), (-3, 0, 5), (0, 6)):
        names = {"iota": lambda _, c=column + col0: c, "k": "k", "q": q, "j": j}
        assert value(limit, column, q=q, j=j, col0=col0) == eval(show(Op(name, (side, Q))), {}, names)


def test_columns_on_both_sides_have_no_limit():
    assert limit_of("<", Op("*", (COLUMN, Q)), Int(3), COLUMN, text) is None
    assert limit_of("<", COLUMN, Op("*", (COLUMN, Int(2))), COLUMN, text) is None


def merged(*tests):
    return limits_of(all_of(*tests), lambda e: limit_of(e.name, *e.args, COLUMN, text) if isinstance(e, Op) else None)


def test_limits_on_one_side_merge_beside_another_test():
    flag, near, end, far = Var("flag"), Op("<=", (COLUMN, Q)), Op("<", (COLUMN, J)), Op(">", (COLUMN, Int(2)))
    assert merged(near, end) is None and merged(flag, near, far) is None
    limits, others = merged(flag, near, end, far)
    assert others == [flag] and sorted(x.symbol for x in limits) == ["<=", ">"]
    (upper,) = (x for x in limits if x.symbol == "<=")
    for column, q, j in itertools.product(range(9), range(9), range(9)):
        assert value(upper, column, q=q, j=j, col0=0) == (column <= q and column < j)


def test_scaled_limits_merge_by_themselves():
    near, end = (Op("<", (Op("*", (COLUMN, Int(4))), x)) for x in (Q, J))
    ((upper,), others) = merged(near, end)
    assert others == []
    for column, q, j in itertools.product(range(9), range(40), range(40)):
        assert value(upper, column, q=q, j=j, col0=0) == (4 * column < q and 4 * column < j)
