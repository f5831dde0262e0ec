"""The command line as a user meets it: output, exit codes, speed of `check`."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
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
    Path("cluster.tile").write_text(SPEC.replace("stages 2", "cluster 4"))
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
    found = json.loads(run("check", "--json", "good.tile").stdout)
    assert (found["ok"], found["kernels"]) == (True, ["causal_gqa"])
    assert [f["code"] for f in found["faults"]] == ["W0502"]
    result = run("check", "bad.tile", "--json")
    assert result.exit_code == 1
    faults = json.loads(result.stdout)["faults"]
    assert {"code", "line", "column", "message", "hint"} <= set(faults[0])
    assert faults[0]["path"] == "bad.tile"


def test_check_warns_of_rows_without_a_key(run):
    result = run("check", "good.tile")
    assert "warning[W0502]: rows 0 to M - N - 1 keep no key when M > N" in result.stderr
    assert "write `assume M <= N` if it cannot happen" in result.stderr
    Path("assumed.tile").write_text(SPEC.replace("  mask", "  assume M <= N\n  mask"))
    result = run("check", "assumed.tile")
    assert (result.exit_code, result.stderr) == (0, "")


def test_dump_and_emit(run, tmp_path):
    result = run("compile", "good.tile", "--target", "sm90", "--dump-ir")
    assert result.exit_code == 0, result.output
    heads = [line for line in result.stdout.splitlines() if line.startswith("# after ")]
    assert heads[0] == "# after lower_attention"
    assert len(heads) >= 5
    one = run("compile", "good.tile", "--target", "sm90", "--dump-ir=prove_mask").stdout
    assert one.startswith("# after prove_mask\nprogram causal_gqa on sm90")
    assert one.count("# after") == 1
    for backend, word in (((), "wgmma"), (("--backend", "triton"), "@triton.jit")):
        assert word in run("compile", "good.tile", "--target", "sm90", *backend, "--emit", "source").stdout
    written = run("compile", "good.tile", "--target", "sm90", "--emit", "source", "-o", "out")
    assert all(Path(line).exists() for line in written.stdout.split())
    module = run("compile", "good.tile", "--target", "sm90", "-o", "build")
    assert Path(module.stdout.strip()).name == "causal_gqa_sm90.py"


@pytest.mark.parametrize(("target", "word", "binary"), [("sm90", "wgmma", "cubin"), ("gfx942", "v_mfma", "hsaco")])
def test_machine_code_without_a_device(run, target, word, binary):
    result = run(
        "compile", "good.tile", "--target", target, "--backend", "triton", "--emit", "asm,binary", "-o", "code"
    )
    assert result.exit_code == 0, result.output
    text = next(p for p in Path("code").iterdir() if p.suffix in (".ptx", ".amdgcn")).read_text()
    assert word in text
    assert Path(f"code/causal_gqa_{target}.{binary}").read_bytes()[:4] == b"\x7fELF"


def test_faults_of_the_command_line(run):
    result = run("compile", "good.tile", "--target", "sm90", "--dump-ir=prove")
    assert (result.exit_code, "error[E0907]: no pass `prove` runs for sm90" in result.stderr) == (1, True)
    result = run("compile", "good.tile", "--target", "cpu", "--emit", "binary")
    assert (result.exit_code, "error[E0908]: the cpu backend makes no binary" in result.stderr) == (1, True)
    result = run("verify", "good.tile", "--target", "gfx950")
    assert (result.exit_code, "error[E0906]: this machine cannot run gfx950" in result.stderr) == (1, True)
    Path("symbols.tile").write_text(SPEC.replace("d : 128", "d : D"))
    result = run("bench", "symbols.tile", "--target", "cpu", "--shape", "B=1,M=8,N=8")
    assert (result.exit_code, "error[E0905]" in result.stderr) == (1, True)


def test_a_missing_toolchain_is_named(run, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("tilec.backends.triton.version", absent)
    result = run("compile", "good.tile", "--target", "gfx950")
    assert (result.exit_code, "error[E0911]: gfx950 is served by Triton" in result.stderr) == (1, True)


def test_verify(run):
    words = ("verify", "good.tile", "--target", "cpu", "--shape", "B=1,M=20,N=33", "--json")
    result = run(*words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {o["style"] for o in found} == {"normal", "shifted", "onehot", "position"}
    assert all(o["ok"] and {x["name"] for x in o["outputs"]} == {"O", "L"} for o in found)


def test_verify_fails_on_a_wrong_kernel(run, monkeypatch):
    from tilec.backends.cpu.launch import CpuLauncher

    def wrong(self, bound, tensors, outputs, addresses):
        for o in outputs:
            o.fill_(0.25)

    monkeypatch.setattr(CpuLauncher, "run", wrong)
    result = run("verify", "good.tile", "--target", "cpu", "--shape", "B=1,M=20,N=33")
    assert result.exit_code == 1
    assert "too large" in result.stdout


def test_bench_on_the_cpu(run):
    Path("small.tile").write_text(SPEC.replace("h : 32", "h : 4").replace("d : 128", "d : 16"))
    words = (
        "--target",
        "cpu",
        "--shape",
        "B=1,M=64,N=64",
        "--rounds",
        "1",
        "--sustained",
        "0.01",
        "--against",
        "sdpa,cudnn",
    )
    result = run("bench", "small.tile", *words, "-o", "result.json")
    assert result.exit_code == 0, result.output
    assert "cannot: it needs a GPU" in result.stdout
    data = json.loads(Path("result.json").read_text())
    assert {r["name"] for r in data["rows"]} == {"tilec", "sdpa", "cudnn"}
    assert data["flops"] == 2 * 32 * 4 * 64 * 65 // 2


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
    """A 40-line spec takes less than half a second of processor time as a process: other tests share the machine."""
    path = tmp_path / "spec.tile"
    padding = "\n# ".join("padding" for _ in range(12))
    path.write_text(SPEC + SPEC.replace("causal_gqa", "other").replace("}\n\n", "}\n# " + padding + "\n\n"))
    assert len(path.read_text().splitlines()) >= 40
    best = float("inf")
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-m", "tilec.cli", "check", str(path)], capture_output=True, check=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best, spent)
    assert best < 0.5


@pytest.mark.parametrize(
    "words",
    [
        ("compile", "good.tile", "--target", "cpu", "-o"),
        ("explain", "good.tile", "--target", "sm90", "--svg"),
        ("bench", "good.tile", "--target", "sm90", "-o"),
        ("tune", "good.tile", "--target", "sm90", "--out"),
    ],
    ids=lambda w: w[0],
)
def test_what_cannot_be_written_is_said_before_the_work(run, words):
    Path("file").write_text("kept")
    result = run(*words, "file/inside")
    assert result.exit_code == 2 and "`file/inside` cannot be written" in result.stderr
    assert Path("file").read_text() == "kept"


def test_a_file_that_is_lost_on_the_way_is_named(run, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "module/f.py")

    monkeypatch.setattr(Path, "mkdir", refuse)
    result = run("compile", "good.tile", "--target", "cpu", "-o", "module")
    assert (result.exit_code, result.stderr) == (1, "Error: Could not open file 'module/f.py': Permission denied\n")
