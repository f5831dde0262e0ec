"""One token per sequence against a paged latent cache; unused table entries are -1, unused slots NaN."""

import sys
from pathlib import Path

import torch

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import DEVICE, check, ints, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    B, N = 3, pick(gpu=1000, cpu=150)
    lengths, pages = [N, 1, N // 2], -(-N // 64)
    pool = randn(B * pages + 1, 64, 576)
    order = torch.randperm(B * pages).to(DEVICE, torch.int32).view(B, pages)
    for b, n in enumerate(lengths):
        used = -(-n // 64)
        pool[order[b, used - 1], (n - 1) % 64 + 1 :] = float("nan")
        pool[order[b, used:]] = float("nan")
        order[b, used:] = -1
    c, r = pool.split([512, 64], -1)
    q, qr = randn(B, 1, 16, 576).split([512, 64], -1)
    tensors = {"Q": q, "C": c, "Qr": qr, "R": r, "seqlen": ints(lengths), "block_table": order}
    o, lse = attend(**tensors)
    return check(SPEC, tensors, {"O": o, "L": lse})


if __name__ == "__main__":
    sys.exit(main())
