"""Rows and keys in residue order through the cuda backend, on a Hopper GPU: against float64."""

import pytest
import torch
from feature_specs import kernel
from hopper_kit import MARKS

import tilec
from tilec.frontend import read_text
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify
from tilec.oracle.tensors import from_torch, to_torch

pytestmark = MARKS


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


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
    monkeypatch.setattr(Kernel, "shape", lambda self, extents: shape(self, {**extents, "SMS": 2 * BLOCKS}))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_classes_are_right(attend, few_blocks, name, sizes):
    text = SPECS[name]
    attn, f = read_text(text).kernels[0], attend(text)
    inputs = make_inputs(attn, sizes, 1, tile=128)
    given = [t.cuda() for t in to_torch(inputs, "cpu").values()]
    out = tuple(torch.full(o.shape, torch.nan, dtype=o.dtype, device="cuda") for o in f.plan(given, None).bound.outputs)
    with torch.no_grad():
        f(*given, out=out)
        first = [t.clone() for t in out]
        f(*given, out=out)
    torch.cuda.synchronize()
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, out, strict=True))
    found = from_torch({o.name: t.cpu() for o, t in zip(f.signature.outputs, out, strict=True)})
    assert [str(r) for r in verify(attn, inputs, found, sizes=sizes).values() if not r.ok] == []
