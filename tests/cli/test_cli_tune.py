"""`tilec tune` as a user meets it, where no device is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilec.cli import main
from tilec.tune import cdna

SPEC = """\
kernel f {
  index  b : B, h : 4, q : M, k : N, d : 64
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / 8
}

schedule f on sm90 { warps specialized(consumer = 1)  tile q = 64, k = 64 }
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("f.tile").write_text(SPEC)
    return lambda *words: CliRunner().invoke(main, ["tune", "f.tile", "--target", "sm90", *words])


def test_candidates_are_listed_without_a_device(run):
    result = run("--compile-only", "--most", "2", "--workers", "1", "--json")
    assert result.exit_code == 0, result.stderr
    first, second = json.loads(result.stdout)
    assert first["compiles"] and first["registers"] > 0 and first["shared"] > 0
    assert first["point"]["warpgroups"] == 1 and first["point"]["keys"] == 64 and not first["point"]["turns"]
    assert sum(first["point"][n] != second["point"][n] for n in first["point"]) == 1
    shown = run("--compile-only", "--most", "1", "--workers", "1")
    assert "registers" in shown.stdout and "64" in shown.stdout


def test_timing_needs_the_device(run):
    result = run("--shape", "B=1,M=64,N=64")
    assert result.exit_code == 1 and "E0906" in result.stderr and "--compile-only" in result.stderr
    assert "E0905" in run("--shape", "B=1").stderr


def test_a_file_that_is_no_record_is_not_overwritten(run):
    Path("notes.toml").write_text("[[point]]\nchips = 2\n")
    result = run("--shape", "B=1,M=64,N=64", "--out", "notes.toml")
    assert result.exit_code == 2 and "no tuning record" in result.stderr
    assert Path("notes.toml").read_text() == "[[point]]\nchips = 2\n"


def test_native_kernels_of_gfx942_are_tuned_by_the_cycle_model(run, monkeypatch):
    words = ("--target", "gfx942", "--shape", "B=1,M=512,N=512", "--limit", "0", "--workers", "1")
    shown = run(*words, "--out", "mine.toml")
    assert shown.exit_code == 0, shown.stderr
    assert "hip: predicted, not measured" in shown.stdout and "schedule f on gfx942 { tile q = 256" in shown.stdout
    (row,) = cdna.read_rows(Path("mine.toml").read_text(), "mine.toml")
    assert row.width == 64 and "predicted by tilec tune" in row.source
    Path("mine.toml").write_text(cdna.write_rows([replace(row, point=replace(row.point, keys=32))]))
    monkeypatch.setenv("TILEC_RECORD", "mine.toml")
    data = json.loads(run(*words, "--json").stdout)
    assert data["backend"] == "hip" and data["start"]["keys"] == 32 and len(data["candidates"]) == 1
    assert data["candidates"][0]["step_model"] == "cycle model" and data["candidates"][0]["cycles"]["step"] > 0


def test_shapes_of_waves_are_not_listed_as_hoppers(run):
    listed = run("--target", "gfx942", "--compile-only")
    assert listed.exit_code == 1 and "E0914" in listed.stderr and "without `--compile-only`" in listed.stderr


def test_a_record_holds_one_kind_of_rows(run):
    Path("mine.toml").write_text(cdna.write_rows([cdna.Row(64, cdna.Point(8, 256, 64, 0, 16, None), "a model")]))
    mixed = run("--shape", "B=1,M=64,N=64", "--out", "mine.toml")
    assert mixed.exit_code == 1 and "E0914" in mixed.stderr and "holds what was predicted" in mixed.stderr


def test_other_kernels_of_a_chip_of_dies_are_tuned_by_the_static_bound(run):
    words = ("--target", "gfx942", "--shape", "B=1,M=512,N=512", "--limit", "0")
    data = json.loads(run(*words, "--backend", "triton", "--json").stdout)
    assert data["predicted"] and data["schedule"].startswith("schedule f on gfx942 { tile q = ")
    assert {c["step_model"] for c in data["candidates"]} <= {"static bound", ""}
    Path("f.tile").write_text(SPEC.replace("d : 64", "d : 24"))
    shown = run(*words, "--out", "mine.toml")
    assert shown.stdout.startswith("hip passed over: ") and "triton: predicted, not measured" in shown.stdout
    assert shown.exit_code == 1 and "E0914" in shown.stderr and not Path("mine.toml").exists()
    assert run("--shape", "B=1,M=64,N=64", "--backend", "triton").exit_code == 1
