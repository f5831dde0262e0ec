"""8-bit floats across vendors: the same logical `e4m3` has OCP bits on NVIDIA and gfx950, FNUZ bits on gfx942.

FNUZ has one exponent bias more: equal bits mean half the value, 0x80 is NaN instead of -0, and the largest number is 240
where OCP's is 448 (OCP 8-bit Floating Point Specification 1.0, table 1; AMD Instinct MI300 ISA guide, "Data formats").
"""

from __future__ import annotations

import torch

from tilec.backends.runtime.device import float8
from tilec.dsl.faults import CallFault

_LOGICAL = {
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e4m3fnuz: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.float8_e5m2fnuz: "e5m2",
}


def to_target(t: torch.Tensor, target: str) -> torch.Tensor:
    """`t` in the 8-bit form of a target: the same values, those beyond its range saturated, NaN kept; a new tensor.

    To keep every bit of a tensor that uses the whole OCP range, halve it first and double its descale factor.
    Raises CallFault E1010 for a tensor that is not 8-bit, TargetFault E0901 for an unknown target."""
    if t.dtype not in _LOGICAL:
        raise CallFault("E1010", f"`to_target` converts 8-bit floats; this call gave {t.dtype}")
    dtype = float8(_LOGICAL[t.dtype], target)
    most = torch.finfo(dtype).max
    return t.float().clamp(-most, most).to(dtype)
