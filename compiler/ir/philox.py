"""Philox4x32-10, the counter-based generator behind `uniform` of `ir.expr`; NumPy, any shape at once.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123).

The words that attention dropout feeds it, the same on every target and in both passes:

    key     = (low 32 bits of seed, high 32 bits of seed + offset)
    counter = (k, q, h, b)           each modulo 2**32

so that in Triton the four words are `tl.philox(seed + (offset << 32), k, q, h, b)`.  `uniform` is the upper 24 bits of the first
word times 2**-24: exact in f32, at least 0 and below 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF

Words = NDArray[np.uint64]


def philox(key: tuple[int, int], counter: tuple[Any, Any, Any, Any]) -> tuple[Words, Words, Words, Words]:
    """The four output words, each < 2**32, for 32-bit key words and integer counters that broadcast together."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.int64).astype(np.uint64) & np.uint64(WORD) for c in counter)
    k0, k1 = key[0] & WORD, key[1] & WORD
    low, shift = np.uint64(WORD), np.uint64(32)
    for _ in range(ROUNDS):
        first, second = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (second >> shift) ^ c1 ^ np.uint64(k0),
            second & low,
            (first >> shift) ^ c3 ^ np.uint64(k1),
            first & low,
        )
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, offset: int, b: Any, h: Any, q: Any, k: Any) -> NDArray[np.float32]:
    """f32 in [0, 1) for each (b, h, q, k); the index arrays broadcast together."""
    word = philox((seed & WORD, (seed >> 32) + offset), (k, q, h, b))[0]
    return (word >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
