"""Prefixes of different lengths, one of them empty."""

import sys
from pathlib import Path

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, ints, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=1000, cpu=150)
    q, k, v = (randn(3, S, 8, 64) for _ in range(3))
    prefix = ints([0, S // 3, S - 1])
    o = attend(q, k, v, prefix)
    return check(SPEC, {"Q": q, "K": k, "V": v, "prefix": prefix}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
