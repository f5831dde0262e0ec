"""What the hip backend refuses of a kernel before it lowers anything, and why."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.dsl.faults import Fault, Faults, TargetFault
from tilec.dsl.spans import Span
from tilec.ir.attention import Attention
from tilec.ir.expr import Int, Var

FLOATS = ("bf16", "f16")  # operands of MFMA that are taken as they lie in memory
FEATURES = 8  # of 16 bytes, which rows are copied by
NARROWEST, WIDEST = 32, 256
PAGE = 16  # rows of a tile that a wave brings at most
HINT = "the portable backend takes it"


def check_limits(attn: Attention, target: str) -> None:
    """Raises Faults of E0914 for each feature of the kernel that has no native code on this target."""

    def fault(what: str, note: str, span: Span | None = None) -> Fault:
        return TargetFault("E0914", f"the hip backend does not take {what} on {target}", span, note=note, hint=HINT)

    found: list[Fault] = [fault(*reason) for reason in _reasons(attn)]
    if found:
        raise Faults(found)


def _reasons(attn: Attention) -> Iterator[tuple[str, str, Span | None] | tuple[str, str]]:
    """(what, why, where)."""
    operands = {n: d for pair, d in zip(attn.pairs, attn.contracted, strict=True) for n in pair}
    operands[attn.value] = attn.feature
    for name, feature in operands.items():
        t = attn.tensor(name)
        if t.dtype not in FLOATS:
            yield f"`{t.name}` of {t.dtype}", f"matrix instructions take {' and '.join(FLOATS)} as they lie", t.span
        if t.paged is not None and (t.page or 0) % PAGE:
            yield (
                f"`{t.name}` in pages of {t.page}",
                f"rows that a wave brings lie in one page: multiples of {PAGE}",
                t.span,
            )
        if t.index[-1] is not Var(feature):
            yield f"`{t.name}` with `{feature}` not last", "rows are copied in units of contiguous features", t.span
    for t in attn.tensors:
        if t.slot == "output" and t.dtype not in (*FLOATS, "f32"):
            yield f"an output of {t.dtype}", f"rows are stored as {', '.join(FLOATS)} or f32", t.span
    for name in dict.fromkeys((attn.feature, *attn.contracted)):
        extent = attn.index(name).extent
        if not isinstance(extent, Int) or extent.value % FEATURES or not NARROWEST <= extent.value <= WIDEST:
            yield f"{name} = {extent}", f"it takes multiples of {FEATURES} features from {NARROWEST} to {WIDEST}"
