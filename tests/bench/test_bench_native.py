"""The native grid's script, with a machine whose speeds are made up: what it measures, keeps and shows."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "device"))

import bench_native
from native_table import HEAD, causal_over_full, table

from tilec.bench import Options, Result, Row
from tilec.dsl.faults import TargetFault
from tilec.frontend import read_text
from tilec.peers.adapters import PEERS

NO_OURS = (Row("tilec", note="failed"), Row("fa3", 1.0, 1.0, 1.0))


def result(row, against, backend):
    """Ours takes a second, FA3 two; causal half of that; other peers cannot."""
    seconds = 0.5 if row.mask else 1.0
    rows = [Row("tilec", seconds, seconds, 1e-5), *(Row(n, note="cannot") for n in against)]
    rows = [Row("fa3", 2 * seconds, 1.5 * seconds, 1e-4) if r.name == "fa3" else r for r in rows]
    flops = int(seconds * 1e15)
    return Result(row.name, backend or "triton", row.shape(), 1, flops, "H", "today", "c", {}, Options(), tuple(rows))


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    out = tmp_path / "found" / "native.json"
    measured = []

    def measure(row, against, options, backend=None):
        if row.name == "prefix" or (row.name == "dilated" and backend == "cuda"):
            raise TargetFault("E0914", "no boxes")
        measured.append((row, tuple(against)))
        return result(row, against, backend)

    def start(*options):
        measured.clear()
        monkeypatch.setattr(bench_native, "measure", measure)
        monkeypatch.setattr(sys, "argv", ["bench_native.py", "--out", str(out), *options])
        status = bench_native.main()
        return status, json.loads(out.read_text()) if out.exists() else None, capsys.readouterr().out

    start.measured = measured
    return start


def test_the_whole_grid(run):
    status, cells, said = run()
    assert status == 1  # of a prefix there is no figure
    assert [c["part"] for c in cells] == ["grid"] * 30 + ["uneven"] * 4 + ["variants"] * 6 + ["host"]
    assert {(c["case"]["d"], c["case"]["s"]) for c in cells if c["part"] == "grid"} == {
        (d, s) for d in (64, 128, 256) for s in (512, 2048, 4096, 8192, 16384)
    }
    for row, _ in run.measured:
        attn = read_text(row.spec()).kernels[0]
        assert set(attn.extents) == set(row.shape())
        if row.heads is None and row.batch is None:
            assert row.shape()["B"] * row.s == 16384
    assert {r.heads for r, _ in run.measured if r.heads} == {33, 67}
    assert "causal time over full time, d 128, S 16384: 0.500, fastest others 0.500" in said


def test_parts_and_peers_are_selected(run):
    _, cells, _ = run("--part", "grid", "--dims", "128", "--masks", "causal", "--lengths", "512,4096")
    assert [(c["case"]["name"], c["case"]["s"]) for c in cells] == [("causal", 4096), ("causal", 512)]
    run("--part", "grid", "--part", "variants", "--dims", "64", "--grid-without", "flex,sdpa")
    assert {against for row, against in run.measured if row.d == 64} == {("cudnn", "fa3", "fa4")}
    assert {against for row, against in run.measured if row.d == 128} == {tuple(PEERS)}


def test_cells_are_kept_from_run_to_run_and_measured_anew(run):
    run("--part", "uneven")
    _, cells, said = run("--part", "host", "--part", "uneven")
    assert [c["part"] for c in cells] == ["uneven"] * 4 + ["host"]
    assert table(cells)[:2] == list(HEAD) and set(table(cells)) <= set(said.splitlines())


def test_a_limit_ends_the_run_between_cells(run, monkeypatch):
    times = iter(range(0, 10000, 10))
    monkeypatch.setattr(bench_native.time, "monotonic", lambda: next(times))
    status, cells, said = run("--limit", "45")
    assert status == 0 and 1 <= len(cells) < 5
    assert f"45 s are over: {41 - len(cells)} of 41 cells are not measured" in said


def test_what_the_native_backend_refuses_is_measured_elsewhere(run):
    _, cells, _ = run("--part", "variants")
    found = {c["case"]["name"]: (c["backend"], c["refused"]) for c in cells}
    assert found["window"] == ("cuda", [])
    assert found["dilated"][0] == "triton" and "no boxes" in found["dilated"][1][0]
    assert found["prefix"][0] == "none" and len(found["prefix"][1]) == 2
    assert not [x for x in table(cells) if "prefix" in x]


def test_a_row_of_the_table():
    cell = {"part": "grid", "case": {"name": "causal", "d": 128, "s": 512, "heads": None}}
    cell |= result(bench_native.Row("causal", 128, 512, "k <= q"), ["fa3", "flex"], "cuda").to_data()
    assert table([cell])[2] == "| causal | 128 | 512 | 16 | 1000 | fa3 | 667 | 1.50 | 2.00 |"
    assert causal_over_full([cell]) == {}
    alone = result(bench_native.Row("causal", 128, 512, "k <= q"), [], "cuda").to_data()
    assert table([cell | alone]) == list(HEAD)
    failed = {
        **alone,
        "best": replace(result(bench_native.Row("f", 128, 512), ["fa3"], ""), rows=NO_OURS).to_data()["best"],
    }
    assert table([cell | failed]) == list(HEAD)
