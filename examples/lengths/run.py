"""A padded cache whose unused rows hold NaN, as freed memory may."""

import sys
from pathlib import Path

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, ints, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    N = pick(gpu=2000, cpu=150)
    lengths = ints([N, 1, N // 2, 17])
    q, k, v = randn(4, 1, 8, 128), randn(4, N, 2, 128), randn(4, N, 2, 128)
    for b, n in enumerate(lengths.tolist()):
        k[b, n:] = v[b, n:] = float("nan")
    o = attend(q, k, v, seqlen_k=lengths)
    return check(SPEC, {"Q": q, "K": k, "V": v, "seqlen_k": lengths}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
