"""Names of the program's scalars beside those that the spec chose for its indices."""

from __future__ import annotations

import re
from dataclasses import replace

from tilec.ir.attention import Attention
from tilec.ir.expr import Expr, Fetch, Var, substitute
from tilec.ir.storage import batch_of

# What passes call their scalars whatever the spec says: the block's number, and stems with these tails (`q_first`).
OURS = re.compile(r"cta|.*_(start|first|last|edge|tiles|value|mid|to|found)\d*")


def local(attn: Attention, name: str) -> str:
    """A name for a scalar of the program that no index of the spec has: `m`, or `m_` where the spec has an index m."""
    taken = {i.name for i in attn.indices}
    while name in taken:
        name += "_"
    return name


def starts(attn: Attention) -> dict[Expr, Expr]:
    """Reads of packed offsets that say where this tile's sequence begins -> the scalars that hold them (`q_start`)."""
    out: dict[Expr, Expr] = {}
    for i in (attn.index(attn.q), attn.index(attn.k)):
        if i.storage.kind == "packed":
            out.setdefault(Fetch(i.storage.table or "", (batch_of(attn, i),)), Var(f"{i.name}_start"))
    return out


def distinct_indices(attn: Attention) -> Attention:
    """The same meaning with indices that no scalar of the program is called: `cta` becomes `cta_`.  Tensors keep their names."""
    taken = {i.name for i in attn.indices}
    names: dict[str, str] = {}
    for i in attn.indices:
        new = i.name
        while OURS.fullmatch(new) or (new != i.name and new in taken):
            new += "_"
        if new != i.name:
            names[i.name] = new
            taken.add(new)
    if not names:
        return attn
    env: dict[Expr, Expr] = {Var(old): Var(new) for old, new in names.items()}

    def expr(e: Expr) -> Expr:
        return substitute(e, env)

    def fetch(e: Fetch | None) -> Fetch | None:
        return None if e is None else Fetch(e.tensor, tuple(map(expr, e.index)))

    def name(n: str) -> str:
        return names.get(n, n)

    tensors = tuple(
        replace(t, index=tuple(map(expr, t.index)), scaled=fetch(t.scaled), paged=fetch(t.paged)) for t in attn.tensors
    )
    return attn.with_(
        indices=tuple(replace(i, name=name(i.name)) for i in attn.indices),
        tensors=tensors,
        q=name(attn.q),
        k=name(attn.k),
        contracted=tuple(map(name, attn.contracted)),
        feature=name(attn.feature),
        scale=expr(attn.scale),
        scores=tuple(map(expr, attn.scores)),
        mask=expr(attn.mask),
        sink=fetch(attn.sink),
    )
