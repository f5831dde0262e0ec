"""gfx942's kernels in the emulator: `tilec verify --target gfx942` on a machine without that GPU."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilec.cli import main
from tilec.targets.gfx942.emulator import spread
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

    def run(shape, *more, backend="triton"):
        chosen = [] if backend is None else ["--backend", backend]
        return CliRunner().invoke(main, [*words, "--shape", shape, "--json", *chosen, *more])

    return run


def test_a_causal_spec_is_right_and_its_machine_code_silent(verify):
    result = verify("B=1,M=70,N=100")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [o["findings"] for o in found] == [[]] * len(found)
    assert all(o["ok"] and {x["name"] for x in o["outputs"]} == {"O", "L"} for o in found)
    assert all(" of its clocks without conflicts" in o["note"] for o in found)
    assert len({o["note"].partition(",")[0] for o in found}) == 2, "for usual tensors, and for any"


def test_its_own_kernels_where_they_reach(verify):
    """Usual tensors get machine code of HIP, others that of Triton."""
    result = verify("B=1,M=70,N=100", backend=None)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert all(o["ok"] and o["findings"] == [] for o in found)
    assert len({o["note"].partition(",")[0] for o in found}) == 2


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
