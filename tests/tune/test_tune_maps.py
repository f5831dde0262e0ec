"""The record of block maps: written by the simulator, read by the pipeline, never worse than linear order."""

import itertools
import time
from importlib import resources

import pytest
from feature_specs import CAUSAL, kernel

from tilec.frontend import read_text
from tilec.ir.expr import Var
from tilec.pipeline import lower
from tilec.targets import target
from tilec.tune import maps
from tilec.tune.classes import mask_class
from tilec.tune.maps import Heads, candidates, record
from tilec.tune.rank import NATIVE, TIE, Cell, rank, simulated, text

MACHINE = target("gfx942")
CLASSES = list(itertools.product(("full", "growing", "narrow"), (False, True)))


def chosen(mask, grouped):
    return maps.best(MACHINE, mask, Heads(512, 4 if grouped else 1, Var("N")))


def test_the_record_has_every_map_of_every_class():
    names = set(candidates(MACHINE, Heads(512, 1, Var("N"))))
    for mask, grouped in CLASSES:
        lines = [r for r in record() if (r.mask, r.grouped) == (mask, grouped)]
        assert {r.map for r in lines} == names and len(lines) == len(names)
        assert lines[0].map == chosen(mask, grouped)
    assert len(record()) == len(names) * len(CLASSES)


@pytest.mark.parametrize(("mask", "grouped"), CLASSES)
def test_the_chosen_map_is_never_worse_than_linear(mask, grouped):
    first = next(r for r in record() if (r.mask, r.grouped) == (mask, grouped))
    assert first.worst <= 1 + TIE and first.time <= 1
    for length, heads in ((1024, 36), (2048, 24), (8192, 12), (10000, 17)):
        cell = Cell(mask, length, *((4 * heads, 4) if grouped else (heads, 1)))
        best, linear = (simulated("gfx942", cell, n) for n in (first.map, "linear"))
        assert best.makespan <= linear.makespan * (1 + TIE), cell


@pytest.mark.parametrize(("mask", "grouped"), [("full", False), ("growing", True)])
def test_the_record_is_what_the_simulator_says(mask, grouped):
    some = (
        [Cell(mask, 1024, 128, 16), Cell(mask, 4096, 24, 2)]
        if grouped
        else [Cell(mask, 1024, 128, 1), Cell(mask, 4096, 32, 1)]
    )
    found = rank(MACHINE, mask, grouped, some)
    near = [r.map for r in found if r.worst <= 1 + TIE and r.time <= found[0].time * (1 + 2 * TIE)]
    assert chosen(mask, grouped) in near


def test_a_long_call_finds_its_keys_in_the_dies_caches():
    for mask in ("full", "growing"):
        cell = Cell(mask, 131072, 128, 1)
        found, linear = (simulated("gfx942", cell, n) for n in (chosen(mask, False), "linear"))
        assert found.l2 >= 0.90 and found.makespan <= (1 + TIE) * linear.makespan
        assert simulated("gfx942", cell, "block_first").l2 <= 0.60


NATIVES = {f"{t.rows} x {t.keys} of {t.features}": t for t in NATIVE}


@pytest.mark.parametrize("name", NATIVES)
@pytest.mark.parametrize(("mask", "grouped"), CLASSES)
def test_the_choice_holds_for_tiles_of_native_kernels(mask, grouped, name):
    for length, heads in ((1024, 36), (4096, 12)):
        cell = Cell(mask, length, *((4 * heads, 4) if grouped else (heads, 1)))
        best, linear = (simulated("gfx942", cell, n, NATIVES[name]) for n in (chosen(mask, grouped), "linear"))
        assert best.makespan <= linear.makespan * (1 + TIE), cell


@pytest.mark.parametrize(("mask", "sharing"), [("full", 1), ("full", 16), ("growing", 1), ("growing", 16)])
def test_long_calls_of_native_kernels_find_their_keys(mask, sharing):
    tiles, cell = NATIVES["256 x 64 of 128"], Cell(mask, 131072, 128, sharing)
    found, linear = (simulated("gfx942", cell, n, tiles) for n in (chosen(mask, sharing > 1), "linear"))
    assert found.l2 >= 0.90 and found.makespan <= (1 + TIE) * linear.makespan
    assert simulated("gfx942", cell, "block_first", tiles).l2 <= 0.60


def test_native_tiles_are_those_that_kernels_begin_with():
    for t in NATIVE:
        attn = read_text(kernel(d=f"d : {t.features}", scale=f"scale 1 / sqrt({t.features})", schedule="")).kernels[0]
        sizes = dict(lower(attn, "gfx942", backend="hip", features=frozenset({"aligned"})).tile)
        assert (sizes["TQ"], sizes["TK"]) == (t.rows, t.keys)


def test_the_record_is_text_that_reads_back():
    assert maps.read_record(text(record())) == record()
    assert resources.files("tilec.tune").joinpath("maps.toml").read_text(encoding="utf-8") == text(record())


SPECS = {
    "causal": kernel(CAUSAL, schedule=""),
    "causal, grouped": kernel(CAUSAL, h="h : 8", head="h // 4", schedule=""),
    "full": kernel(schedule=""),
    "window": kernel("mask k <= q + N - M and q + N - M - k < 128", schedule=""),
    "packed": kernel(CAUSAL, q="q : M packed cu", schedule=""),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_kernel_without_a_line_gets_the_recorded_map(name):
    read = read_text(SPECS[name])
    attn = read.kernels[0]
    grid = lower(attn, "gfx942").grid
    if name == "packed":  # whose tiles are found in the order of their table
        assert grid.order == "linear_xcd8"
        return
    grouped = "grouped" in name
    wanted = candidates(MACHINE, Heads(512, 4 if grouped else 1, Var("N")))[chosen(mask_class(attn), grouped)]
    assert (grid.order, grid.numbers) == (wanted.name, wanted.numbers)


@pytest.mark.parametrize("line", ["map xcd by h", "map linear", "map longest_first"])
def test_a_line_is_stronger_than_the_record(line):
    read = read_text(kernel(CAUSAL, schedule=f"schedule f on gfx942 {{ {line} }}"))
    order = lower(read.kernels[0], "gfx942", read.schedule("f", "gfx942")).grid.order
    assert order == {"map xcd by h": "longest_first_xcd8", "map linear": "linear"}.get(line, "longest_first")


def test_choosing_takes_no_time():
    record.cache_clear()
    began = time.process_time()
    assert chosen("growing", True)
    assert time.process_time() - began < 0.2


def test_targets_without_dies_keep_their_order():
    assert maps.best(target("sm90"), "growing", Heads(512, 1, Var("N"))) is None
    attn = read_text(kernel(CAUSAL, schedule="")).kernels[0]
    assert lower(attn, "gfx950").grid.order == "longest_first_xcd8"
