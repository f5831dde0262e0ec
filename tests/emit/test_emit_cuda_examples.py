"""Which backend of sm90 takes each example, with the schedule that is beside it."""

from pathlib import Path

import pytest

from tilec.frontend import read_spec
from tilec.pipeline import routed
from tilec.support import ALL

EXAMPLES = {p.parent.name: p for p in (Path(__file__).parents[2] / "examples").glob("*/spec.tile")}
PORTABLE = {
    "causal_gqa": "split over warpgroups",  # its schedule has `warps split_q`
    "lengths": "multiples of 64",  # and this one small tiles
    "fp8": "bf16 and f16",
    "mla_decode_paged": "up to 256",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_native_code_or_a_reason(name):
    spec = read_spec(EXAMPLES[name])
    (attn,) = spec.kernels
    found = routed(attn, "sm90", spec.schedule(attn.name, "sm90"), features=ALL)
    reasons = [f.note or "" for r in found.refused for f in r.faults]
    assert found.backend.name == ("triton" if name in PORTABLE else "cuda"), reasons
    assert any(PORTABLE[name] in r for r in reasons) if name in PORTABLE else not reasons
