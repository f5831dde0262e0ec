"""Rows and keys in residue order through the cuda backend, on a Hopper GPU: against float64."""

import pytest
from hopper_kit import MARKS
from loaded_kit import attention, complaints, spec

from tilec.oracle.inputs import make_inputs

pytestmark = MARKS


SPECS = {
    "every fourth, causal": spec("mask (q - k) % 4 == 0 and k <= q + N - M", h="h : 8", head="h // 4"),
    "every fourth, window, 64": spec("mask (q - k) % 4 == 0 and k <= q and k > q - 300", d=64),
    "every third": spec("mask (q - k) % 3 == 0", d=256),
    "every eighth, heads first": spec(
        "mask (q - k) % 8 == 0 and k <= q", query="Q[b, h, q, d]", key="K[b, h, k, d]", value="V[b, h, k, d] : bf16"
    ),
    "every fifth, from the second, 72": spec("mask (q - k) % 5 == 1 and k <= q", d=72),
    "every fourth, pairs of CTAs": spec(
        "mask (q - k) % 4 == 0", schedule="schedule f on sm90 { order residue, q   cluster 2 }"
    ),
    "every second, slopes": spec(
        "param slope[h] : f32", "score s = s - slope[h] * abs(q - k)", "mask (q - k) % 2 == 0 and k <= q", "sink Z[h] : f32"
    ),
}  # fmt: skip
SIZES = [
    {"B": 2, "M": 1000, "N": 1000},
    {"B": 1, "M": 333, "N": 701},
    {"B": 1, "M": 701, "N": 130},
    {"B": 2, "M": 2, "N": 3},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_classes_are_right(attend, few_blocks, name, sizes):
    inputs = make_inputs(attention(SPECS[name]), sizes, 1, tile=128)
    assert complaints(attend, SPECS[name], inputs, sizes) == []
