"""What the triton backend refuses, and why: each row of `LIMITS` is also a "no" of the support table."""

from __future__ import annotations

from tilec.dsl.faults import Fault, Faults, TargetFault
from tilec.ir.attention import Attention
from tilec.ir.expr import Int

NO_FP8 = ("sm80",)  # before Ada, matrix instructions take no fp8: PTX ISA, mma, "sm_89 or higher"
WIDEST = 1024  # features of one tile: a wider one does not fit the registers of a block on any target


def check_limits(attn: Attention, target: str) -> None:
    """Raises Faults of E0914 for each feature that Triton does not serve on this target."""
    faults: list[Fault] = []
    for t in attn.tensors:
        if t.dtype in ("e4m3", "e5m2") and target in NO_FP8:
            note = f"matrix instructions of {target} take no fp8"
            faults.append(TargetFault("E0914", f"{t.dtype} is not on {target}", t.span, note=note, hint="use bf16"))
    for name in dict.fromkeys((*attn.contracted, attn.feature)):
        extent = attn.index(name).extent
        if isinstance(extent, Int) and extent.value > WIDEST:
            note = f"a tile holds all features of a row, and {WIDEST} is the most"
            faults.append(
                TargetFault("E0914", f"{name} = {extent.value} is too wide for Triton on {target}", note=note)
            )
    if faults:
        raise Faults(faults)
