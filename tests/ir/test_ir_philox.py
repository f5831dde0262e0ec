"""Philox against the published known answers, and the layout of its words."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.ir.philox import philox, uniform

# Random123 1.14, tests/kat_vectors, lines "philox4x32 10".
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN)
def test_known_answers(key, counter, words):
    assert tuple(int(w) for w in philox(key, counter)) == words


def test_broadcasts_and_matches_single_calls():
    q, k = np.arange(3)[:, None], np.arange(5)[None, :]
    block = philox((7, 9), (k, q, 2, 1))[0]
    assert block.shape == (3, 5)
    assert int(block[2, 4]) == int(philox((7, 9), (4, 2, 2, 1))[0])


def test_word_layout_of_uniform():
    seed, offset = (0x299F31D0 << 32) | 0xA4093822, 0
    got = uniform(seed, offset, b=0x03707344, h=0x13198A2E, q=0x85A308D3, k=0x243F6A88)
    assert got.dtype == np.float32
    assert float(got) == (0xD16CFE09 >> 8) / 2**24
    shifted = uniform((0x299F31CB << 32) | 0xA4093822, 5, 0x03707344, 0x13198A2E, 0x85A308D3, 0x243F6A88)
    assert float(shifted) == float(got)


def test_uniform_is_flat_in_the_unit_interval():
    u = uniform(123, 4, 0, 3, np.arange(400)[:, None], np.arange(400)[None, :])
    assert u.min() >= 0.0 and u.max() < 1.0
    counts, _ = np.histogram(u, bins=16, range=(0, 1))
    expected = u.size / 16
    # chi-square with 15 degrees of freedom: 37.7 is its 99.9th percentile.
    assert ((counts - expected) ** 2 / expected).sum() < 37.7
