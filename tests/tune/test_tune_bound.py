"""The static bound of a step on gfx942: AITER's three kernels, which were counted and timed, and what moves which part."""

from dataclasses import replace

import pytest

from tilec.explain.key_step import step_facts
from tilec.frontend import read_text
from tilec.native import trails
from tilec.schedule import Schedule
from tilec.targets import target
from tilec.tune import bound as model
from tilec.tune.bound import bound

MACHINE = target("gfx942")


def attention(d=128, dtype="bf16", score=""):
    return read_text(f"""kernel f {{
      index  b : B, h : 8, q : M, k : N, d : {d}
      query  Q[b, q, h, d] : {dtype}
      key    K[b, k, h, d] : {dtype}
      value  V[b, k, h, d] : {dtype}
      output O[b, q, h, d] : {"bf16" if dtype == "e4m3" else dtype}
      scale  1 / 8
      {score}
    }}""").kernels[0]


def test_the_step_of_eight_waves():
    found = bound(attention(), MACHINE, 256, 64, 8)
    assert found.matrix == 4096 and found.lds == 2304 and found.memory == 512 and found.waves == 2
    assert found.issue == 4 * (2 * 392 + 2 * 4 * 32 + 2 * 64)
    assert (found.clocks, found.by) == (found.issue, "issue")


@pytest.mark.parametrize(("vector", "ratio", "measured"), [(248, 1.0, 1.0), (344, 1.064, 1.08), (392, 1.158, 1.14)])
def test_rounding_modes_cost_what_was_measured(vector, ratio, measured, monkeypatch):
    """Vector and transcendental instructions as disassembled, times as published."""
    monkeypatch.setitem(model.ROUNDED, "bf16", (vector + 2 * 4 - 248) / 32)  # 34 transcendentals to 32 scores
    clocks = bound(attention(), MACHINE, 256, 64, 8).clocks / 4096
    assert clocks == pytest.approx(ratio, abs=0.002)
    assert clocks == pytest.approx(measured, abs=0.03)


def test_one_wave_to_a_simd_hides_nothing():
    alone, both = (bound(attention(), MACHINE, 128, 64, 4, resident=n) for n in (1, 2))
    assert alone.clocks == alone.matrix + alone.issue and both.clocks == both.issue


def test_what_moves_which_part():
    base = bound(attention(), MACHINE, 128, 64, 8)
    soft = bound(attention(score="score s = 30 * tanh(s / 30)"), MACHINE, 128, 64, 8)
    assert soft.issue == base.issue + 4 * 32 * (4 + 2) and soft.matrix == base.matrix
    fp8 = bound(attention(dtype="e4m3"), MACHINE, 128, 64, 8)
    assert fp8.matrix == base.matrix / 2 and fp8.memory == base.memory / 2
    assert bound(attention(d=64), MACHINE, 128, 64, 8).matrix == base.matrix / 2
    long = bound(attention(), MACHINE, 128, 128, 8)
    assert long.lds == 2 * base.lds and 2 * base.issue - long.issue == 4 * 64  # outputs are rescaled once a step


def test_none_where_the_issue_is_not_described():
    assert bound(attention(), target("sm90"), 128, 64, 8) is None


def test_what_is_rescaled_seldom_is_not_counted_at_each_step():
    often, seldom = (bound(attention(), MACHINE, 256, 64, 8, seldom=s) for s in (False, True))
    assert often.vector - seldom.vector == 256 * 128 / (4 * 64) and often.special == seldom.special
    for line, found in ((("conditional", 8.0), seldom), (("delayed", None), often)):
        trail = dict(next(trails(attention(), "gfx942", Schedule(rescale=line))))
        facts = step_facts(trail["map_blocks"], trail["place_fragments"], attention(), MACHINE)
        assert facts.bound == replace(found, waves=facts.bound.waves)
