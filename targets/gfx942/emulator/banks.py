"""Cycles that an LDS instruction takes: 32 banks of 4 bytes, lanes served in groups.

The groups are those of AMD's Composable Kernel documentation on LDS bank conflicts for gfx942.  In each group a bank gives
one dword a clock, to any number of lanes; the group takes as many clocks as its busiest bank has dwords.
"""

from __future__ import annotations

import numpy as np

from tilec.targets.gfx942.emulator.wave import LANES, Array

BANKS = 32
HALF = [(0, 1, 2, 3, 20, 21, 22, 23), (4, 5, 6, 7, 16, 17, 18, 19)]
HALF += [(8, 9, 10, 11, 28, 29, 30, 31), (12, 13, 14, 15, 24, 25, 26, 27)]
READ_16 = np.array([*HALF, *([n + 32 for n in g] for g in HALF)])
IN_ORDER = {n: np.arange(LANES).reshape(-1, n) for n in (8, 16, 32)}


def groups_of(size: int, *, writes: bool) -> Array:
    """Lanes served together, a row a group, by bytes a lane."""
    if size > 8:
        return IN_ORDER[8] if writes else READ_16
    return IN_ORDER[16] if size == 8 else IN_ORDER[32]


def cycles(addresses: Array, lanes: Array, size: int, *, writes: bool) -> int:
    """Clocks for one access of `size` bytes a lane at the byte addresses of the active lanes."""
    groups = groups_of(size, writes=writes)
    words = max(1, size // 4)
    dwords = addresses.astype(np.int64)[groups][:, :, None] // 4 + np.arange(words)
    number = np.broadcast_to(np.arange(len(groups))[:, None, None], dwords.shape)
    active = np.broadcast_to(lanes[groups][:, :, None], dwords.shape)
    distinct = np.unique(number[active] << 32 | dwords[active])
    loads = np.bincount((distinct >> 32) * BANKS + distinct % BANKS, minlength=len(groups) * BANKS)
    return int(np.maximum(loads.reshape(len(groups), BANKS).max(axis=1), 1).sum())


def ideal(size: int, *, writes: bool) -> int:
    """Clocks without conflicts."""
    return len(groups_of(size, writes=writes))
