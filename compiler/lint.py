"""What is legal and may still surprise: warnings that `tilec check` prints."""

from __future__ import annotations

from tilec.arith.formula import normalise
from tilec.arith.verdicts import rows_safe
from tilec.dsl.faults import Fault, Source, Warn
from tilec.ir.attention import Attention
from tilec.ir.build import compare


def warnings_of(attn: Attention, source: Source) -> list[Fault]:
    """W0502 where some rows keep no key under a condition that the prover can name."""
    normal = normalise(attn.mask, q=attn.q, k=attn.k, params={t.name: t.facts for t in attn.tensors})
    m, n = attn.index(attn.q).extent, attn.index(attn.k).extent
    safety = rows_safe(normal, m, n, (*attn.assumes, compare(">=", n, 1)))  # without keys there is nothing to keep
    if safety.safe or not (safety.safe is False or " when " in safety.witness):
        return []
    condition = safety.witness.partition(" when ")[2]
    note = "such a row gives O = 0 and L = -inf"
    hint = f"write `assume {_opposite(condition)}` if it cannot happen" if _opposite(condition) else None
    return [Warn("W0502", safety.witness, attn.spans.get(attn.mask), note=note, hint=hint, source=source)]


def _opposite(condition: str) -> str | None:
    """`M <= N` for `M > N`; None for anything but one comparison."""
    for op, other in (("<=", ">"), (">=", "<"), ("<", ">="), (">", "<=")):
        left, found, right = condition.partition(f" {op} ")
        if found:
            return None if " and " in condition or " or " in condition else f"{left} {other} {right}"
    return None
