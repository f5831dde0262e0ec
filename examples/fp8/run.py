"""8-bit tensors in the device's own form, each with a factor per head."""

import sys
from pathlib import Path

import torch

import tilec
from tilec.backends.runtime.device import target_of

sys.path.append(str(Path(__file__).parents[1]))
from common import DEVICE, check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=400, cpu=150)
    target = target_of(DEVICE)
    kinds = torch.float8_e4m3fn, torch.float32
    q, k, v = (tilec.fp8.to_target(randn(2, S, h, 128, dtype=kinds[0]), target) for h in (8, 2, 2))
    qs, ks, vs = (randn(2, h, dtype=kinds[1]).abs() + 0.5 for h in (8, 2, 2))
    tensors = {"Q": q, "K": k, "V": v, "qs": qs, "ks": ks, "vs": vs}
    return check(SPEC, tensors, {"O": attend(**tensors)})


if __name__ == "__main__":
    sys.exit(main())
