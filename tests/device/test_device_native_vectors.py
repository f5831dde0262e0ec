"""Masks and scores that read values of keys and rows through the cuda backend, on a Hopper GPU: against float64."""

import numpy as np
import pytest
import torch
from feature_specs import CAUSAL, kernel
from hopper_kit import MARKS

import tilec
from tilec.frontend import read_text
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify
from tilec.oracle.tensors import from_torch, to_torch
from tilec.oracle.units import units_of
from tilec.targets import target

pytestmark = MARKS

SORTED = ("param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k <= q")
PACKED = {"q": "q : M packed cu", "k": "k : M packed cu"}


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


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
UNITS = units_of(target("sm90"))
BLOCKS = 5  # so that each takes several tiles


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("kernels"), {}

    def get(text):
        if text not in made:
            made[text] = tilec.load(text, target="sm90", backend="cuda", cache_dir=folder)
        return made[text]

    return get


@pytest.fixture
def few_blocks(monkeypatch):
    """Launches as on a device of BLOCKS multiprocessors."""
    from tilec.backends.cuda.launch import Kernel

    shape = Kernel.shape
    monkeypatch.setattr(Kernel, "shape", lambda self, extents: shape(self, {**extents, "SMS": BLOCKS}))


def attention(text):
    return read_text(text).kernels[0]


def sized(text, sizes):
    return {n: sizes[n] for n in sizes if n != "N" or "N" in attention(text).extents}


def complaints(attend, text, inputs, sizes):
    """Of two calls into poisoned memory, which must agree bit by bit."""
    f = attend(text)
    given = [t.cuda() for t in to_torch(inputs, "cpu").values()]
    out = tuple(torch.full(o.shape, torch.nan, dtype=o.dtype, device="cuda") for o in f.plan(given, None).bound.outputs)
    with torch.no_grad():
        f(*given, out=out)
        first = [t.clone() for t in out]
        f(*given, out=out)
    torch.cuda.synchronize()
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, out, strict=True))
    found = from_torch({o.name: t.cpu() for o, t in zip(f.signature.outputs, out, strict=True)})
    return [str(r) for r in verify(attention(text), inputs, found, sizes=sizes, units=UNITS).values() if not r.ok]


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
