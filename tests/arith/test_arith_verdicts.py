"""Verdicts and row safety against brute force, and what a reader is told."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from itertools import product
from operator import and_, or_
from typing import Any

import pytest
from arith_masks import FACTS, MASKS, formulas, problems, read, table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilec.arith.formula import normalise
from tilec.arith.verdicts import rows_safe, verdict
from tilec.ir.expr import Int, Var

M, N = Var("M"), Var("N")


def truth(live: list[int], box: tuple[int, int, int, int]) -> str:
    q0, q1, k0, k1 = box
    tile = (1 << (k1 + 1)) - (1 << k0)
    rows = live[q0 : q1 + 1]
    return "full" if reduce(and_, rows) & tile == tile else "partial" if reduce(or_, rows) & tile else "empty"


@pytest.mark.parametrize("name", MASKS)
def test_verdicts_of_the_thirteen_masks_are_exact(name: str):
    mask = read(MASKS[name])
    normal = normalise(mask)
    seen: Counter[str] = Counter()
    for m, n in ((256, 256), (200, 333), (129, 129)):
        env = {"M": m, "N": n}
        live = table(mask, env)
        for rows, keys in ((128, 64), (64, 64), (32, 96), (1, 128)):
            for q0 in range(0, m, rows if rows > 1 else 37):
                for k0 in range(0, n, keys):
                    box = (q0, min(q0 + rows, m) - 1, k0, min(k0 + keys, n) - 1)
                    assert verdict(normal, box, env) == truth(live, box)
                    seen[truth(live, box)] += 1
    assert sum(seen.values()) == 177


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(formulas(), problems(), st.data())
def test_verdicts_are_right(text: str, env: dict[str, Any], data: st.DataObject):
    if not env["M"] or not env["N"]:
        return
    mask = read(text)
    normal = normalise(mask, params=FACTS)
    live = table(mask, env)
    for _ in range(4):
        q0, k0 = data.draw(st.integers(0, env["M"] - 1)), data.draw(st.integers(0, env["N"] - 1))
        box = (q0, data.draw(st.integers(q0, env["M"] - 1)), k0, data.draw(st.integers(k0, env["N"] - 1)))
        got = verdict(normal, box, env)
        undecided = normal.opaque or normal.negation is None
        assert got == truth(live, box) or (got == "unknown" and undecided)
        without = {n: v for n, v in env.items() if n not in ("doc", "head", "W")}
        assert verdict(normal, box, without) in (truth(live, box), "unknown")


@pytest.mark.parametrize(
    "text", ["(k - q) % 5 == 2", "(q - k) % 5 == 2", "k % 3 == 1 and k <= q", "(k - q) % 4 == 3 and q % 2 == 1"]
)
def test_congruences_on_every_small_box(text: str):
    mask = read(text)
    normal, live = normalise(mask), table(mask, {"M": 8, "N": 8})
    for box in product(range(8), range(8), range(8), range(8)):
        if box[0] <= box[1] and box[2] <= box[3]:
            assert verdict(normal, box, {}) == truth(live, box)


def test_opaque_atoms_leave_doubt_unless_the_others_decide():
    normal = normalise(read("k <= q and q * k < 90"))
    assert verdict(normal, (0, 3, 8, 9), {}) == "empty"
    assert verdict(normal, (8, 9, 0, 3), {}) == "unknown"
    assert verdict(normalise(read("k <= q or q * k < 90")), (8, 9, 0, 3), {}) == "full"


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(formulas(), problems())
def test_row_safety_of_bound_extents(text: str, env: dict[str, Any]):
    mask = read(text)
    normal = normalise(mask, params=FACTS)
    safety = rows_safe(normal, Int(env["M"]), Int(env["N"]), env=env)
    want = all(table(mask, env))
    assert safety.safe == want or (safety.safe is None and normal.opaque)
    if safety.safe is False and safety.witness.startswith("row "):
        assert not table(mask, env)[int(safety.witness.split()[1])]


ASSUMES = ("N >= M", "M == N", "W >= 1", "T >= 1", "N >= 1")


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(formulas(), st.sets(st.sampled_from(ASSUMES)), st.lists(problems(), min_size=6, max_size=6))
def test_row_safety_over_symbols(text: str, assumes: set[str], shapes: list[dict[str, Any]]):
    mask = read(text)
    safety = rows_safe(normalise(mask, params=FACTS), M, N, [read(a) for a in sorted(assumes)])
    if safety.safe is None:
        assert safety.witness
        return
    for env in shapes:
        if "M == N" in assumes or "N >= M" in assumes:  # the array is as long as either
            env = {**env, "N": max(env["M"], env["N"])}
        if "M == N" in assumes:
            env = {**env, "M": env["N"]}
        if all(eval(a, dict(env)) for a in assumes) and env["M"]:
            assert all(table(mask, env)) == safety.safe


@pytest.mark.parametrize(
    ("mask", "assumes", "safe", "witness"),
    [
        ("k <= q + N - M", (), None, "rows 0 to M - N - 1 keep no key when M > N"),
        ("k <= q + N - M", ("N >= M",), True, ""),
        ("k <= q", ("N >= 1",), True, ""),
        ("k <= q", (), None, "no row keeps a key when 1 > N"),
        ("k < q", ("N >= M",), False, "row 0 keeps no key"),
        ("k > q", ("N == M",), False, "the last row keeps no key"),
        ("q - k < 128 and k <= q", (), None, "rows N + 127 to M - 1 keep no key when M > N + 127"),
        ("doc[b, q] == doc[b, k] and k <= q", ("M <= N",), True, ""),
        ("abs(q - k) <= W and (q - k) % T == 0", ("M == N",), True, ""),
        ("k <= q and (q - k) % 4 == 1", ("M <= N",), None, "(q - k - 1) % 4 == 0 may leave a row without a key"),
        ("q * k < 9", ("M == N",), None, "q * k < 9 may leave a row without a key"),
        ("k == q or k == 0", ("M <= N",), True, ""),
        ("k % 4 == 7", ("M <= N",), False, "row 0 keeps no key"),
    ],
)
def test_what_is_said_of_rows(mask: str, assumes: tuple[str, ...], safe: bool | None, witness: str):
    safety = rows_safe(normalise(read(mask), params=FACTS), M, N, [read(a) for a in assumes])
    assert (safety.safe, safety.witness) == (safe, witness)
