"""Tuning on a Hopper GPU: a short search ends with a point that ran, and its record is taken by the next compilation."""

import pytest
import torch

from tilec.frontend import read_spec
from tilec.measure import Plan
from tilec.native import lower_native
from tilec.tune.hopper import read_rows
from tilec.tune_spec import Options, keep, tune_kernel

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.skipif(not hopper, reason="needs a Hopper GPU"),
    pytest.mark.watchdog(120),
]

SPEC = """
kernel causal {
  index  b : B, h : 32, q : M, k : N, d : 64
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / 8
  mask   k <= q
}
schedule causal on sm90 { tune k in {64, 96, 128}  stages 2 }
"""


def test_a_short_search(tmp_path, monkeypatch):
    path, record = tmp_path / "spec.tile", tmp_path / "record.toml"
    path.write_text(SPEC)
    spec = read_spec(path)
    attn = spec.kernels[0]
    options = Options(seconds=1, plan=Plan(rounds=2, sustained=0.02))
    shape = {"B": 2, "M": 2048, "N": 2048}
    tuned = tune_kernel(spec, attn, "sm90", shape, lambda *_: None, lambda t: keep(record, t.row), options)
    best = next(o for o in tuned.outcomes if o.candidate.point == tuned.row.point)
    assert best.sustained and best == tuned.outcomes[0]
    assert not [o.note for o in tuned.outcomes if o.note.startswith("disagrees")]
    (row,) = read_rows(record.read_text(), "record")
    assert row.point.keys in (64, 96, 128) and row.point.stages == 2 and "NVIDIA" in row.source
    monkeypatch.setenv("TILEC_RECORD", str(record))
    program = lower_native(attn, "sm90", spec.schedule("causal", "sm90"))
    assert dict(program.tile)["TK"] == row.point.keys
