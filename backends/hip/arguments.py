"""What a launch of a code object needs beside tensors, from its metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def known(metadata: Mapping[str, Any], extents: Mapping[str, int], units: int) -> dict[str, int]:
    """Values of the kernel's extents.  The one that a call does not say is the device's: its compute units."""
    return {**dict.fromkeys(metadata["extents"], units), **extents}


def blocks(metadata: Mapping[str, Any], extents: Mapping[str, int]) -> int:
    """Blocks of a call with these values of all extents."""
    scope = {**extents, **metadata["tile"], "min": min, "max": max}
    return int(eval(metadata["ctas"], {"__builtins__": {}}, scope))
