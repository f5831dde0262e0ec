"""Triton's gfx942 kernels in the emulator: `tilec verify --target gfx942` on a machine without that GPU."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilec.cli import main
from tilec.targets.gfx942.listing import Listing, disassembler, read_instruction

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
    words = ["verify", "causal.tile", "--target", "gfx942"]

    def run(shape):
        return CliRunner().invoke(main, [*words, "--shape", shape, "--json"])

    return run


def test_a_causal_spec_is_right_and_its_machine_code_silent(verify):
    result = verify("B=1,M=70,N=100")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [o["findings"] for o in found] == [[]] * len(found)
    assert all(o["ok"] and {x["name"] for x in o["outputs"]} == {"O", "L"} for o in found)
    assert len({o["note"].partition(",")[0] for o in found}) == 2, "for usual tensors, and for any"


def test_no_keys_at_all(verify):
    result = verify("B=1,M=5,N=0")
    assert result.exit_code == 0, result.output


def test_a_barrier_too_few_fails(verify, monkeypatch):
    from tilec.targets.gfx942.emulator import Emulator

    whole = Emulator.launch

    def launch(self, *words, **options):
        found = self.listing.instructions
        barriers = [x for x in found if x.name == "s_barrier"]
        one = barriers[len(barriers) // 2]
        changed = (read_instruction("s_nop 0", x.address) if x is one else x for x in found)
        return whole(Emulator(self.code, Listing(tuple(changed))), *words, **options)

    monkeypatch.setattr(Emulator, "launch", launch)
    result = verify("B=1,M=70,N=100")
    assert result.exit_code == 1
    assert any("race" in f for o in json.loads(result.stdout) for f in o["findings"])


def test_a_shape_of_too_many_blocks_is_refused(verify):
    result = verify("B=64,M=1024,N=1024")
    (fault,) = json.loads(result.stdout)["faults"]
    assert (result.exit_code, fault["code"], fault["hint"]) == (1, "E0906", "give a smaller --shape")


def test_a_pointer_into_a_tensors_storage():
    import torch

    from tilec.backends.triton.emulate import pointer

    whole = torch.arange(12.0).reshape(3, 4)
    got = pointer(whole[1:], "x")
    assert (got.offset, got.array.nbytes, got.name) == (16, 48, "x")
