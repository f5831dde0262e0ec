"""Kernels of Ampere's and Ada's warps on a GPU that runs their instructions: against float64, on ragged sizes and NaN behind
sequences.
"""

import feature_runs as runs
import pytest
import torch
from feature_specs import FEATURES
from float64 import attention, causal

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.watchdog(60),
]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
ROUNDING = {"bf16": 4e-3, "f16": 8e-4}  # relative RMS: weights and outputs rounded once each
CAUSAL = "mask k <= q + N - M"
H, GROUP = 4, 2
SIZES = [(128, 128), (300, 300), (257, 400), (333, 200), (1, 129), (700, 64), (1024, 2304)]


def spec(d, mask, dtype, lines=""):
    return f"""
kernel warps {{
  index  b : B, h : {H}, q : M, k : N, d : {d}
  query  Q[b, q, h, d] : {dtype}
  key    K[b, k, h // {GROUP}, d] : {dtype}
  value  V[b, k, h // {GROUP}, d] : {dtype}
  output O[b, q, h, d] : {dtype}
  lse    L[b, h, q] : f32
  scale  1 / sqrt({d})
  {mask}
}}
schedule warps on any {{ {lines} }}
"""


CASES = [
    *((d, CAUSAL, "bf16", "sm80", "") for d in (16, 40, 64, 96, 128, 192, 256)),
    (64, "", "f16", "sm80", ""),
    (128, "", "bf16", "sm89", ""),
    (256, "", "f16", "sm89", ""),
    (64, CAUSAL, "bf16", "sm80", "stages 2"),
    (128, CAUSAL, "bf16", "sm80", "tile q = 128, k = 32  warps split_q(8)  stages 2"),
    (64, CAUSAL, "bf16", "sm80", "map persistent"),
]


@pytest.fixture
def kernel(d, mask, dtype, on, lines):
    """Compiled before the time of a test counts."""
    import ampere_kit

    return ampere_kit.kernel(spec(d, mask, dtype, lines), on)


@pytest.mark.parametrize(("d", "mask", "dtype", "on", "lines"), CASES)
def test_a_kernel_is_right_and_repeats_its_bits(kernel, d, mask, dtype):
    for m, n in SIZES:
        generator = torch.Generator(device="cuda").manual_seed(m + n)

        def random(rows, heads, generator=generator):
            whole = torch.full((2, rows + 70, heads, d), torch.nan, device="cuda", dtype=DTYPES[dtype])
            whole[:, :rows] = torch.randn(2, rows, heads, d, device="cuda", generator=generator).to(DTYPES[dtype])
            return whole[:, :rows]  # rows behind the sequence are NaN

        tensors = {"Q": random(m, H), "K": random(n, H // GROUP), "V": random(n, H // GROUP)}
        tensors["O"] = torch.full((2, m, H, d), torch.nan, device="cuda", dtype=DTYPES[dtype])
        tensors["L"] = torch.full((2, H, m), torch.nan, device="cuda")
        shape = kernel.shape({"B": 2, "M": m, "N": n})
        kernel(shape, tensors)
        torch.cuda.synchronize()
        first = tensors["O"].clone(), tensors["L"].clone()
        for _ in range(3):
            kernel(shape, tensors)
        torch.cuda.synchronize()
        assert torch.equal(first[0], tensors["O"]) and torch.equal(first[1], tensors["L"])
        o, lse = attention(tensors["Q"], tensors["K"], tensors["V"], causal(m, n) if mask else None)
        error = (tensors["O"].double() - o).square().mean().sqrt() / o.square().mean().sqrt().clamp_min(1e-9)
        assert error < ROUNDING[dtype], (m, n)
        assert torch.equal(tensors["L"].isinf(), lse.isinf())
        assert torch.allclose(tensors["L"].double(), lse, atol=1e-4, rtol=0), (m, n)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


def taken(feature):
    from tilec.backends.cuda.limits import check_limits
    from tilec.dsl.faults import Faults

    try:
        check_limits(runs.attention(feature.name), "sm80")
    except Faults:
        return False
    return feature.name != "nothing"


@pytest.mark.parametrize("feature", [f for f in FEATURES if taken(f)], ids=str)
def test_a_feature(feature, folder):
    import ampere_kit

    from tilec.frontend import read_text
    from tilec.native import lower_native
    from tilec.oracle.numerics import verify
    from tilec.oracle.tensors import from_torch
    from tilec.oracle.units import units_of
    from tilec.targets import target

    attn = runs.attention(feature.name)
    kernel = ampere_kit.loaded(lower_native(attn, "sm80", read_text(feature.text).schedule(attn.name, "sm80")))
    dense = attn.index(attn.q).storage.kind == "dense"
    for given in feature.sizes:
        inputs, tensors = runs.tensors_of(feature.name, given)
        attend = runs.kernel(feature.name, "cpu", folder)
        bound = attend.plan([tensors[n] for n in attend.signature.names], None).bound
        if bound.empty != "no":
            continue
        held = {n: t.cuda() for n, t in tensors.items()}
        outputs = {}
        for o, n, fill in zip(bound.outputs, (attn.output, attn.lse), (0.0, -torch.inf), strict=False):
            outputs[n] = torch.full(o.shape, torch.nan if dense else fill, device="cuda").to(o.dtype)
        if attn.rng is not None:
            held[attn.rng] = torch.tensor([runs.SEED, runs.OFFSET], device="cuda")
        kernel(kernel.shape(bound.extents), {**held, **outputs})
        torch.cuda.synchronize()
        more = {"sizes": given, "seed": runs.SEED, "offset": runs.OFFSET, "units": units_of(target("sm80"))}
        found = verify(attn, inputs, from_torch(outputs), **more)
        assert [str(r) for r in found.values() if not r.ok] == [], given
