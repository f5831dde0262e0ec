"""The command line as a user meets it: output, exit codes, speed of `check`."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilec.cli import main
from tilec.targets import NAMES

SPEC = """\
kernel causal_gqa {
  index  b : B, h : 32, q : M, k : N, d : 128

  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 4, d] : bf16
  value  V[b, k, h // 4, d] : bf16
  output O[b, q, h,      d] : bf16
  lse    L[b, h, q]         : f32

  scale  1 / sqrt(128)
  mask   k <= q + N - M
}

schedule causal_gqa on sm90 { tile q = 128, k = 128  stages 2 }
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.tile").write_text(SPEC)
    Path("bad.tile").write_text(SPEC.replace("scale  1", "scael  1").replace("32, q", "30, q"))
    Path("cluster.tile").write_text(SPEC.replace("stages 2", "cluster 2"))
    return lambda *words: CliRunner().invoke(main, [str(w) for w in words])


def test_check_says_ok(run):
    result = run("check", "good.tile")
    assert (result.exit_code, result.stdout) == (0, "good.tile: causal_gqa: ok\n")


def test_check_reports_every_fault_with_a_caret_on_stderr(run):
    result = run("check", "bad.tile")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("error[") >= 2
    assert "bad.tile:10:3" in result.stderr
    assert "    |   ^^^^^" in result.stderr


def test_check_json(run):
    assert json.loads(run("check", "--json", "good.tile").stdout) == {
        "ok": True,
        "kernels": ["causal_gqa"],
        "faults": [],
    }
    result = run("check", "bad.tile", "--json")
    assert result.exit_code == 1
    faults = json.loads(result.stdout)["faults"]
    assert {"code", "line", "column", "message", "hint"} <= set(faults[0])
    assert faults[0]["path"] == "bad.tile"


def test_check_holds_a_schedule_against_a_target(run):
    assert run("check", "cluster.tile").exit_code == 0
    assert run("check", "cluster.tile", "--target", "gfx942").exit_code == 0, "the schedule is for sm90"
    result = run("check", "cluster.tile", "--target", "sm90")
    assert result.exit_code == 1
    assert "error[E0811]" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("check", "absent.tile"),
        ("check",),
        ("nothing",),
        ("explain", "good.tile", "--shape", "B"),
        ("explain", "good.tile", "--shape", "B=two"),
        ("explain", "good.tile", "--kernel", "other"),
        ("compile", "good.tile", "--emit", "poem"),
        ("bench", "good.tile", "--against", "sdpa,nobody"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(run, words):
    result = run(*words)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


@pytest.mark.parametrize("command", ["check", "compile", "explain", "verify"])
def test_an_unknown_target_is_a_fault(run, command):
    result = run(command, "good.tile", "--target", "sm91")
    assert result.exit_code == 1
    assert "error[E0901]: `sm91` is not a target" in result.stderr
    assert "did you mean `sm90`?" in result.stderr


def test_fmt(run):
    Path("wide.tile").write_text(SPEC.replace("mask   k", "mask k"))
    result = run("fmt", "--check", "wide.tile")
    assert result.exit_code == 1
    assert "wide.tile: would be reformatted" in result.stderr
    assert run("fmt", "wide.tile").exit_code == 0
    assert run("fmt", "--check", "wide.tile").exit_code == 0
    again = run("fmt", "wide.tile")
    assert (again.exit_code, again.stderr) == (0, "")
    assert run("fmt", "bad.tile").exit_code == 1


def test_targets(run):
    listed = json.loads(run("targets", "--json").stdout)
    assert [t["name"] for t in listed] == list(NAMES)
    text = run("targets", "gfx942").stdout
    assert "shared_memory" in text
    assert "65,536" in text
    assert "white paper" in text
    assert all(name in run("targets").stdout for name in NAMES)


def test_version(run):
    assert run("--version").stdout.startswith("tilec")


def test_check_imports_nothing_heavy(tmp_path):
    path = tmp_path / "spec.tile"
    path.write_text(SPEC)
    heavy = "{'torch', 'triton', 'numpy', 'rich', 'jinja2', 'ml_dtypes'}"
    script = f"import sys\nfrom tilec.cli import main\ntry:\n    main(['check', {str(path)!r}])\nfinally:\n    "
    script += f"print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{path}: causal_gqa: ok", "[]"]


def test_check_answers_at_once(tmp_path):
    """A 40-line spec in half a second as a process; three times that on a machine that is busy with other tests."""
    path = tmp_path / "spec.tile"
    second = SPEC.replace("causal_gqa", "other").replace(
        "}\n\n", "}\n# " + "\n# ".join("padding" for _ in range(12)) + "\n\n"
    )
    path.write_text(SPEC + second)
    assert len(path.read_text().splitlines()) >= 40
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tilec.cli", "check", str(path)], capture_output=True, check=True)
        best = min(best, time.perf_counter() - start)
    assert best < 1.5
