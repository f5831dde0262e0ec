"""map_blocks: every order takes each tile exactly once, whatever the counts; longest-first takes the longest first."""

import heapq
import itertools

import pass_kit as kit
import pytest
from feature_specs import kernel
from map_kit import extents, tiles_of

from tilec.arith.evaluate import evaluate
from tilec.ir.expr import Var
from tilec.passes.map_blocks import BlockMap, map_blocks

SYMBOLS = kernel("mask k <= q + N - M", h="h : H, g : 3", query="Q[b, q, h, g, d]", output="O[b, q, h, g, d]", lse="")
PROGRAM = kit.program(SYMBOLS, stage="choose_tiles")
DILATED = kit.program(kernel("mask (q - k) % 3 == 0"), stage="choose_tiles")
PACKED = kit.program(kernel(q="q : M packed cu"), stage="choose_tiles")
SIZES = [
    {"B": b, "H": h, "M": m, "N": n} for b, h, m, n in itertools.product((1, 2, 3), (1, 2, 5), (1, 32, 100), (40, 5000))
]
ORDERS = ("linear", "longest_first")
SMALL = {"l2": 400_000, "bytes_per_key": 64, "keys": Var("N")}  # a section: 78 heads of 40 keys, none whole of 5000


@pytest.mark.parametrize("fill", [None, 12])
@pytest.mark.parametrize("units", [None, 1, 7, 1000])
@pytest.mark.parametrize("xcds", [1, 8])
@pytest.mark.parametrize("order", ORDERS)
def test_each_tile_once(order, xcds, units, fill):
    chosen = BlockMap(order, xcds, units, sharing=2, fill=fill, **SMALL)
    for base in (PROGRAM, DILATED) if order == "longest_first" else (PROGRAM, DILATED, PACKED):
        p = map_blocks(base, chosen)
        for sizes in SIZES:
            found = tiles_of(p, sizes)
            everything = itertools.product(*(range(n) for n in extents(p, sizes)))
            assert sorted(found) == sorted(everything), sizes


def test_no_tile_at_all():
    for order, xcds, units, fill in itertools.product(ORDERS, (1, 8), (None, 7), (None, 12)):
        p = map_blocks(PROGRAM, BlockMap(order, xcds, units, fill=fill, **SMALL))
        assert all(tiles_of(p, {"B": b, "H": 2, "M": m, "N": 0}) == [] for b, m in ((0, 40), (1, 0)))


@pytest.mark.parametrize("l2", [0, 10_000, 400_000, 10**9])
def test_longest_first_descends_in_every_section(l2):
    p = map_blocks(PROGRAM, BlockMap("longest_first", l2=l2, bytes_per_key=64, keys=Var("N")))
    several = 0
    for sizes in SIZES:
        found = tiles_of(p, sizes)
        rows, *_ = extents(p, sizes)
        if rows == 1:
            continue  # nothing shows where a section ends
        starts = [i for i, t in enumerate(found) if i == 0 or t[0] > found[i - 1][0]]
        several += len(starts) > 1
        for start, end in itertools.pairwise([*starts, len(found)]):
            section = [t[0] for t in found[start:end]]
            assert section[0] == rows - 1 and section[-1] == 0
            assert section == sorted(section, reverse=True)
            heads = {t[1:] for t in found[start:end]}
            assert len(heads) * rows == end - start  # whole heads
            assert len(heads) <= 1.5 * max(1, l2 // 2 // 64 // sizes["N"])
    assert several or l2 == 10**9


def test_a_section_is_as_large_as_the_cache_allows():
    sizes = {"B": 3, "H": 5, "M": 100, "N": 40}
    p = map_blocks(PROGRAM, BlockMap("longest_first", l2=10**9, bytes_per_key=64, keys=Var("N")))
    rows, *heads = extents(p, sizes)
    count = heads[0] * heads[1] * heads[2]
    assert [t[0] for t in tiles_of(p, sizes)] == [m for m in range(rows - 1, -1, -1) for _ in range(count)]


@pytest.mark.parametrize(("fill", "heads"), [(1, 1), (4, 1), (7, 1), (8, 2), (12, 3), (24, 6)])
def test_a_section_has_few_tiles_beside_those_that_run_at_once(fill, heads):
    """Of 6 heads with 4 row tiles each, where the cache would hold them all."""
    p = map_blocks(PROGRAM, BlockMap("longest_first", l2=10**9, bytes_per_key=64, keys=Var("N"), fill=fill))
    found = tiles_of(p, {"B": 1, "H": 2, "M": 100, "N": 40})
    assert [t[0] for t in found[: 4 * heads]] == [m for m in (3, 2, 1, 0) for _ in range(heads)]


SECTIONS = [(33, 8, 11), (21, 6, 7), (15, 6, 5), (3, 9, 3), (39, 5, 5), (15, 2, 3), (69, 8, 7), (6, 3, 3), (12, 6, 6)]


@pytest.mark.parametrize(("heads", "fit", "size"), SECTIONS)
def test_the_last_section_is_nearly_full(heads, fit, size):
    """`fit` heads of 4 row tiles are what there should be at once: sizes about it count, those half as large again do not."""
    p = map_blocks(PROGRAM, BlockMap("longest_first", l2=10**12, bytes_per_key=64, keys=Var("N"), fill=4 * fit))
    found = tiles_of(p, {"B": 1, "H": heads // 3, "M": 100, "N": 40})
    assert len(list(itertools.takewhile(lambda t: t[0] == 3, found))) == size


def late(heads, keys, fill):
    """Causal tiles of three groups of heads on 132 units, each of which takes the next tile when it is free: how much longer
    that takes than the mean."""
    p = map_blocks(PROGRAM, BlockMap("longest_first", l2=60 << 20, bytes_per_key=1024, keys=Var("N"), fill=fill))
    busy = [0.0] * 132
    for m, *_ in tiles_of(p, {"B": 1, "H": heads, "M": keys // 4, "N": keys}):  # 32 rows a tile stand for 128
        heapq.heapreplace(busy, busy[0] + m + 1.5)
    return max(busy) * len(busy) / sum(busy) - 1


@pytest.mark.parametrize("fill", [None, 264])
@pytest.mark.parametrize(("heads", "keys", "loss"), [(21, 2048, 0.02), (22, 2048, 0.03), (10, 4096, 0.06)])
def test_no_small_section_is_left_for_the_end(heads, keys, loss, fill):
    """With sections as full as the cache, and the rest as the last, 0.16, 0.12 and 0.18."""
    assert late(heads, keys, fill) <= loss


@pytest.mark.parametrize(
    ("heads", "loss", "before"), [(10, 0.02, 0.05), (13, 0.02, 0.08), (15, 0.01, 0.05), (17, 0.04, 0.08)]
)
def test_sizes_are_weighed_by_the_last_section(heads, loss, before):
    assert late(heads, 4096, 264) <= loss and late(heads, 4096, None) >= before


def test_chiplets_get_runs_of_tiles():
    """Blocks go to chiplets round robin: those of one chiplet take consecutive tiles, counts differ by at most one."""
    p = map_blocks(PROGRAM, BlockMap("linear", xcds=8))
    linear = map_blocks(PROGRAM, BlockMap())
    for sizes in SIZES:
        place = {t: i for i, t in enumerate(tiles_of(linear, sizes))}
        taken = [place[t] for t in tiles_of(p, sizes)]
        runs = [taken[i::8] for i in range(8)]
        assert all(b == a + 1 for run in runs for a, b in itertools.pairwise(run))
        assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_persistent_blocks_are_as_many_as_units():
    p = map_blocks(PROGRAM, BlockMap("linear", units=7))
    ctas = [evaluate(p.grid.ctas, {**s, **dict(p.tile)}) for s in SIZES]
    assert max(ctas) == 7 and min(ctas) >= 1
    assert p.grid.order == "linear_persistent"


def test_names_of_the_spec_stay_free():
    p = kit.program(kernel("mask k <= q", h="head : 2, section : 2, width : 2, tile : 1, left : 1",
                           query="Q[b, q, head, section, width, tile, left, d]", key="K[b, k, head, d]",
                           value="V[b, k, head, d] : bf16", output="O[b, q, head, section, width, tile, left, d]", lse=""),
                    stage="choose_tiles")  # fmt: skip
    for order, xcds, units in itertools.product(ORDERS, (1, 8), (None, 5)):
        found = map_blocks(p, BlockMap(order, xcds, units, **SMALL))
        for sizes in ({"B": 2, "M": 100, "N": 40}, {"B": 1, "M": 33, "N": 4000}):
            everything = itertools.product(*(range(n) for n in extents(found, sizes)))
            assert sorted(tiles_of(found, sizes)) == sorted(everything)


def test_a_second_map_is_refused():
    p = map_blocks(PROGRAM, BlockMap("longest_first"))
    with pytest.raises(ValueError, match="already longest_first"):
        map_blocks(p, BlockMap())


def test_coordinates_multiply_to_the_tiles():
    for p in (PROGRAM, DILATED, PACKED):
        for sizes in SIZES:
            env = {**sizes, **dict(p.tile), "M_rows": sizes["M"]}
            product = 1
            for n in extents(p, sizes):
                product *= n
            assert product == evaluate(p.grid.tiles, env)
