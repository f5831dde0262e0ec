"""`tilec explain --target gfx942`: what the gate sees of the machine code, and what the model of cycles says of a step."""

import json

import pytest
from click.testing import CliRunner
from feature_specs import CAUSAL, kernel

from tilec.cli import main
from tilec.targets.gfx942 import listing

SHAPE = ("--shape", "B=1,H=2,M=1024,N=1024")


@pytest.fixture
def explained(tmp_path):
    def run(*words, schedule=""):
        path = tmp_path / "f.tile"
        text = kernel(CAUSAL, d="d : 64", scale="scale 1 / 8", h="h : H", schedule="")
        path.write_text(f"{text}\nschedule f on gfx942 {{ {schedule or 'skip proved'} }}\n")
        result = CliRunner().invoke(main, ["explain", str(path), "--target", "gfx942", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_the_gate_and_the_clocks_of_a_step(explained):
    (data,) = json.loads(explained(*SHAPE, "--json"))
    found = data["machine"]
    assert found["needs"]["spills"] == found["needs"]["scratch"] == 0 < found["needs"]["registers"] <= 256
    assert found["needs"]["products"] > 0 and found["needs"]["lds"] == 65536
    assert found["over_keys"] and found["step"] * found["timing"]["resident"] == found["timing"]["step"] > 0
    maps = data["maps"]
    assert (maps["step_clocks"], maps["step_model"]) == (found["step"], "cycle model")
    assert 0 < found["timing"]["busy"]["matrix"] < 1 and not found["lacking"]
    text = explained(*SHAPE)
    assert "machine code" in text and "matrix instructions" in text and "0 spilled" in text and "(predicted)" in text


def test_another_loop_than_that_over_keys_is_not_called_a_step(explained):
    short = ("--shape", "B=1,H=2,M=100,N=64")
    (data,) = json.loads(explained(*short, "--json"))
    found = data["machine"]
    assert not found["over_keys"] and data["maps"]["step_clocks"] == found["step"] > 0
    text = explained(*short)
    assert "too few steps of keys to time one" in text and "a step takes" not in text


def test_a_step_is_timed_for_a_shape_alone(explained):
    text = explained()
    assert "0 spilled" in text and "`--shape` has it timed" in text and "(predicted)" not in text


def test_without_a_disassembler_it_says_what_lacks(explained, monkeypatch):
    monkeypatch.setattr(listing, "disassembler", lambda: None)
    (data,) = json.loads(explained(*SHAPE, "--json"))
    assert data["machine"]["needs"]["products"] and data["machine"]["timing"] is None
    assert "disassembler" in data["machine"]["lacking"]


def test_other_backends_have_none(explained):
    (data,) = json.loads(explained(*SHAPE, "--json", "--backend", "triton"))
    assert data["machine"] is None
