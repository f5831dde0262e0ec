"""A loss on both outputs, and its gradients.  On the CPU target; GPU targets say that they have none yet."""

import sys
from pathlib import Path

import torch

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import DEVICE, check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=500, cpu=80)
    q, k, v = randn(2, S, 4, 64), randn(2, S, 2, 64), randn(2, S, 2, 64)
    tensors = {"Q": q, "K": k, "V": v, "Z": randn(4, dtype=torch.float32)}
    o, lse = attend(*(t.requires_grad_() for t in tensors.values()))
    slopes = randn(*o.shape), 0.01 * lse.detach()  # of the loss: d_o and, as in a z-loss, a multiple of lse
    try:
        grads = torch.autograd.grad((o, lse), list(tensors.values()), slopes)
    except tilec.Fault as lack:
        print(f"train on {DEVICE}: {lack}")
        return check(SPEC, tensors, {"O": o, "L": lse})
    return check(SPEC, tensors, {"O": o, "L": lse}, dict(zip(tensors, grads, strict=True)), slopes)


if __name__ == "__main__":
    sys.exit(main())
