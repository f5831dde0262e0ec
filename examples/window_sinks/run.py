"""A window over a long row; a float32 sink logit per head comes last among the arguments."""

import sys
from pathlib import Path

import torch

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=1500, cpu=300)
    q, k, v = randn(1, S, 16, 64), randn(1, S, 2, 64), randn(1, S, 2, 64)
    sink = randn(16, dtype=torch.float32)
    o = attend(q, k, v, sink)
    return check(SPEC, {"Q": q, "K": k, "V": v, "Z": sink}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
