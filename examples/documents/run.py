"""Documents of random lengths, numbered along each row."""

import sys
from pathlib import Path

import torch

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import DEVICE, check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    B, S = 2, pick(gpu=1000, cpu=200)
    q, k, v = (randn(B, S, 8, 64) for _ in range(3))
    doc = (torch.rand(B, S) < 0.03).cumsum(1).to(DEVICE, torch.int32)
    o = attend(q, k, v, doc)
    return check(SPEC, {"Q": q, "K": k, "V": v, "doc": doc}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
