"""Values that are keys, and several pairs of queries and keys, through the cuda backend, on a Hopper GPU: against float64."""

import pytest
import torch
from feature_specs import CAUSAL, kernel
from hopper_kit import MARKS

import tilec
from tilec.frontend import read_text
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify
from tilec.oracle.tensors import from_torch, to_torch

pytestmark = MARKS

LENGTHS = {"k": "k : N lengths nk"}
PAIR = ("query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16")
LATENT = {"more": "r : 64", "key": "K[b, k, d]", "value": "K", "h": "h : 8"}


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


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
def test_latents_are_right(attend, few_blocks, name, sizes):
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
