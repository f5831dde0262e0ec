"""Packed, padded and paged sequences through the cuda backend, on a Hopper GPU: against float64, NaN in all that is dead."""

import numpy as np
import pytest
import torch
from feature_specs import CAUSAL
from hopper_kit import MARKS, WINDOW
from loaded_kit import attention, call, complaints, spec

from tilec.oracle.inputs import make_inputs
from tilec.oracle.tensors import from_torch

pytestmark = MARKS

PACKED = {"q": "q : M packed cu_q", "k": "k : N packed cu_k"}
LENGTHS = {"k": "k : N lengths nk"}


def pages(size):
    return ("", f"paged bt[b, k // {size}]", f"paged bt[b, k // {size}]")


SPECS = {
    "packed": spec(CAUSAL, h="h : 8", head="h // 4", **PACKED),
    "packed, 64": spec(d=64, **PACKED),
    "packed, window and sink, 256": spec(WINDOW, "sink Z[h] : f32", d=256, **PACKED),
    "packed rows, dense keys": spec(q="q : M packed cu_q"),
    "padded keys": spec(CAUSAL, h="h : 8", head="h // 2", **LENGTHS),
    "padded keys, heads first": spec(
        CAUSAL, key="K[b, h, k, d]", value="V[b, h, k, d] : bf16", **LENGTHS
    ),
    "pages of 16": spec(CAUSAL, h="h : 8", head="h // 4", tails=pages(16), **LENGTHS),
    "pages of 64, window, 64": spec(WINDOW, d=64, tails=pages(64), **LENGTHS),
    "pages of 128": spec(CAUSAL, tails=pages(128), **LENGTHS),
    "pages of 24, 72": spec(CAUSAL, d=72, tails=pages(24), **LENGTHS),
    "packed rows, pages of 8, 256": spec(CAUSAL, d=256, tails=pages(8), q="q : M packed cu_q", **LENGTHS),
    "padded, window": spec(WINDOW, q="q : M lengths mq", **LENGTHS),
}  # fmt: skip
SIZES = [
    {"B": 9, "M": 300, "N": 300},  # lengths 300, 0, 1, tile - 1, tile, tile + 1, 2 tile - 1, then random
    {"B": 3, "M": 130, "N": 1100},
    {"B": 8, "M": 40, "N": 150},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_sequences_are_right(attend, few_blocks, name, sizes):
    text = SPECS[name]
    inputs = make_inputs(attention(text), sizes, 1, tile=128)
    assert complaints(attend, text, inputs, sizes) == []


SHORT = {
    "groups of 4": spec(CAUSAL, h="h : 8", head="h // 4"),
    "groups of 7, 72": spec(CAUSAL, d=72, h="h : 14", head="h // 7"),
    "groups of 8, heads first": spec(
        WINDOW, h="h : 16", head="h // 8", query="Q[b, h, q, d]", output="O[b, h, q, d]", **LENGTHS
    ),
    "16 heads of one key, 256": spec(CAUSAL, d=256, h="h : 16", key="K[b, k, d]", value="V[b, k, d] : bf16"),
    "128 heads of one key": spec(CAUSAL, h="h : 128", key="K[b, k, d]", value="V[b, k, d] : bf16", **LENGTHS),
    "slopes, sinks, pages": spec(
        "param slope[h] : f32", "score s = s - slope[h] * abs(q - k)", "sink Z[h] : f32", CAUSAL,
        d=64, h="h : 8", head="h // 4", tails=pages(16), **LENGTHS,
    ),
    "padded": spec(CAUSAL, h="h : 6", head="h // 3", q="q : M lengths mq", **LENGTHS),
}  # fmt: skip


@pytest.mark.parametrize("sizes", [{"B": 4, "M": 1, "N": 700}, {"B": 2, "M": 37, "N": 300}, {"B": 2, "M": 64, "N": 64}])
@pytest.mark.parametrize("name", SHORT)
def test_few_queries_share_tiles(attend, name, sizes):
    text = SHORT[name]
    inputs = make_inputs(attention(text), sizes, 4, tile=128)
    assert complaints(attend, text, inputs, sizes) == []


@pytest.mark.parametrize("name", ["packed", "packed, 64"])
def test_neighbours_of_nan_change_no_bit(attend, name):
    text, sizes = SPECS[name], {"B": 9, "M": 400, "N": 400}
    lengths = {"q": [5, 129, 64, 0, 300, 1, 77, 128, 9], "k": [200, 130, 64, 40, 301, 1, 78, 0, 399]}
    inputs = make_inputs(attention(text), sizes, 2, lengths=lengths)
    clean = call(attend, text, inputs)
    edges = {n: np.cumsum([0, *lengths[n]]) for n in "qk"}
    for kept in range(9):
        poisoned = {n: a.copy() for n, a in inputs.items()}
        for tensor, axis in (("Q", "q"), ("K", "k"), ("V", "k")):
            lo, hi = edges[axis][kept : kept + 2]
            poisoned[tensor][:lo] = np.nan
            poisoned[tensor][hi:] = np.nan
        found = call(attend, text, poisoned)
        lo, hi = edges["q"][kept : kept + 2]
        assert torch.equal(found["O"][lo:hi], clean["O"][lo:hi])
        assert torch.equal(found["L"][:, lo:hi], clean["L"][:, lo:hi])


@pytest.mark.parametrize("lengths", [{"q": [0] * 5, "k": [3] * 5}, {"q": [9, 0, 200, 0, 1], "k": [0] * 5}])
def test_nothing_to_do(attend, lengths):
    text, sizes = SPECS["packed"], {"B": 5, "M": 200, "N": 8}
    inputs = make_inputs(attention(text), sizes, 3, lengths=lengths, tail=3)
    found = from_torch(call(attend, text, inputs))
    assert not found["O"].any() and np.isneginf(found["L"]).all()
