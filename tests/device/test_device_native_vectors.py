"""Masks and scores that read values of keys and rows through the cuda backend, on a Hopper GPU: against float64."""

import numpy as np
import pytest
import torch
from feature_specs import CAUSAL
from hopper_kit import MARKS
from loaded_kit import attention, complaints, spec

from tilec.oracle.inputs import make_inputs
from tilec.oracle.tensors import to_torch

pytestmark = MARKS

SORTED = ("param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k <= q")
PACKED = {"q": "q : M packed cu", "k": "k : M packed cu"}


SPECS = {
    "documents": spec(*SORTED, k="k : M", h="h : 8", head="h // 4"),
    "documents, 64": spec(*SORTED, d=64, k="k : M"),
    "documents, 256": spec(*SORTED, d=256, k="k : M"),
    "documents, both ways": spec("param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k]", k="k : M"),
    "documents in no order": spec("param doc[b, k] : i32", "mask doc[b, q] == doc[b, k] and k <= q", k="k : M"),
    "documents of rows and of keys": spec(
        "param dq[b, q] : i32 nondecreasing", "param dk[b, k] : i32 nondecreasing", "mask dq[b, q] >= dk[b, k]"
    ),
    "packed documents": spec(*SORTED, **PACKED),
    "flags of keys": spec("param keep[b, k] : bool", "mask keep[b, k] and k <= q + N - M"),
    "flags of pairs": spec("param keep[b, q, k] : bool", "mask keep[b, q, k]", d=64),
    "scores of keys and rows": spec(
        "param x[b, h, k] : f32", "param y[b, q] : bf16", "score s = tanh(s * x[b, h, k]) + y[b, q]", CAUSAL
    ),
    "bias of keys, 256": spec("bias Bt[b, k] : f32", "score s = s + Bt[b, k]", d=256),
}  # fmt: skip
SIZES = [{"B": 2, "M": 700, "N": 700}, {"B": 3, "M": 130, "N": 130}, {"B": 1, "M": 1, "N": 1}]


def sized(text, sizes):
    return {n: sizes[n] for n in sizes if n != "N" or "N" in attention(text).extents}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_vectors_are_right(attend, few_blocks, name, sizes):
    text = SPECS[name]
    sizes = sized(text, sizes)
    assert complaints(attend, text, make_inputs(attention(text), sizes, 1, tile=128), sizes) == []


CUTS = {
    "one document": (),
    "a document for each position": range(1, 900),
    "tiles": range(128, 900, 128),
    "beside tiles": (127, 129, 255, 257, 640),
    "a long one at the end": (1, 2, 3),
}


@pytest.mark.parametrize("cuts", CUTS)
def test_documents_that_begin_anywhere(attend, few_blocks, cuts):
    """Searches, tiles that need no mask, and tiles without any."""
    text, sizes = SPECS["documents"], {"B": 1, "M": 900}
    inputs = make_inputs(attention(text), sizes, 2)
    starts = np.zeros(900, np.int32)
    starts[list(CUTS[cuts])] = 1
    inputs["doc"] = np.cumsum(starts, dtype=np.int32)[None] * 3 - 7
    assert complaints(attend, text, inputs, sizes) == []


def test_vectors_of_any_strides(attend):
    text, sizes = SPECS["documents"], {"B": 2, "M": 300}
    inputs = make_inputs(attention(text), sizes, 3)
    f = attend(text)
    given = {n: t.cuda() for n, t in to_torch(inputs, "cpu").items()}
    with torch.no_grad():
        plain = f(*given.values())
        given["doc"] = torch.stack([given["doc"]] * 3, -1)[..., 1]
        strided = f(*given.values())
    for a, b in zip(plain, strided, strict=True):
        assert torch.equal(a, b)
