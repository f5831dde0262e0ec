"""Every example: its spec is clean, in standard form and short; its script runs on this machine and agrees with float64."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tilec.dsl.format import format_text
from tilec.frontend import read_spec
from tilec.pipeline import lower

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(p for p in EXAMPLES.iterdir() if p.is_dir() and not p.name.startswith(("_", ".")))
TARGETS = ("sm90", "gfx942", "cpu")
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")


def name(folder):
    return folder.name


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_folder_holds_a_spec_and_a_script(folder):
    assert {p.name for p in folder.iterdir() if p.is_file()} == {"spec.tile", "run.py"}
    assert f"]({folder.name}/spec.tile)" in README


def test_the_readme_names_folders_that_exist():
    named = [line.split("](")[1].split("/spec.tile")[0] for line in README.splitlines() if "/spec.tile)" in line]
    assert sorted(named) == [f.name for f in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_spec_is_short_and_in_standard_form(folder):
    text = (folder / "spec.tile").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40 and len((folder / "run.py").read_text(encoding="utf-8").splitlines()) < 40
    assert format_text(text) == text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_spec_lowers_with_its_schedules(folder, target):
    spec = read_spec(folder / "spec.tile")
    assert not spec.warnings
    for attn in spec.kernels:
        assert lower(attn, target, spec.schedule(attn.name, target)).target == target


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_script_runs_and_agrees(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    torch.manual_seed(0)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / "run.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert "ok" in printed and "FAIL" not in printed


def test_a_wrong_result_fails(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import check

    q, k, v = (torch.randn(1, 40, 8, 64).bfloat16() for _ in range(3))
    spec, inputs = EXAMPLES / "strided/spec.tile", {"Q": q, "K": k, "V": v}
    assert check(spec, inputs, {"O": torch.zeros_like(q)}) == 1
    assert check(spec, inputs, {"O": torch.full_like(q, float("nan"))}) == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_script_is_a_program_of_its_own(tmp_path):
    script = EXAMPLES / "packed_varlen/run.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout.startswith("packed_varlen on ")
