"""gfx942 kernels of both backends in the emulator: `tilec verify --target gfx942` on a machine without that GPU."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from emulator_kit import edited, needs_clang

from tilec.cli import main
from tilec.targets.gfx942.emulator import Emulator, spread
from tilec.targets.gfx942.listing import disassembler

pytestmark = pytest.mark.skipif(disassembler() is None, reason="no llvm-objdump")

SPEC = """\
kernel causal {
  index  b : B, h : 2, q : M, k : N, d : 64
  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 2, d] : bf16
  value  V[b, k, h // 2, d] : bf16
  output O[b, q, h,      d] : bf16
  lse    L[b, h, q]         : f32
  scale  1 / sqrt(64)
  mask   k <= q + N - M
}
"""


@pytest.fixture
def verify(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    Path("causal.tile").write_text(SPEC)
    words = ["verify", "causal.tile", "--target", "gfx942", "--json"]

    def run(shape, backend="triton", *more):
        chosen = ["--backend", backend, *more] if backend else []
        return CliRunner().invoke(main, [*words, "--shape", shape, *chosen])

    return run


def test_a_causal_spec_is_right_and_its_machine_code_silent(verify):
    result = verify("B=1,M=70,N=100")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [o["findings"] for o in found] == [[]] * len(found)
    assert all(o["ok"] and {x["name"] for x in o["outputs"]} == {"O", "L"} for o in found)
    assert all(" of its clocks without conflicts" in o["note"] for o in found)
    assert len({o["note"].partition(",")[0] for o in found}) == 2, "for usual tensors, and for any"


@needs_clang
def test_the_native_kernel_comes_first_and_triton_where_it_does_not_reach(verify):
    result = verify("B=1,M=300,N=70", backend=None)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [o["note"].partition(" (")[0] for o in found] == ["hip", "triton"]
    assert all(o["findings"] == [] for o in found)
    assert "LDS takes 1.00 of its clocks" in found[0]["note"]


@needs_clang
def test_cycles_are_predicted_from_what_ran(verify):
    (found, *_) = json.loads(verify("B=1,M=64,N=400", "hip", "--cycles").stdout)
    assert found["cycles"]["step"] > 0 and 0 < found["cycles"]["busy"]["matrix"] < 1
    assert "(predicted)" in found["note"]


@needs_clang
def test_a_native_kernel_whose_wait_is_left_out_fails(verify, monkeypatch):
    change(monkeypatch, lambda x: "s_waitcnt lgkmcnt(0)" if x.name == "s_waitcnt" and "vmcnt" in x.text else None)
    result = verify("B=1,M=70,N=100", backend="hip")
    assert result.exit_code == 1
    assert any("wait" in f or "race" in f for o in json.loads(result.stdout) for f in o["findings"])


def test_no_keys_at_all(verify):
    result = verify("B=1,M=5,N=0")
    assert result.exit_code == 0, result.output


def change(monkeypatch, text_of):
    """Every launch runs the code with instructions changed as `text_of` says."""
    whole = Emulator.launch

    def launch(self, *words, **options):
        return whole(edited(self, text_of), *words, **options)

    monkeypatch.setattr(Emulator, "launch", launch)


def test_without_barriers_it_fails(verify, monkeypatch):
    change(monkeypatch, lambda x: "s_nop 0" if x.name == "s_barrier" else None)
    result = verify("B=1,M=70,N=100")
    assert result.exit_code == 1
    assert any("race" in f for o in json.loads(result.stdout) for f in o["findings"])


def test_what_the_emulator_lacks_is_a_fault(verify, monkeypatch):
    change(monkeypatch, lambda x: "v_sad_u8 v4, v1, v1, 3" if x.name == "s_barrier" else None)
    (fault,) = json.loads(verify("B=1,M=5,N=5").stdout)["faults"]
    assert (fault["code"], "v_sad_u8" in fault["note"]) == ("E0906", True)
    monkeypatch.setattr("tilec.targets.gfx942.listing.disassembler", lambda: None)
    (fault,) = json.loads(verify("B=1,M=5,N=5").stdout)["faults"]
    assert (fault["code"], "llvm-objdump" in fault["note"]) == ("E0911", True)


def test_some_of_many_blocks_run_and_their_rows_are_compared(verify, monkeypatch):
    monkeypatch.setattr("tilec.verify_emulated.MOST_BLOCKS", 2)
    found = json.loads(verify("B=3,M=64,N=64").stdout)
    assert all(o["ok"] and ", 2 of 6 blocks, " in o["note"] for o in found)
    assert spread(10, 4) == [0, 3, 6, 9] and spread(3, 4) == [0, 1, 2]


def test_rows_begun_and_not_finished_are_found():
    import numpy as np

    from tilec.frontend import read_text
    from tilec.oracle.exact import evaluate_and_dead
    from tilec.oracle.inputs import make_inputs
    from tilec.oracle.numerics import verify

    attn = read_text(SPEC).kernels[0]
    sizes = {"B": 1, "M": 4, "N": 4}
    inputs = make_inputs(attn, sizes, 0, "normal")
    true, _ = evaluate_and_dead(attn, inputs, sizes=sizes, seed=0, offset=0)
    got = true["O"].astype(inputs["Q"].dtype)
    got[:, 2:] = np.nan
    assert verify(attn, inputs, {"O": got}, sizes=sizes, partial=True)["O"].ok
    assert not verify(attn, inputs, {"O": got}, sizes=sizes)["O"].ok
    got[0, 1, 0, 5] = np.nan
    assert "not finite" in verify(attn, inputs, {"O": got}, sizes=sizes, partial=True)["O"].complaint


def test_a_pointer_into_a_tensors_storage():
    import torch

    from tilec.backends.runtime.emulation import pointer

    whole = torch.arange(12.0).reshape(3, 4)
    got = pointer(whole[1:], "x")
    assert (got.offset, got.array.nbytes, got.name) == (16, 48, "x")
