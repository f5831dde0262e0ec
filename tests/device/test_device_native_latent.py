"""Values that are keys, and several pairs of queries and keys, through the cuda backend, on a Hopper GPU: against float64."""

import pytest
from feature_specs import CAUSAL
from hopper_kit import MARKS
from loaded_kit import attention, complaints, spec

from tilec.oracle.inputs import make_inputs

pytestmark = MARKS

LENGTHS = {"k": "k : N lengths nk"}
PAIR = ("query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16")
LATENT = {"more": "r : 64", "key": "K[b, k, d]", "value": "K", "h": "h : 8"}


SPECS = {
    "a key for each head": spec(CAUSAL, value="K"),
    "a key for each head, 64": spec(CAUSAL, d=64, value="K"),
    "latent of 128": spec(*PAIR, CAUSAL, **LATENT),
    "latent of 192": spec(*PAIR, CAUSAL, d=192, **LATENT),
    "latent of 256": spec(*PAIR, d=256, **LATENT),
    "latent of 256, one pair": spec(CAUSAL, d=256, key="K[b, k, d]", value="K", h="h : 8"),
    "latent, window": spec(*PAIR, "mask k <= q and k > q - 300", **LATENT),
    "latent, padded": spec(*PAIR, CAUSAL, **LATENT, **LENGTHS),
    "latent, pages of 64": spec(
        "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16 paged bt[b, k // 64]", CAUSAL,
        tails=("", "paged bt[b, k // 64]", ""), **LATENT, **LENGTHS,
    ),
    "latent, overlap off": spec(*PAIR, CAUSAL, **{**LATENT, "schedule": "schedule f on sm90 { overlap off }"}),
    "two pairs": spec(*PAIR, CAUSAL, more="r : 64"),
}  # fmt: skip
SIZES = [
    {"B": 2, "M": 700, "N": 700},
    {"B": 3, "M": 130, "N": 1100},
    {"B": 2, "M": 300, "N": 40},
    {"B": 8, "M": 1, "N": 500},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_latents_are_right(attend, few_blocks, name, sizes):
    inputs = make_inputs(attention(SPECS[name]), sizes, 1, tile=128)
    assert complaints(attend, SPECS[name], inputs, sizes) == []
