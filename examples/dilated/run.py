"""A dilated window over lengths that are not multiples of the dilation."""

import sys
from pathlib import Path

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=1501, cpu=301)
    q, k, v = randn(1, S, 8, 64), randn(1, S, 8, 64), randn(1, S, 8, 64)
    o = attend(q, k, v)
    return check(SPEC, {"Q": q, "K": k, "V": v}, {"O": o})


if __name__ == "__main__":
    sys.exit(main())
