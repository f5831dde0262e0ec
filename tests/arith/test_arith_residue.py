"""Residue order: the classes hold every live pair once, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from arith_masks import FACTS, formulas, problems, read, sought, table, walk_segments
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilec.arith.bounds import k_bounds
from tilec.arith.evaluate import evaluate
from tilec.arith.formula import normalise
from tilec.arith.residue import Residue, in_class, residue_of
from tilec.arith.segments import tile_segments
from tilec.ir.expr import Expr, Int, Var

EXTENTS = (Var("M"), Var("N"))


def pairs_by_class(mask: Expr, residue: Residue, env: dict[str, Any]) -> list[tuple[int, int]]:
    """The live pairs, class by class, as the rewritten mask has them."""
    found = []
    period = evaluate(residue.period, env)
    for r in range(period):
        cls = in_class(normalise(mask, params=FACTS), residue, Var("r"), EXTENTS, FACTS)
        here = {**env, "r": r}
        rows, keys, key_class = (evaluate(x, here) for x in (cls.rows, cls.keys, cls.key_class))
        live = table(cls.normal.mask, here, shape=(rows, keys))
        found += [
            (period * i + r, period * j + key_class) for i in range(rows) for j in range(keys) if live[i] >> j & 1
        ]
    return found


def pairs(mask: Expr, env: dict[str, Any]) -> list[tuple[int, int]]:
    return [(q, k) for q, row in enumerate(table(mask, env)) for k in range(env["N"]) if row >> k & 1]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(formulas(), problems(), st.integers(2, 5), st.integers(0, 4), st.booleans())
def test_classes_hold_every_live_pair_once(text: str, env: dict[str, Any], period: int, shift: int, flip: bool):
    form = "k - q" if flip else "q - k"
    mask = read(f"({text}) and ({form}) % {period} == {shift % period}")
    normal = normalise(mask, params=FACTS)
    residue = residue_of(normal)
    if residue is None:
        assert normal.union == () or normal.opaque  # nothing is left, or the mask is too large
        return
    assert sorted(pairs_by_class(mask, residue, env)) == pairs(mask, env)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(formulas(), problems(), st.integers(2, 4))
def test_bounds_inside_a_class(text: str, env: dict[str, Any], period: int):
    """The rewritten mask is a mask: its loops, over the class's extents, miss nothing."""
    normal = normalise(read(f"({text}) and (q - k) % {period} == 1"), params=FACTS)
    residue = residue_of(normal)
    if residue is None:
        return
    cls = in_class(normal, residue, Var("r"), EXTENTS, FACTS)
    bounds = k_bounds(cls.normal, Var("first"), Var("last"), cls.keys)
    segments = tile_segments(bounds, Int(3))
    for r in range(period):
        here = {**env, "r": r}
        rows, keys = evaluate(cls.rows, here), evaluate(cls.keys, here)
        live = table(cls.normal.mask, here, shape=(rows, keys))
        for first in range(0, rows, 2):
            last = min(first + 2, rows) - 1
            at = sought(bounds.seeks, {**here, "first": first, "last": last})
            done = walk_segments(segments, at)
            needed = live[first] | live[last]
            assert all(k // 3 in done.visited for k in range(keys) if needed >> k & 1)
            unmasked = [k for t in done.unmasked for k in range(3 * t, 3 * t + 3)]
            assert all(k < keys and live[first] >> k & 1 and live[last] >> k & 1 for k in unmasked)


@settings(max_examples=50, deadline=None)
@given(problems())
def test_a_symbolic_period(env: dict[str, Any]):
    mask = read("abs(q - k) <= W and (q - k) % T == 0")
    residue = residue_of(normalise(mask))
    assert residue == Residue(Var("T"), Int(0))
    assert sorted(pairs_by_class(mask, residue, env)) == pairs(mask, env)


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("abs(q - k) <= 200 and (q - k) % 4 == 0", ("4", "0")),
        ("(k - q) % 4 == 1 and k <= q", ("4", "3")),
        ("(q - k) % 4 == 0 and k < 7 or k > q and (k - q) % 4 == 0", ("4", "0")),
        ("(q - k) % 4 == 0 or k > q and (k - q) % 4 == 1", None),
        ("k <= q and (q - k < 32 or (q - k) % 32 == 0)", None),
        ("k % 4 == 0", None),
        ("(q - k) % 4 <= 1", None),
        ("(q - k) % 1 == 0", None),
        ("k <= q", None),
    ],
)
def test_what_has_a_residue(mask: str, found: tuple[str, str] | None):
    residue = residue_of(normalise(read(mask)))
    assert (residue and (str(residue.period), str(residue.shift))) == found


def test_a_dilated_window_becomes_a_window():
    normal = normalise(read("abs(q - k) <= 200 and (q - k) % 4 == 0"))
    residue = residue_of(normal)
    assert residue is not None
    cls = in_class(normal, residue, Var("r"), EXTENTS)
    assert str(cls.normal.mask) == "q <= k + 50 and k <= q + 50"
    assert (str(cls.key_class), str(cls.rows), str(cls.keys)) == ("r", "(M + 3 - r) // 4", "(N + 3 - r) // 4")
