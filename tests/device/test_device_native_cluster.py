"""Kernels in clusters of two CTAs, on a Hopper GPU: against float64, with odd tile counts, few CTAs, and rows without keys."""

import pytest
import torch
from float64 import attention
from hopper_kit import CAUSAL, LIVE, MARKS, SPEC, WINDOW

pytestmark = MARKS

CONFIGS = {  # (head dim, heads, heads per key head, mask)
    "128, pairs of heads, causal": (128, 4, 4, CAUSAL),
    "128, pairs of heads, full": (128, 4, 2, ""),
    "128, pairs of rows, causal": (128, 3, 1, CAUSAL),
    "128, pairs of rows, full": (128, 3, 3, ""),
    "128, pairs of rows, window": (128, 3, 1, WINDOW),
    "64, pairs of rows, causal": (64, 3, 1, CAUSAL),
    "96, pairs of heads, causal": (96, 2, 2, CAUSAL),
    "256, pairs of rows, causal": (256, 3, 1, CAUSAL),
    "256, pairs of heads, full": (256, 4, 4, ""),
}
SHAPES = [  # (batch, rows, keys, multiprocessors; None: the device's)
    (1, 128, 128, None),
    (1, 512, 512, 2),  # all tiles on one pair
    (2, 300, 300, 4),  # the second CTA of a pair of rows has none
    (1, 257, 400, 3),  # an odd number of multiprocessors
    (1, 333, 200, 2),  # rows without keys
    (1, 900, 64, 2),  # tiles without keys
    (1, 1, 129, 2),
    (2, 1000, 1000, None),
]


@pytest.fixture(scope="session", params=CONFIGS)
def kernel(request):
    """(configuration, its kernel), compiled once."""
    from tilec.backends.cuda import compile_program
    from tilec.backends.cuda.launch import Kernel
    from tilec.frontend import read_text
    from tilec.native import lower_native

    d, heads, group, mask = CONFIGS[request.param]
    read = read_text(SPEC.format(d=d, heads=heads, group=group, mask=mask, lines="cluster 2"))
    program = lower_native(read.kernels[0], "sm90", read.schedule("f", "sm90"))
    assert program.grid.cluster == 2
    made = Kernel(compile_program(program), torch.device("cuda", torch.cuda.current_device()))
    return CONFIGS[request.param], made


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_pair_is_right_and_repeats_its_bits(kernel, shape):
    (d, heads, group, mask), run = kernel
    b, m, n, units = shape
    generator = torch.Generator(device="cuda").manual_seed(m + n)

    def random(*sizes):
        return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16, generator=generator)

    tensors = {"Q": random(b, m, heads, d), "K": random(b, n, heads // group, d), "V": random(b, n, heads // group, d)}
    tensors["O"] = torch.full((b, m, heads, d), torch.nan, device="cuda", dtype=torch.bfloat16)
    tensors["L"] = torch.full((b, heads, m), torch.nan, device="cuda")
    call = run.shape({"B": b, "M": m, "N": n, **({"SMS": units} if units else {})})
    run(call, tensors)
    torch.cuda.synchronize()
    first = tensors["O"].clone(), tensors["L"].clone()
    for _ in range(3):
        run(call, tensors)
    torch.cuda.synchronize()
    assert torch.equal(first[0], tensors["O"]) and torch.equal(first[1], tensors["L"])
    o, lse = attention(tensors["Q"], tensors["K"], tensors["V"], LIVE[mask](m, n))
    assert (tensors["O"].double() - o).abs().max() < 0.03
    assert torch.equal(tensors["L"].isinf(), lse.isinf())
    assert torch.allclose(tensors["L"].double(), lse, atol=1e-4, rtol=0)
