"""values_apart: values that are keys have a tile of their own, so that they can be used a step after their scores.

Contract.  In: key loops that multiply one loaded tile with queries and then with weights (`value K`).  Out: the tile is loaded
again, under another name, in front of the product with weights.  No result changes; who copies tiles into rings sees that both
are one (`rings`: FOLLOW), and copies it once.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.nodes import For, Load, Mma, Program, Role, Slot, Stmt, rewrite, walk
from tilec.passes.scope import fresh


def values_apart(program: Program) -> Program:
    """The program with such a second tile; as it is where values are no keys."""
    return program.with_(roles=tuple(_role(program, r) for r in program.roles))


def _role(program: Program, role: Role) -> Role:
    products = [s for s in walk(role.body) if isinstance(s, Mma)]
    loaded = {s.dst.buffer for s in walk(role.body) if isinstance(s, Load)}
    scored = {s.b.buffer for s in products if s.a.buffer in loaded}
    twice = dict.fromkeys(s.b.buffer for s in products if s.a.buffer not in loaded and s.b.buffer in scored)
    if not twice:
        return role
    names = fresh(program, *(f"{n}_again" for n in twice))
    again = {n: name.name for n, name in zip(twice, names, strict=True)}

    def rule(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, For):
            return (s,)
        loads = {x.dst.buffer: x for x in s.body if isinstance(x, Load)}
        out: list[Stmt] = []
        for x in s.body:
            if isinstance(x, Mma) and x.b.buffer in again and x.a.buffer not in loaded:
                tile = Slot(again[x.b.buffer])
                out.append(replace(loads[x.b.buffer], dst=tile))
                x = replace(x, b=tile)
            out.append(x)
        return (replace(s, body=tuple(out)),)

    copies = tuple(replace(b, name=again[b.name]) for b in role.buffers if b.name in again)
    return replace(role, body=rewrite(role.body, rule), buffers=(*role.buffers, *copies))
