"""The simulator of dies and caches: small grids worked out by hand, published rates, the same dispatch in both methods."""

from dataclasses import replace

import numpy as np
import pytest

from tilec.passes.map_blocks import BlockMap
from tilec.targets import target
from tilec.tune import caches
from tilec.tune.blocks import plain, taken
from tilec.tune.caches import Dies, Work, dies_of, dispatch, simulate
from tilec.tune.rank import Cell, simulated

FREE = float("inf")
TINY = Dies(2, 2, 8 * 128, 8, 128, 1 << 20, FREE, FREE, 0.0, 0.0)  # an L2 of eight pieces of one line, in one set


def work(blocks, clocks=100.0, size=128):
    """`blocks`: lists of (stream, lo, hi)."""
    first = np.cumsum([0, *map(len, blocks)])
    stream, lo, hi = np.array([p for b in blocks for p in b]).reshape(-1, 3).T
    return Work(first, stream, lo, hi, np.arange(len(lo)), clocks, size)


def test_blocks_of_a_stream_on_one_die_share_it():
    shared = simulate(work([[(0, 0, 50)], [(1, 0, 50)]] * 2), TINY, jitter=0)
    assert (shared.l2, shared.llc) == (0.5, 0.0)
    split = simulate(work([[(0, 0, 50)]] * 2 + [[(1, 0, 50)]] * 2), TINY, jitter=0)
    assert (split.l2, split.llc) == (0.0, 0.5)


def test_what_the_cache_held_and_what_it_lost():
    again = simulate(work([[(0, 0, 8), (0, 0, 8)]]), TINY, jitter=0)
    assert again.l2 == 0.5
    lost = simulate(work([[(0, 0, 9), (0, 0, 9)]]), TINY, jitter=0)
    assert (lost.l2, lost.llc) == (0.0, 0.5)
    nowhere = simulate(work([[(0, 0, 9), (0, 0, 9)]]), replace(TINY, llc=8 * 128), jitter=0)
    assert (nowhere.l2, nowhere.llc, nowhere.memory) == (0.0, 0.0, 1.0)


def test_time_without_memory_is_that_of_the_steps():
    found = simulate(
        work([[(0, 0, 10)], [(1, 0, 10)], [(2, 0, 30)], [(3, 0, 10)]] + [[(4, 0, 10)]] * 2), TINY, jitter=0
    )
    per = caches.OVERHEAD
    assert found.makespan == pytest.approx(2 * (10 * 100 + per))  # block 4 follows block 0, as block 2 is long
    assert found.ideal == pytest.approx((80 * 100 + 6 * per) / 4)


def test_memory_bounds_what_misses():
    slow = replace(TINY, memory_rate=0.5)  # 256 clocks a piece, for all units together
    found = simulate(work([[(n, 0, 40)] for n in range(4)]), slow, jitter=0)
    assert found.makespan == pytest.approx(4 * 40 * 256, rel=0.05)
    fits = simulate(work([[(n, 0, 40)] for n in range(2)], clocks=600.0), slow, jitter=0)
    assert fits.makespan == pytest.approx(40 * 600, rel=0.15)


def test_units_take_the_next_block_of_their_die():
    w = work([[(0, 0, n)] for n in (90, 1, 2, 1, 1, 1, 1, 1)])
    plan = dispatch(w, TINY, 100.0, 0.0, 0)
    assert plan.unit[0::2].tolist() == [0, 1, 1, 1]
    assert plan.start[1::2].tolist() == [0, 0, plan.length[1], plan.length[1]]
    whole = simulate(w, TINY, jitter=0)
    assert plan.end == pytest.approx(whole.makespan)


def test_a_call_of_nothing():
    assert simulate(Work(*(np.zeros(n, np.int64) for n in (1, 0, 0, 0, 0)), 1.0, 128), TINY).makespan == 0


def grid(m, rows, heads, mask="full", sharing=1):
    cell = Cell(mask, rows * 128, heads, sharing)
    return simulated("gfx942", cell, m)


def test_rates_of_long_calls_are_as_published():
    """Chiplet FA (arXiv 2511.02132), MI300X, 128 heads of 128k keys: 90 to 96 % head first on dies, about 1 % block first."""
    assert grid("runs", 1024, 128).l2 >= 0.90 and grid("heads", 1024, 128).l2 >= 0.90
    assert grid("block_first", 1024, 128).l2 <= 0.05
    assert grid("heads", 1024, 128).method == "sampled"


def test_streams_of_a_die_divide_its_hits():
    """Blocks in lock step hit once for every stream: 1 - streams / 38."""
    for name, heads, streams in (("block_first", 32, 4), ("block_first", 128, 16), ("heads", 128, 1.4)):
        assert grid(name, 64, heads).l2 == pytest.approx(1 - streams / 38, abs=0.04)


def test_a_sample_tells_what_the_whole_does():
    dies = dies_of(target("gfx942"))
    for name in ("linear", "runs"):
        m = {"linear": BlockMap(), "runs": BlockMap(xcds=8)}[name]
        found = taken(plain(m), {"R": 64, "H": 48})
        parts = len(found.block)
        w = Work(
            np.arange(parts + 1),
            found.at["head"],
            np.zeros(parts, int),
            np.full(parts, 64),
            np.arange(parts),
            2048.0,
            1 << 15,
        )
        whole, part = simulate(w, dies), simulate(w, dies, budget=w.steps // 4)
        assert (whole.method, part.method) == ("whole", "sampled")
        assert part.l2 == pytest.approx(whole.l2, abs=0.03)
        assert part.makespan == pytest.approx(whole.makespan, rel=0.02)


def test_a_target_without_dies_has_none():
    assert dies_of(target("sm90")) is None
    with pytest.raises(ValueError, match="not described"):
        simulated("sm90", Cell("full", 128, 1, 1), "linear")
