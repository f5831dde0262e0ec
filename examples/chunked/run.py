"""Chunks of 256 over a length that ends inside one."""

import sys
from pathlib import Path

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=1100, cpu=300)
    q, k, v = randn(1, S, 8, 128), randn(1, S, 2, 128), randn(1, S, 2, 128)
    o = attend(q, k, v)
    return check(SPEC, {"Q": q, "K": k, "V": v}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
