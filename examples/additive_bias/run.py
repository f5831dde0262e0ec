"""A bias for the whole batch, and sequences of different lengths by a mask."""

import sys
from pathlib import Path

import torch

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import DEVICE, check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    B, S = 2, pick(gpu=900, cpu=130)
    q, k, v = (randn(B, S, 4, 32, dtype=torch.float16) for _ in range(3))
    bias = randn(4, S, S, dtype=torch.float32)
    alive = torch.arange(S, device=DEVICE) < torch.tensor([[S], [S // 2]], device=DEVICE)
    o = attend(q, k, v, bias, alive)
    return check(SPEC, {"Q": q, "K": k, "V": v, "T": bias, "alive": alive}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
