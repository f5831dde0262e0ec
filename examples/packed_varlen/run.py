"""Three sequences end to end, one without a query, in tensors with no batch dimension."""

import sys
from pathlib import Path

import tilec

sys.path.append(str(Path(__file__).parents[1]))
from common import check, ints, pick, randn

SPEC = Path(__file__).with_name("spec.tile")


def main() -> int:
    attend = tilec.load(SPEC)
    S = pick(gpu=700, cpu=90)
    rows, keys = [S, 0, 1], [S, 3, S + 5]
    cu_q, cu_k = ints([0, S, S, S + 1]), ints([0, S, S + 3, 2 * S + 8])
    q, k, v = randn(sum(rows), 8, 64), randn(sum(keys), 4, 64), randn(sum(keys), 4, 64)
    o, lse = attend(q, k, v, cu_q, cu_k)
    return check(SPEC, {"Q": q, "K": k, "V": v, "cu_q": cu_q, "cu_k": cu_k}, {"O": o, "L": lse})


if __name__ == "__main__":
    sys.exit(main())
