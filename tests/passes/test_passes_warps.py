"""Programs for Ampere's warps: every feature that the cuda backend takes there, run against the float64 oracle."""

import feature_runs as runs
import pass_kit as kit
import pytest
from feature_specs import BY_NAME, PAIRS, STORAGE

from tilec.backends.cuda.limits import check_limits
from tilec.dsl.faults import Faults
from tilec.frontend import read_text
from tilec.ir.verify import verify
from tilec.native import lower_native

OTHERS = ("no keys", "dilated", "documents", "key flags", "pair flags", "bias of a head", "relative table", "sink and alibi",
          "score of minus infinity, whole tiles", "gqa, interleaved", "head dim 8", "head dim 72", "wide values")  # fmt: skip
FEATURES = (*(BY_NAME[n] for n in OTHERS), *PAIRS, *STORAGE)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


def taken(feature):
    try:
        check_limits(runs.attention(feature.name), "sm80")
    except Faults:
        return False
    return True


@pytest.mark.parametrize("feature", [f for f in FEATURES if taken(f)], ids=str)
def test_programs_are_right(feature, folder):
    attn, spec = runs.attention(feature.name), read_text(feature.text)
    program = lower_native(attn, "sm80", spec.schedule(attn.name, "sm80"))
    verify(program, proofs=False)
    sizes, inputs, bound = kit.call(feature.name, folder)
    if bound.empty != "no":
        sizes, inputs, bound = kit.call(feature.name, folder, {"B": 1, "M": 5, "N": 5})
    assert kit.complaints(program, feature.name, inputs, bound, sizes) == []
