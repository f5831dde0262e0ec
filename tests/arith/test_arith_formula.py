"""The normal form means what the mask means, its negation the opposite; what is left out is named with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from arith_masks import FACTS, formulas, problems, read, table
from hypothesis import HealthCheck, given, settings

from tilec.arith.constraints import Congruence, Opaque, Order, Uniform
from tilec.arith.formula import LIMIT, normalise
from tilec.ir.build import all_of, any_of
from tilec.ir.expr import walk


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(formulas(), problems())
def test_the_union_is_the_mask(text: str, env: dict[str, Any]):
    mask = read(text)
    normal = normalise(mask, params=FACTS)
    live = table(mask, env)
    assert table(any_of(*(all_of(*(a.condition for a in c)) for c in normal.union)), env) == live
    if normal.negation is not None:
        everything = (1 << env["N"]) - 1
        dead = any_of(*(all_of(*(a.condition for a in c)) for c in normal.negation))
        assert table(dead, env) == [everything & ~row for row in live]


@pytest.mark.parametrize(
    ("text", "atoms"),
    [
        ("k <= q + N - M", ["k <= q + N - M"]),
        ("2 * k < 2 * q + 7", ["k <= q + 3"]),
        ("abs(q - k) <= 100", ["q <= k + 100", "k <= q + 100"]),
        ("(q - k) // 64 == 0", ["k <= q", "q <= k + 63"]),
        ("k <= min(q, 5)", ["k <= q", "k <= 5"]),
        ("(q - k) % 4 == 0", ["(q - k) % 4 == 0"]),
        ("k % 8 >= 6", ["(k - 6) % 8 <= 1"]),
        ("k % 8 < 8", []),
        ("doc[b, q] == doc[b, k]", ["doc[b, k] <= doc[b, q]", "doc[b, q] <= doc[b, k]"]),
        ("not (k > q or N > M)", ["k <= q", "N <= M"]),
    ],
)
def test_one_conjunction(text: str, atoms: list[str]):
    (conjunction,) = normalise(read(text), params=FACTS).union
    assert sorted(str(a.condition) for a in conjunction) == sorted(atoms)


def test_false_and_true():
    assert normalise(read("k % 4 == 5")).union == ()
    assert normalise(read("k % 1 == 0")).union == ((),)
    assert normalise(read("True")).union == ((),)
    assert normalise(read("k <= q or not (k <= q) or True")).union == ((),)


def test_kinds_of_atoms():
    (conjunction,) = normalise(read("k <= q and (q - k) % T == 0 and head[b] == 1 and q * k < 9")).union
    assert [type(a) for a in conjunction] == [Order, Congruence, Uniform, Opaque]


@pytest.mark.parametrize(
    ("text", "culprit", "reason"),
    [
        ("k <= q and q * k < 9", "q * k", "`q * k` is not affine"),
        ("seg[b, q] == seg[b, k]", "seg[b, q]", "`seg` is not declared nondecreasing"),
        ("allowed[q, k]", "allowed[q, k]", "`allowed[q, k]` depends on both positions"),
        ("k // q == 2", "k // q", "`//` needs a positive divisor that is the same for all q and k"),
        ("k % 4 <= q", "k % 4", "`k % 4` is compared with more than a constant"),
        ("exp(k) < 4", "exp(k)", "`exp` is not integer arithmetic"),
        ("q + q // 2 <= k", "q + q // 2 <= k", "it is not in the language of proofs"),
    ],
)
def test_what_is_opaque_and_why(text: str, culprit: str, reason: str):
    mask = read(text)
    (opaque,) = normalise(mask, params=FACTS).opaque
    assert (str(opaque.culprit), opaque.reason) == (culprit, reason)
    assert opaque.culprit in set(walk(mask))  # the very node, so that its place in the spec is known


def test_a_mask_with_too_many_alternatives_is_opaque_as_a_whole():
    text = " or ".join(f"k == {3 * i}" for i in range(LIMIT + 1))
    normal = normalise(read(text))
    assert normal.negation is None
    assert [o.culprit for o in normal.opaque] == [read(text)]


def test_other_names_of_the_positions():
    normal = normalise(read("s <= t"), q="t", k="s")
    assert [str(a.condition) for c in normal.union for a in c] == ["s <= t"]
