"""Tensor maps of the TMA unit: which elements of a tensor a box's coordinates count (CUDA driver API, cuTensorMapEncodeTiled).

A coordinate outside 0 ... dims reads zeros, so the dimensions say what the tensor has, and only `box` what one copy brings.
A residue class of positions has a map of its own: what it has of a tensor whose length is no multiple of the period is no box of
anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RANK = 5
PANEL = 64  # columns of a box: 128 bytes, the width of the swizzle
LEGAL_STRIDE = 16  # bytes, of which strides are multiples


@dataclass(frozen=True)
class Geometry:
    """Five dimensions, the fastest first: their elements, the bytes between two of each but the first, and a box's elements;
    the first element is `offset` bytes from the tensor's."""

    dims: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, ...]
    offset: int = 0


def geometry(shape: Sequence[int], strides: Sequence[int], size: int, box: Mapping[str, Any]) -> Geometry:
    """Over (64 columns, rows, panels, other dimensions from the last to the first), or for boxes of a single panel over
    (columns, rows, other dimensions); before the rows there may be heads.  `strides` in elements of `size` bytes; `box`: the
    fields of a `writer.Box`.  A class without positions has one that no kernel reads for what it holds.

    A dimension of one element may have any stride in torch; the hardware wants a multiple of 16 bytes there too."""
    axis, columns, heads = box["axis"], shape[-1], box["heads"]
    period, first = box["period"], box["first"]
    offset = first * strides[axis] * size if first < shape[axis] else 0
    if period > 1:
        positions = max(1, -(-(shape[axis] - first) // period))
        shape, strides = list(shape), list(strides)
        shape[axis], strides[axis] = positions, strides[axis] * period
    before, count = ([heads[0]], heads[1]) if heads else ([], 1)
    others = [n for n in reversed(range(len(shape) - 1)) if n not in (axis, *before)]
    bytes_of = [s * size if n > 1 else LEGAL_STRIDE for n, s in zip(shape, strides, strict=True)]
    # of each dimension: elements, bytes between two, and elements of a box
    rows = [*((shape[n], bytes_of[n], count) for n in before), (shape[axis], bytes_of[axis], box["rows"] // count)]
    rest = [(shape[n], bytes_of[n], 1) for n in others]
    panels = [] if box["single"] else [(columns // PANEL, PANEL * size, box["columns"] // PANEL)]
    found = [*rows, *panels, *rest]
    found += [(1, LEGAL_STRIDE, 1)] * (RANK - 1 - len(found))
    dims, steps, tile = zip(*found, strict=True)
    return Geometry((columns if box["single"] else PANEL, *dims), steps, (PANEL, *tile), offset)
