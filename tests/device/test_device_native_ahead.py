"""What comes ahead of the end of a tile, on a Hopper GPU: several tiles to a CTA, ragged, without keys, in groups of heads."""

from dataclasses import replace

import pytest
import torch
from float64 import attention
from hopper_kit import CAUSAL, LIVE, MARKS, SPEC

pytestmark = MARKS

CONFIGS = {  # (head dim, heads, heads per key head, mask, schedule lines)
    "64, full": (64, 4, 4, "", ""),
    "64, causal": (64, 4, 1, CAUSAL, ""),
    "128, full": (128, 4, 2, "", ""),
    "128, causal": (128, 4, 4, CAUSAL, ""),
    "256, full": (256, 4, 1, "", ""),
    "256, causal": (256, 4, 2, CAUSAL, ""),
    "128, causal, pairs": (128, 4, 4, CAUSAL, "cluster 2"),
}
SHAPES = [  # (batch, rows, keys, multiprocessors)
    (1, 512, 512, 2),
    (2, 300, 333, 2),
    (1, 257, 400, 2),
    (1, 1100, 200, 2),  # rows and tiles without keys
    (2, 900, 64, 4),
    (1, 700, 1, 2),
    (2, 1000, 1000, 3),
]


@pytest.fixture(scope="session", params=[(name, ahead) for name in CONFIGS for ahead in ("number", "scores")], ids=str)
def kernel(request):
    """(configuration, its kernel), compiled once, at the first point of the table."""
    from tilec.backends.cuda import compile_program
    from tilec.backends.cuda.launch import Kernel
    from tilec.frontend import read_text
    from tilec.native import program_at
    from tilec.tune.hopper import points

    name, ahead = request.param
    d, heads, group, mask, lines = CONFIGS[name]
    read = read_text(SPEC.format(d=d, heads=heads, group=group, mask=mask, lines=lines))
    attn, schedule = read.kernels[0], read.schedule("f", "sm90")
    point = replace(next(points(attn, schedule)), ahead=ahead)
    program = program_at(attn, "sm90", schedule, point)
    made = Kernel(compile_program(program), torch.device("cuda", torch.cuda.current_device()))
    return CONFIGS[name], made, dict(program.tile)["TQ"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_that_follow_each_other_are_right_and_repeat_their_bits(kernel, shape):
    (d, heads, group, mask, _), run, rows = kernel
    b, m, n, units = shape
    assert -(-m // rows) * heads * b >= 4 * units  # tiles of each CTA
    generator = torch.Generator(device="cuda").manual_seed(m + n)

    def random(*sizes):
        return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16, generator=generator)

    tensors = {"Q": random(b, m, heads, d), "K": random(b, n, heads // group, d), "V": random(b, n, heads // group, d)}
    tensors["O"] = torch.full((b, m, heads, d), torch.nan, device="cuda", dtype=torch.bfloat16)
    tensors["L"] = torch.full((b, heads, m), torch.nan, device="cuda")
    call = run.shape({"B": b, "M": m, "N": n, "SMS": units})
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
