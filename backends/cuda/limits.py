"""What the cuda backend refuses of a kernel before it lowers anything, and why."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.dsl.faults import Fault, Faults, TargetFault
from tilec.dsl.spans import Span
from tilec.ir.attention import Attention, Tensor
from tilec.ir.expr import Int, Var
from tilec.targets import target as machine
from tilec.targets import warp_wide

FLOATS = ("bf16", "f16")  # operands of wgmma that it reads as they lie in memory, rows or columns first
UNIT = 8  # 16-bit features of 16 bytes: what strides of a tensor map and stores count in
WIDEST = 256  # features of an accumulator: PTX ISA, wgmma.mma_async, n
DIMENSIONS = 5  # of a tensor map
HINT = "the portable backend takes it"


def check_limits(attn: Attention, target: str) -> None:
    """Raises Faults of E0914 for each feature of the kernel that has no native code on this target."""

    def fault(what: str, note: str, span: Span | None = None) -> Fault:
        return TargetFault("E0914", f"the cuda backend does not take {what} on {target}", span, note=note, hint=HINT)

    reasons = _reasons_of_warps if warp_wide(machine(target)) else _reasons
    found: list[Fault] = [fault(*reason) for reason in reasons(attn)]
    if found:
        raise Faults(found)


def _reasons(attn: Attention) -> Iterator[tuple[str, str, Span | None] | tuple[str, str]]:
    """(what, why, where)."""
    boxed = {n: d for pair, d in zip(attn.pairs, attn.contracted, strict=True) for n in pair}
    boxed[attn.value] = attn.feature
    for name, feature in boxed.items():
        yield from _operand(attn.tensor(name), feature)
    for t in attn.tensors:
        if t.slot == "output" and t.dtype not in (*FLOATS, "f32"):
            yield f"an output of {t.dtype}", f"rows are stored as {', '.join(FLOATS)} or f32", t.span
    yield from _widths(attn)


def _reasons_of_warps(attn: Attention) -> Iterator[tuple[str, str, Span | None] | tuple[str, str]]:
    """(what, why, where), where warps copy for themselves, row by row."""
    operands = {n: d for pair, d in zip(attn.pairs, attn.contracted, strict=True) for n in pair} | {
        attn.value: attn.feature
    }
    for name, feature in operands.items():
        t = attn.tensor(name)
        if t.dtype not in FLOATS:
            yield f"`{t.name}` of {t.dtype}", f"matrix instructions take {' and '.join(FLOATS)} as they lie", t.span
        if t.index[-1] is not Var(feature):
            yield f"`{t.name}` with `{feature}` not last", "rows are copied in units of contiguous features", t.span
    for t in attn.tensors:
        if t.slot == "output" and t.dtype not in (*FLOATS, "f32"):
            yield f"an output of {t.dtype}", f"rows are stored as {', '.join(FLOATS)} or f32", t.span
    yield from _widths(attn)


def _widths(attn: Attention) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys((*attn.contracted, attn.feature)):
        extent = attn.index(name).extent
        if not isinstance(extent, Int) or extent.value % UNIT or extent.value > WIDEST:
            note = f"rows are copied and stored {UNIT} features at a time, and a product has up to {WIDEST}"
            yield f"{name} = {extent}", note


def _operand(t: Tensor, feature: str) -> Iterator[tuple[str, str, Span | None]]:
    """Reasons against a query, key or value."""
    if t.dtype not in FLOATS:
        yield f"`{t.name}` of {t.dtype}", f"matrix instructions take {' and '.join(FLOATS)} as they lie", t.span
    if t.page is not None and t.page % UNIT:
        yield (
            f"`{t.name}` in pages of {t.page}",
            f"a box of a page starts at a multiple of {UNIT} rows of a tile",
            t.span,
        )
    if t.index[-1] is not Var(feature):
        yield f"`{t.name}` with `{feature}` not last", "rows of a box are contiguous features", t.span
    if len(t.index) > DIMENSIONS:
        yield f"`{t.name}` of {len(t.index)} dimensions", f"a tensor map has {DIMENSIONS}", t.span
