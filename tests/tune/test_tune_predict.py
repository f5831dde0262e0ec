"""Tuning by models over Triton's tiles: what is searched, what the spec pins, who says how long a step takes."""

import pytest

from tilec.dsl.faults import Faults, TargetFault
from tilec.frontend import read_text
from tilec.pipeline import lower
from tilec.predict import CLOSER, predict_kernel, table
from tilec.predict.tiles import STEP_MODELS, Point
from tilec.terminal import show_table
from tilec.tune.wave_space import map_line

SIZES = {"B": 2, "M": 2048, "N": 2048}


def quiet(text, done, total):
    assert 0 <= done <= total and "predict" in text


def spec(schedule="", mask="mask k <= q + N - M", more=""):
    return read_text(f"""kernel f {{
      index  b : B, h : 8, q : M, k : N, d : 128
      query  Q[b, q, h, d] : bf16
      key    K[b, k, h // 2, d] : bf16
      value  V[b, k, h // 2, d] : bf16
      output O[b, q, h, d] : bf16
      scale  1 / 8
      {more}
      {mask}
    }}
    schedule f on gfx942 {{ {schedule or "skip proved"} }}""")


def predicted(read, **options):
    return predict_kernel(read, read.kernels[0], "gfx942", SIZES, quiet, **{"backend": "triton", **options})


@pytest.fixture(scope="module")
def plain():
    return predicted(spec())


def test_the_walk_ends_where_no_neighbour_is_faster(plain):
    seconds = {o.point: o.seconds for o in plain.outcomes}
    assert seconds[plain.best] <= seconds[plain.start]
    assert seconds[plain.best] <= CLOSER * plain.outcomes[0].seconds
    assert all(plain.tflops(o) < plain.roof.flops / plain.roof.seconds / 1e12 for o in plain.outcomes if o.traffic)
    assert {o.point.map for o in plain.outcomes} >= {None, ("linear", None), ("xcd", "h")}
    slow = min(o.seconds for o in plain.outcomes if o.point.map == ("linear", None) and o.traffic)
    assert slow > 1.05 * seconds[plain.best]  # causal rows, the shortest first


def test_the_answer_is_a_schedule_that_compiles_to_it(plain):
    lines = plain.best.lines(plain.attn, plain.target)
    again = spec(lines.partition("{")[2].rpartition("}")[0])
    program = lower(again.kernels[0], "gfx942", again.schedule("f", "gfx942"))
    (found,) = (o for o in plain.outcomes if o.point == plain.best)
    assert dict(program.tile)["TQ"] == plain.best.q and dict(program.tile)["TK"] == plain.best.k
    assert program.grid.title == found.order and program.roles[0].warps == plain.best.warps
    assert plain.to_data()["schedule"] == lines and plain.to_data()["predicted"]


def test_points_that_cannot_be_lowered_say_why(plain):
    refused = [o for o in plain.outcomes if o.traffic is None]
    assert refused and all(o.note and plain.tflops(o) is None for o in refused)
    assert plain.outcomes[-1] in refused


def test_lines_of_the_spec_are_kept():
    found = predicted(spec("tile q = 64  tune k in {32, 64}  map xcd by h"))
    assert {(o.point.q, o.point.map) for o in found.outcomes} == {(64, ("xcd", "h"))}
    assert {o.point.k for o in found.outcomes} == {32, 64}
    assert "map xcd by h" in found.best.lines(found.attn, found.target)


def test_the_first_model_that_knows_a_shape_decides(capsys):
    def traced(attn, target, shape):
        return 100.0 * shape.q * shape.k / 8192 if shape.k == 32 else None

    read = spec("tile q = 128  stages 1  map xcd by h")
    found = predicted(read, models=(("traces", traced), *STEP_MODELS))
    assert found.best.k == 32
    assert {(o.by, o.point.k == 32) for o in found.outcomes if o.traffic} == {("traces", True), ("static bound", False)}
    show_table(table(found))
    assert "predicted, not measured" in capsys.readouterr().out


def test_a_search_that_is_over_has_the_start():
    found = predicted(spec(), seconds=-1.0)
    assert [o.point for o in found.outcomes] == [found.start] == [found.best]


def test_what_cannot_be_predicted_is_refused():
    read = spec(mask="mask doc[b, q] == doc[b, k]", more="param doc[b, k] : i32 nondecreasing")
    with pytest.raises(TargetFault, match="depend on tensors"):
        predicted(read)
    with pytest.raises(TargetFault, match="no model of sm90"):
        predict_kernel(spec(), spec().kernels[0], "sm90", SIZES, quiet)
    with pytest.raises(TargetFault, match="needs values for N"):
        predict_kernel(spec(), spec().kernels[0], "gfx942", {"B": 1, "M": 4}, quiet)
    with pytest.raises(Faults):
        predicted(spec("cluster 2"))
    assert map_line(Point(64, 32, 4, 1).map) == ""
