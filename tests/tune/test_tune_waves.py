"""Tuning by models over gfx942's native kernels: what is searched, what is timed, what is said of it."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from feature_specs import CAUSAL, kernel

import tilec.predict.waves
from tilec.dsl.faults import Faults
from tilec.frontend import read_text
from tilec.jobs import job
from tilec.predict import predict_kernel, table
from tilec.predict.times import STEPS, BlockTime, Timed, call_of, time_point, timer
from tilec.schedule import EMPTY, Schedule, Strategy
from tilec.targets.gfx942.cycles import Timing
from tilec.terminal import show_table
from tilec.tune.cdna import Point, points, read_rows
from tilec.tune.wave_space import WavePoint, neighbours

SIZES = {"B": 2, "M": 2048, "N": 2048}


def spec(schedule="", d=128, **more):
    lines = f"schedule f on gfx942 {{ {schedule} }}" if schedule else ""
    return read_text(
        kernel(CAUSAL, **{"d": f"d : {d}", "h": "h : 8", "scale": "scale 1 / 8", "schedule": lines, **more})
    )


def timing(step, resident=1, matrix=0.5):
    return Timing(
        8 * int(step), resident, step, 8, {"matrix": matrix, "issue": 0.6, "lds": 0.1, "memory": 0.1}, {"lds": 1}
    )


def pretended(p):
    """Few waves, and few keys ahead, are best; 16 rows to a wave do not compile."""
    if p.rows // p.waves == 16:
        return Timed(p, reason="E0918: spills")
    products = p.rows * p.keys / 8
    step = 2 * products + 100 * p.waves + p.keys_ahead + (p.seldom is None)
    return Timed(p, BlockTime(timing(step, matrix=products / step), products))


@pytest.fixture
def pretend(monkeypatch):
    @contextmanager
    def times(job, workers):
        yield lambda some: (pretended(p) for p in some)

    monkeypatch.setattr(tilec.predict.waves, "timer", times)


def predicted(read, **options):
    return predict_kernel(read, read.kernels[0], "gfx942", SIZES, lambda text, done, total: None, **options)


def test_the_walk_over_shapes_and_maps(pretend, capsys):
    found = predicted(spec(), backend="hip")
    shape = found.best.shape
    assert (shape.waves, shape.turns, shape.keys, shape.seldom) == (4, False, 64, 8.0)
    seconds = {o.point: o.seconds for o in found.outcomes}
    assert seconds[found.best] <= seconds[found.start] and found.best in seconds
    refused = [o for o in found.outcomes if o.traffic is None]
    assert {o.note[:13] for o in refused} >= {"E0918: spills", "E0803: sK 2 x"} and refused[-1] is found.outcomes[-1]
    assert {o.point.map for o in found.outcomes} >= {None, ("linear", None), ("xcd", "h")}
    data = found.to_data()
    assert data["backend"] == "hip" and data["predicted"] and data["passed_over"] == []
    assert data["candidates"][0]["cycles"]["busy"]["matrix"] > 0.4
    (row,) = read_rows(data["row"], "r")
    assert row.point == replace(shape, by="record") and row.source.startswith("predicted by tilec tune, cycle model")
    show_table(table(found))
    shown = capsys.readouterr().out
    assert "predicted, not measured" in shown and "E0918: spills" in shown and "lds" in shown


def test_what_the_spec_pins_is_kept_and_time_that_is_over_leaves_the_start(pretend):
    found = predicted(spec("tile q = 256, k = 64  warps ping_pong(wave = 8)  rescale delayed  map xcd by h"))
    shapes = {(o.point.shape.rows, o.point.shape.keys, o.point.shape.seldom, o.point.map) for o in found.outcomes}
    assert shapes == {(256, 64, None, ("xcd", "h"))} and found.best.shape.keys_ahead == 0
    over = predicted(spec(), seconds=-1.0)
    assert [o.point for o in over.outcomes] == [over.start] == [over.best]


def test_what_the_backend_refuses_is_searched_as_triton_and_said(pretend):
    found = predicted(spec("tile q = 64, k = 64  map linear", d=24))
    assert found.backend == "triton" and found.row is None and found.best.q == 64
    assert str(found.passed_over[0]).startswith("hip passed over: the hip backend does not take d = 24")
    with pytest.raises(Faults, match="d = 24"):
        predicted(spec(d=24), backend="hip")


def test_lines_say_what_they_can_of_a_point():
    read = spec()
    attn, start = read.kernels[0], next(points(read.kernels[0], EMPTY))
    p = WavePoint(replace(start, keys_ahead=0, seldom=None), ("xcd", "h"))
    lines = "tile q = 256, k = 64  warps ping_pong(wave = 8)  rescale delayed  map xcd by h"
    assert p.lines(attn, tilec.targets.target("gfx942")) == f"schedule f on gfx942 {{ {lines} }}"
    assert p.unsaid(attn, EMPTY) == ("keys_ahead = 0",) and WavePoint(start).unsaid(attn, EMPTY) == ()
    again = spec(lines)
    written = again.schedule("f", "gfx942")
    assert p.schedule(attn, EMPTY) == replace(written, spans={}) and written.map == ("xcd", "h")
    near = list(neighbours(p, attn, EMPTY))
    assert len(near) == len(set(near)) and p not in near
    pinned = Schedule(tile=(("q", 256),), warps=Strategy("ping_pong", (("wave", 8),)), map=("xcd", "h"))
    assert {(n.shape.rows, n.map) for n in neighbours(p, attn, pinned)} == {(256, p.map)}


def test_a_loop_without_a_steps_products_is_not_the_steps():
    same, other = BlockTime(timing(1000.0, 2), 250.0), BlockTime(timing(1000.0, 2), 400.0)
    assert same.over_keys and same.step == 500
    assert not other.over_keys and other.step == 400.0 / 0.5


def test_the_call_that_is_run_has_a_tile_of_rows_and_some_steps():
    attn, p = spec().kernels[0], Point(8, 256, 64, 64, 16, 8.0)
    assert call_of(attn, SIZES, p.rows, p.keys) == {"B": 1, "M": 256, "N": 256 + 64 * STEPS}
    assert call_of(attn, {"B": 4, "M": 3, "N": 70}, p.rows, p.keys) == {"B": 1, "M": 3, "N": 70}


def test_machine_code_is_timed_or_refused():
    text = kernel(d="d : 64", h="h : 1", scale="scale 1 / 8", schedule="")
    todo = job(text, "f", "gfx942", {}, SIZES)
    small, large = Point(8, 128, 64, 0, 16, 8.0), Point(8, 256, 256, 64, 32, 8.0)
    with timer(todo, 1) as times:
        found, refused = times([small, large])
    block = found.block
    assert block.timing.passes > 4 and block.step * block.timing.resident == block.timing.step
    assert block.step > 128 * 64 * 64 * 4 / 2048, "products at the rate of the matrix units"
    assert refused.block is None and refused.reason.startswith("E0803")
    short = time_point(replace(todo, shape=(("B", 1), ("M", 100), ("N", 64))), replace(small, keys=32)).block
    assert short.timing.step == 0 and short.step == short.products / short.timing.matrix
