"""Loop bounds against brute force: no live pair outside the segments, no dead pair in a full tile, each tile once, in order."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import and_, or_
from typing import Any

import pytest
from arith_masks import FACTS, MASKS, formulas, problems, read, sought, table, walk_segments
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilec.arith.bounds import Bounds, k_bounds, q_bounds
from tilec.arith.evaluate import evaluate
from tilec.arith.formula import normalise
from tilec.arith.segments import TileSegment, tile_segments
from tilec.ir.expr import Expr, Int, Var

FIRST, LAST = Var("first"), Var("last")


def bounds_of(mask: Expr, side: str, assumes: tuple[Expr, ...] = ()) -> Bounds:
    normal = normalise(mask, params=FACTS)
    of, extent = (k_bounds, Var("N")) if side == "k" else (q_bounds, Var("M"))
    return of(normal, FIRST, LAST, extent, assumes)


def bits(positions: Any) -> int:
    return reduce(or_, (1 << p for p in positions), 0)


def check(
    bounds: Bounds, segments: tuple[TileSegment, ...], size: int, rows: int, live: list[int], extent: int, env: Any
) -> Counter[str]:
    """Runs the loops for every tile of `rows` rows; `live` as `table` gives it.

    Counts the tiles `walked`, those of them that were `dead`, and full ones that were `masked` all the same."""
    counts: Counter[str] = Counter()
    for first in range(0, len(live), rows):
        last = min(first + rows, len(live)) - 1
        here = sought(bounds.seeks, {**env, "first": first, "last": last})
        some = reduce(or_, live[first : last + 1])
        every = reduce(and_, live[first : last + 1])
        covered = 0
        for piece in bounds.pieces:
            covered |= bits(range(evaluate(piece.live.lo, here), evaluate(piece.live.hi, here)))
            if piece.full is not None:
                assert not bits(range(evaluate(piece.full.lo, here), evaluate(piece.full.hi, here))) & ~every
        assert not covered >> extent
        assert not some & ~covered

        done = walk_segments(segments, here)
        tiles = [bits(range(t * size, t * size + size)) for t in range(-(-extent // size))]
        assert all(t < len(tiles) for t in done.visited)
        assert all(t in done.visited for t, b in enumerate(tiles) if b & some)
        assert not any(tiles[t] & ~every for t in done.unmasked)
        counts["walked"] += len(done.visited)
        counts["dead"] += sum(not tiles[t] & some for t in done.visited)
        counts["masked"] += sum(not tiles[t] & ~every for t in done.visited if t not in done.unmasked)
    return counts


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    formulas(), st.lists(problems(), min_size=2, max_size=4), st.sampled_from([1, 3, 4, 8]), st.sampled_from([1, 4, 7])
)
def test_segments_are_sound(text: str, shapes: list[dict[str, Any]], size: int, rows: int):
    mask = read(text)
    for side, by, extent in (("k", "q", "N"), ("q", "k", "M")):
        bounds = bounds_of(mask, side)
        segments = tile_segments(bounds, Int(size))
        for env in shapes:
            check(bounds, segments, size, rows, table(mask, env, by), env[extent], env)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(formulas(), st.lists(problems(), min_size=3, max_size=3), st.sampled_from([3, 4]))
def test_segments_are_sound_under_assumptions(text: str, shapes: list[dict[str, Any]], size: int):
    """M == N, the row inside, a length that fills its tiles: what a caller may know must not break anything."""
    mask = read(text)
    assumes = tuple(read(t) for t in ("last < M", "M == N", f"N % {size} == 0", "W >= 1"))
    bounds = bounds_of(mask, "k", assumes)
    segments = tile_segments(bounds, Int(size))
    for env in shapes:
        n = env["N"] // size * size
        env = {**env, "M": n, "N": n, "W": env["W"] + 1}
        check(bounds, segments, size, 4, table(mask, env), n, env)


SHAPES = ((256, 256), (200, 333), (129, 129), (300, 100))
TILES = ((128, 64), (64, 64), (32, 96), (1, 128))
# Of about 2,500 tiles a mask: those walked without a live pair (a congruence is not seen by bounds), and full ones masked all the
# same (where the first tokens end inside the window's tiles).
LOOSE = {"dilated": (192, 0), "strided": (93, 0), "window and first tokens": (0, 23)}


@pytest.mark.parametrize("name", MASKS)
def test_how_tight(name: str):
    mask = read(MASKS[name])
    total: Counter[str] = Counter()
    for side, by, extent in (("k", "q", "N"), ("q", "k", "M")):
        bounds = bounds_of(mask, side)
        for m, n in SHAPES:
            live = table(mask, {"M": m, "N": n}, by)
            env = {"M": m, "N": n}
            for rows, size in TILES:
                total += check(bounds, tile_segments(bounds, Int(size)), size, rows, live, env[extent], env)
    assert total["walked"] > 1000
    assert (total["dead"], total["masked"]) == LOOSE.get(name, (0, 0))


def lines(mask: str, side: str = "k", assumes: tuple[str, ...] = ()) -> list[str]:
    """The bounds as text."""
    bounds = bounds_of(read(mask), side, tuple(map(read, assumes)))
    out = [f"{s.name} = first of {s.lo}..{s.hi} with {s.cond}" for s in bounds.seeks]
    for p in bounds.pieces:
        full = f"full {p.full.lo} .. {p.full.hi}" if p.full else "full nowhere"
        out += [f"live {p.live.lo} .. {p.live.hi}", full, p.because]
    return out


def test_causal_reads_as_it_is_taught():
    assert lines("k <= q + N - M") == [
        "live 0 .. min(N, last + 1 + N - M)",
        "full 0 .. min(N, first + 1 + N - M)",
        "k <= q + N - M  =>  k < last + 1 + N - M",
    ]
    assert lines("k <= q + N - M", assumes=("last < M",))[:2] == [
        "live 0 .. last + 1 + N - M",
        "full 0 .. first + 1 + N - M",
    ]
    assert lines("k <= q + N - M", "q") == [
        "live max(0, first - N + M) .. M",
        "full max(0, last - N + M) .. M",
        "k <= q + N - M  =>  q >= first - N + M",
    ]


def test_documents_are_found_by_bisection():
    assert lines("doc[b, q] == doc[b, k] and k <= q", assumes=("last < M", "M <= N")) == [
        "seek0 = first of 0..N with doc[b, seek0] >= doc[b, first]",
        "seek1 = first of 0..N with doc[b, seek1] >= doc[b, last]",
        "live seek0 .. last + 1",
        "full seek1 .. first + 1",
        "doc[b, q] == doc[b, k]  =>  k >= seek0; k <= q  =>  k < last + 1",
    ]


def test_what_hinders_is_said():
    assert lines("k <= q and q * k < 9")[1:] == [
        "full nowhere",
        "k <= q  =>  k < last + 1; q * k is tested per element: `q * k` is not affine",
    ]


def test_disjuncts_that_are_one_range_are_joined():
    assert lines("k <= q or k < 77")[:2] == [
        "live 0 .. min(N, max(last + 1, 77))",
        "full 0 .. min(N, max(first + 1, 77))",
    ]


def test_contradictions_leave_nothing():
    assert lines("k < q and k > q + 3") != []  # each row has none, which the hull over rows does not see
    assert lines("k < 5 and k > 7") == []
    assert lines("q < 0") == []
    assert lines("k % 4 == 4") == []


@pytest.mark.parametrize(
    ("mask", "assumes", "loops"),
    [
        ("True", (), ["full right"]),  # the right part is the tail of the sequence
        ("True", ("N % 64 == 0",), ["full"]),
        ("k <= q + N - M", (), ["full right"]),
        ("k <= q and q - k < 128", (), ["left full right"]),
        ("(q - k) % 4 == 0", (), ["right"]),
        ("k <= q and (q - k < 128 or k < 64)", ("last < M", "M <= N"), ["full right", "left full right"]),
        ("k < q - 200 or k >= 128 and k < 192", ("N >= 192",), ["full right", "full"]),
        ("q < 0", (), []),
    ],
)
def test_loops_that_never_run_are_not_emitted(mask: str, assumes: tuple[str, ...], loops: list[str]):
    segments = tile_segments(bounds_of(read(mask), "k", tuple(map(read, assumes))), Int(64))
    empty = [(("left", s.left_empty), ("full", s.full_empty), ("right", s.right_empty)) for s in segments]
    assert [" ".join(n for n, e in parts if not e) for parts in empty] == loops


def test_text_stays_short_for_any_union():
    mask = read(
        " or ".join(f"k == q * {i} // 1 + W - {i}" if i < 2 else f"abs(q - k - {7 * i}) == W - {i}" for i in range(8))
    )
    segments = tile_segments(bounds_of(mask, "k"), Int(64))
    assert max(len(str(x)) for s in segments for x in (s.lo, s.full_lo, s.full_hi, s.hi)) < 5000
