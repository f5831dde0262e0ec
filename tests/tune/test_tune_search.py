"""Tuning without a device: the space, the walk through it, races with a clock that is told, and records read back."""

import itertools
import re
import tomllib
from dataclasses import fields, replace

import pytest
import torch

from tilec import tune_spec
from tilec.backends.base import Artifact, Variant
from tilec.backends.cuda import BACKEND
from tilec.bench import distance
from tilec.candidates import Candidate, compile_candidates
from tilec.dsl.faults import CallFault, TargetFault
from tilec.frontend import read_text
from tilec.measure import Plan
from tilec.native import lower_native, program_at
from tilec.tune import hopper, space
from tilec.tune.classes import known_length, length_class, score_class
from tilec.tune.hopper import Point, Row, measured_points, points, read_rows, write_rows
from tilec.tune.search import NOISE, search
from tilec.tune.tables import put
from tilec.tuner import Tuner

SPEC = """kernel f {{
  index  b : B, h : 4, q : M, k : {keys}, d : {d}
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / sqrt({d})
  {score}
  mask   k <= q
}}
{schedule}
"""
START = Point(2, 128, "registers", True, 0.25, 2)


def parts(d=128, keys="N", score="", schedule=""):
    text = SPEC.format(d=d, keys=keys, score=score, schedule=schedule and f"schedule f on sm90 {{ {schedule} }}")
    read = read_text(text)
    return read, read.kernels[0], read.schedule("f", "sm90")


# ---------------------------------------------------------------------------------------------- the space


def test_every_field_of_a_point_that_decides_something_is_a_knob():
    space.check_knobs()
    assert {k.field for k in space.KNOBS} == {f.name for f in fields(Point)} - {"by"}
    with pytest.raises(ValueError, match="chips"):
        space.check_knobs((*space.KNOBS, space.Knob("chips", (1, 2))))


def test_neighbours_differ_in_one_knob():
    _, attn, schedule = parts()
    near = list(space.neighbours(START, space.allowed(attn, schedule)))
    assert len(set(near)) == len(near) and START not in near
    for p in near:
        differs = [f.name for f in fields(Point) if getattr(p, f.name) != getattr(START, f.name)]
        assert set(differs) - {"by", "turns"} or differs == ["turns", "by"]
        assert len(set(differs) - {"by"}) == 1 or (p.warpgroups == 1 and not p.turns)
    assert {p.keys for p in near} == {80, 96, 112, 128, 144, 160, 176}
    assert {p.wait for p in near} == set(space.KNOBS[4].values)


@pytest.mark.parametrize(
    ("line", "name", "values"),
    [
        ("tile q = 192", "warpgroups", (3,)),
        ("tune k in {64, 96}", "keys", (64, 96)),
        ("warps specialized(consumer = 2)", "turns", (False,)),
        ("warps ping_pong(consumer = 3)", "warpgroups", (3,)),
        ("stages 3", "stages", (3,)),
        ("rescale delayed", "seldom", (None,)),
        ("rescale conditional 4", "seldom", (4.0,)),
    ],
)
def test_what_the_schedule_says_is_not_varied(line, name, values):
    read, attn, schedule = parts(schedule=line)
    found = space.allowed(attn, schedule)
    assert found[name] == values
    assert found["wait"] == space.KNOBS[4].values
    plot = tune_spec.plot_of(read, attn, "sm90", {})
    assert all(getattr(p, name) in values for p in plot.listing())


# ---------------------------------------------------------------------------------------------- the walk


def seconds(p):
    """Fastest at 3 warpgroups, 96 keys, a wait of 3/8 and 3 stages."""
    return 1 + abs(p.keys - 96) / 100 + abs(p.warpgroups - 3) + abs(p.wait - 0.375) + abs(p.stages - 3) / 10 + p.turns


def race(some):
    return {p: seconds(p) for p in some if p.keys % 32 == 0}  # the others do not compile


def near(p):
    _, attn, schedule = parts()
    return space.neighbours(p, space.allowed(attn, schedule))


def test_a_search_walks_to_the_fastest_point():
    bests = list(search([START, replace(START, keys=64)], near, race))
    assert seconds(bests[-1]) == 1 and bests[-1].by == "tune"
    assert [seconds(p) for p in bests] == sorted((seconds(p) for p in bests), reverse=True)


def test_a_search_ends_when_told_when_nothing_runs_and_at_noise():
    once = itertools.count()
    assert len(list(search([START], near, race, lambda: next(once) >= 1))) == 2
    assert list(search([replace(START, keys=112)], near, lambda some: {})) == []
    level = lambda some: {p: 1.0 if p == START else 1 / (NOISE - 0.001) for p in some}  # noqa: E731
    assert list(search([START], near, level)) == [START]


# ---------------------------------------------------------------------------------------------- races


class Clock:
    """Reads what each call says it takes; a burst flatters those that say so."""

    graphs = False

    def burst(self, call, launches):
        return call.seconds * (0.97 if launches < 50 and call.flattered else 1)

    def host(self, call, calls):
        return 1e-6


def made(point):
    registers = {"registers": 168, "shared": 4096}
    good = point.stages < 5
    return Candidate(
        point, Artifact("f", "sm90", "cuda", Variant(), {}, registers) if good else None, "" if good else "E0803"
    )


class Call:
    def __init__(self, point):
        self.seconds, self.flattered = seconds(point) * 1e-3, point.wait == 0
        self.result = torch.full((4,), 1.0 if point.warpgroups > 1 else 2.0)

    def __call__(self):
        return self.result


def tuner(**parts):
    said = []
    options = {
        "compile": lambda some: map(made, reversed(some)),
        "launch": lambda c: Call(c.point),
        "distance": distance,
        "clock": Clock(),
        "plan": Plan(rounds=2),
        "progress": lambda *step: said.append(step),
    }
    t = Tuner(**{**options, **parts})
    t.said = said
    return t


def test_a_race_times_what_compiles_and_agrees_with_the_first():
    t = tuner()
    fast, slow = replace(START, stages=3), replace(START, keys=256)
    wrong, large = replace(START, warpgroups=1, turns=False), replace(START, stages=5)
    found = t.race([START, slow, fast, wrong, large])
    assert set(found) == {START, fast}  # the other is far behind in bursts
    assert found[fast] < found[START]
    notes = {p: o.note for p, o in t.outcomes.items()}
    assert notes[wrong].startswith("disagrees with the first") and notes[large] == "E0803"
    assert t.outcomes[slow].burst and t.outcomes[slow].sustained is None and not t.outcomes[wrong].burst
    assert [o.candidate.point for o in t.ranking()] == [fast, START, slow, wrong, large]
    assert all(0 <= done <= total for _, done, total in t.said)
    assert {text.split()[0] for text, _, _ in t.said} == {"compiling", "checking", "bursts", "sustained"}


def test_sustained_runs_decide_and_the_incumbent_is_always_in_them():
    t = tuner()
    flattered = replace(START, wait=0.0)  # slower by 4 %, and 3 % better in bursts
    found = t.race([START, flattered])
    assert found[START] < found[flattered]
    t = tuner()
    assert set(t.race([replace(START, keys=256), START])) == {replace(START, keys=256), START}
    assert t.race([replace(START, stages=5)]) == {}


def test_a_search_over_races():
    t = tuner()
    (*_, best) = search([START], near, t.race)
    assert seconds(best) == min(seconds(p) for p in t.calls)
    nan = tuner(launch=lambda c: lambda: torch.tensor([float("nan")]))
    assert nan.race([START]) == {}


# ---------------------------------------------------------------------------------------------- records


def row(point=START, width=128, mask=("growing",), score=("plain",), length=("long",)):
    classes = (frozenset(mask), frozenset(score), frozenset(length))
    return Row(width, point, 'measured: "here"', None, classes)


def test_rows_are_written_as_they_are_read():
    rows = (row(), row(replace(START, keys=96), mask=("full", "even"), length=()))
    text = write_rows(rows)
    assert read_rows(text, "r") == tuple(replace(r, point=replace(r.point, by="record")) for r in rows)
    assert len(tomllib.loads(text)["point"]) == 2
    better = row(replace(START, keys=80))
    assert put(rows, better) == (rows[1], better)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[point]]\nwidth = 64\nkeys = 128", "no source"),
        ('[[point]]\nwidth = 64\nkeys = 128\nsource = "x"', "1: it has no warpgroups"),
        ('[[point]]\nwidth = 64\nchips = 2\nsource = "x"', "chips is no field"),
        ('[[point]]\nwidth = 64\nkeys = "128"\nsource = "x"', 'keys is "128", and should be a whole number'),
        ('[[point]]\nwidth = 64\nkeys = 0\nsource = "x"', "keys is 0, and should be a whole number above 0"),
        ('[[point]]\nwidth = 64\nwait = nan\nsource = "x"', "wait is NaN, and should be a number"),
        ('[[point]]\nwidth = 64\nqueries = "lds"\nsource = "x"', 'should be "registers" or "shared"'),
        ("[[entry]]\nq = 64", "`entry` is no table of a record"),
        ("point = 3", r"written as \[\[point"),
        ("[[point", "Expected"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(text, why, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=why):
        read_rows(text, "r")
    (tmp_path / "r.toml").write_text(text)
    monkeypatch.setenv("TILEC_RECORD", str(tmp_path / "r.toml"))
    for use in (lambda: BACKEND.toolchain("sm90"), lambda: lower_native(parts()[1], "sm90")):
        with pytest.raises(CallFault) as caught:
            use()
        assert caught.value.code == "E1060" and "TILEC_RECORD" in caught.value.message
        assert re.search(why, caught.value.note) and str(tmp_path / "r.toml") in caught.value.note


def test_a_row_holds_for_its_classes():
    long, short = row(), row(replace(START, keys=64), length=("short",))
    unknown = parts()[1]
    assert measured_points(unknown, parts()[2], (long, short))[:2] == [long.point, short.point]
    for keys, first in ((16384, long), (512, short)):
        _, attn, schedule = parts(keys=str(keys))
        assert known_length(attn) == length_class(keys)
        assert measured_points(attn, schedule, (short, long))[0] == first.point
    _, capped, schedule = parts(score="score s = 30 * tanh(s / 30)")
    assert score_class(capped) == "special" and score_class(parts(score="score s = s - q")[1]) == "arithmetic"
    assert all(p.keys != 48 for p in measured_points(capped, schedule, (row(replace(START, keys=48)),)))
    _, narrow, schedule = parts(d=64)
    assert all(p.keys != 48 for p in measured_points(narrow, schedule, (row(replace(START, keys=48)),)))


def test_every_width_of_the_table_has_rows_for_all_kernels():
    for widths in {r.widths for r in hopper.rows()}:
        assert any(r.widths == widths and not any(r.classes) for r in hopper.rows())


def test_the_users_record_comes_first_and_is_part_of_the_cache_key(tmp_path, monkeypatch):
    _, attn, schedule = parts(d=64)
    before = BACKEND.toolchain("sm90")
    mine = row(Point(1, 64, "shared", False, 0.5, 3), width=64)
    path = tmp_path / "mine.toml"
    tune_spec.keep(path, mine)
    monkeypatch.setenv("TILEC_RECORD", str(path))
    assert dict(lower_native(attn, "sm90").tile)["TK"] == 64
    assert next(points(attn, schedule)).keys == 128
    keyed = BACKEND.toolchain("sm90")
    tune_spec.keep(path, replace(mine, point=replace(mine.point, keys=80)))
    assert len({str(before), str(keyed), str(BACKEND.toolchain("sm90"))}) == 3
    assert dict(lower_native(attn, "sm90").tile)["TK"] == 80


# ---------------------------------------------------------------------------------------------- candidates


def test_candidates_compile_in_processes_and_say_what_they_lack():
    read, attn, _ = parts(d=64)
    small = Point(1, 64, "shared", False, 0.5, 2)
    wanted = [small, replace(small, keys=256, warpgroups=3), replace(small, stages=5, keys=256)]
    found = {c.point: c for c in compile_candidates(read.source.text, "f", "sm90", {}, wanted, 2)}
    assert set(found) == set(wanted)
    best = found[small]
    assert best.registers and best.shared and not best.reason
    assert next(iter(best.artifact.binaries.values())).startswith(b"\x7fELF")
    assert found[wanted[1]].artifact is None and "E0812" in found[wanted[1]].reason
    assert found[wanted[2]].artifact is None and "E08" in found[wanted[2]].reason
    assert best.to_data()["point"]["keys"] == 64 and best.to_data()["compiles"]
    assert dict(program_at(attn, "sm90", None, small).tile)["TK"] == 64


def test_candidates_run_through_the_runtime():
    from tilec.backends.cpu import BACKEND as CPU
    from tilec.peers.case import on_device

    read, attn, schedule = parts(d=16)
    case = on_device(read, attn, "cpu", {"B": 1, "M": 40, "N": 40})
    artifact = CPU.compile(attn, "cpu", schedule, Variant())
    result = tune_spec._launcher(read, attn, "cpu", case)(Candidate(START, artifact))()
    q, k, v = (x.float() for x in case.qkv())
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert distance(result, case.in_spec_layout(expected)) < 2e-2


def test_without_a_gpu_tuning_says_so():
    read, attn, _ = parts(d=64)
    with pytest.raises(TargetFault) as caught:
        tune_spec.tune_kernel(read, attn, "sm90", {"B": 1, "M": 64, "N": 64}, lambda *_: None, lambda _: None)
    assert caught.value.code == "E0906" and "--compile-only" in caught.value.hint
    with pytest.raises(TargetFault) as caught:
        tune_spec.list_candidates(read, attn, "sm80", {}, lambda *_: None)
    assert caught.value.code == "E0914"


def test_what_is_shown_of_a_tuned_kernel():
    _, attn, _ = parts()
    t = tuner()
    best = replace(START, stages=3)
    t.race([START, best, replace(START, stages=5)])
    found = tune_spec.row_of(attn, 16384, best, "tilec tune, H")
    assert [sorted(c) for c in found.classes] == [["growing"], ["plain"], ["long"]] and found.width == 128
    tuned = tune_spec.Tuned("f", "sm90", "H", {"B": 1}, 10**12, found, START, tuple(t.ranking()), {})
    data = tuned.to_data()
    assert read_rows(data["row"], "r")[0].point == replace(best, by="record")
    assert [c["point"]["stages"] for c in data["candidates"]] == [3, 2, 5]
    assert data["candidates"][0]["tflops"]["sustained"] == pytest.approx(1e3 / (seconds(best)))
    assert tune_spec.tuned_table(tuned).row_count == 3
    assert tune_spec.candidate_table([made(START)]).row_count == 1
