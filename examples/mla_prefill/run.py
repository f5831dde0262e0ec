"""Q and K as slices of one projection each: only the last dimension must be contiguous."""

import sys
from pathlib import Path

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=800, cpu=100)
    q, qr = randn(1, S, 16, 192).split([128, 64], -1)
    kv, kr = randn(1, S, 16, 256), randn(1, S, 64)
    k, v = kv.split(128, -1)
    o = attend(Q=q, K=k, Qr=qr, Kr=kr, V=v)
    return check(SPEC, {"Q": q, "K": k, "Qr": qr, "Kr": kr, "V": v}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
