"""ALiBi's slopes 2^(-8 (h + 1) / H), with fewer queries than keys."""

import sys
from pathlib import Path

import torch

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import DEVICE, check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    N = pick(gpu=1000, cpu=150)
    q, k, v = randn(2, N // 2, 8, 64) * 4, randn(2, N, 8, 64) * 4, randn(2, N, 8, 64)
    slope = 2.0 ** -torch.arange(1.0, 9.0, device=DEVICE)
    o = attend(q, k, v, slope)
    return check(SPEC, {"Q": q, "K": k, "V": v, "slope": slope}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
