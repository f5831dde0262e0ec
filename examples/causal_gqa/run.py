"""Prefill, then one decode step with the same kernel."""

import sys
from pathlib import Path

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    B, N = 2, pick(gpu=1000, cpu=70)
    k, v = randn(B, N, 8, 128), randn(B, N, 8, 128)
    status = 0
    for rows in (N, 1):
        q = randn(B, rows, 32, 128)
        o, lse = attend(q, k, v)
        status |= check(SPEC, {"Q": q, "K": k, "V": v}, {"O": o, "L": lse})
    return status


if __name__ == "__main__":
    sys.exit(main())
