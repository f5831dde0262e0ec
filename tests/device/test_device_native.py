"""The hand-written Hopper program, printed as CUDA, on a Hopper GPU: against float64, on ragged sizes, many tiles per block."""

from pathlib import Path

import pytest
import torch
from float64 import attention, causal

PROGRAM = Path(__file__).parents[1] / "ir" / "programs" / "hopper_causal_d128.tp"
D, GROUP = 128, 4

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.skipif(not hopper, reason="needs a Hopper GPU"),
    pytest.mark.watchdog(60),
]


@pytest.fixture(scope="session")
def kernel():
    from tilec.backends.cuda import compile_program
    from tilec.backends.cuda.launch import Kernel
    from tilec.ir.parse import parse_program

    artifact = compile_program(parse_program(PROGRAM.read_text(encoding="utf-8")))
    return Kernel(artifact, torch.device("cuda", torch.cuda.current_device()))


@pytest.mark.parametrize(
    ("b", "m", "n", "h", "blocks"),
    [
        (1, 128, 128, 4, None),
        (1, 512, 512, 4, 4),  # four tiles a block
        (2, 300, 300, 4, 5),  # ragged
        (1, 257, 400, 4, 3),  # more keys than queries
        (1, 333, 200, 4, 2),  # rows without keys
        (1, 700, 64, 4, 1),  # tiles without keys, 24 a block
        (1, 1, 129, 4, 1),
        (1, 600, 1000, 8, 8),
    ],
)
def test_the_program_is_right_and_repeats_its_bits(kernel, b, m, n, h, blocks):
    generator = torch.Generator(device="cuda").manual_seed(m + n)

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    tensors = {"Q": random(b, m, h, D), "K": random(b, n, h // GROUP, D), "V": random(b, n, h // GROUP, D)}
    tensors["O"] = torch.full((b, m, h, D), torch.nan, device="cuda", dtype=torch.bfloat16)
    tensors["L"] = torch.full((b, h, m), torch.nan, device="cuda")
    shape = kernel.shape({"B": b, "H": h, "M": m, "N": n, **({"SMS": blocks} if blocks else {})})
    kernel(shape, tensors)
    torch.cuda.synchronize()
    first = tensors["O"].clone(), tensors["L"].clone()
    for _ in range(3):
        kernel(shape, tensors)
    torch.cuda.synchronize()
    assert torch.equal(first[0], tensors["O"]) and torch.equal(first[1], tensors["L"])
    o, lse = attention(tensors["Q"], tensors["K"], tensors["V"], causal(m, n))
    assert (tensors["O"].double() - o).abs().max() < 0.03
    assert torch.equal(tensors["L"].isinf(), lse.isinf())
    assert torch.allclose(tensors["L"].double(), lse, atol=1e-4, rtol=0)
