"""Registers that hold one tile after another.

REUSE   a tile that is computed element by element from one nobody reads again takes its place: weights that of scores
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.expr import Expr, Read, substitute, walk
from tilec.ir.nodes import Compute, Load, Mma, Role, Slot, Stmt, blocks, map_exprs, rewrite
from tilec.ir.nodes import walk as statements
from tilec.passes.tidy import read


def in_place(role: Role, k: str) -> Role:
    """`role` with tiles along the keys `k` in place of those they are computed from."""
    buffers = {b.name: b for b in role.buffers}
    into = {s.dst.buffer for s in statements(role.body) if isinstance(s, Mma)}
    for b in role.buffers:
        sources = {
            x.buffer
            for s in statements(role.body)
            if isinstance(s, Compute) and s.dst == Slot(b.name)
            for x in walk(s.value)
            if isinstance(x, Read) and x.buffer in into and buffers[x.buffer].axes == b.axes
        }
        if b.name in into or len(sources) != 1 or k not in {a.name for a in b.axes} or len(b.axes) < 2:
            continue
        (source,) = sources
        if buffers[source].dtype == b.dtype and not _both_live(role.body, source, b.name):
            role = _renamed(role, b.name, source)
    return role


def _both_live(body: tuple[Stmt, ...], source: str, name: str) -> bool:
    """Unless, in every block, each is written before it is read, and `source` is not read after `name` was written, before
    it is written anew."""
    holds: str | None = None  # which of the two the block wrote last
    for s in body:
        reads = read((s,)) if not blocks(s) or isinstance(s, Compute) else set()
        if (name in reads and holds != name) or (source in reads and holds != source):
            return True
        if _target(s) in (name, source):
            holds = _target(s)
        if not isinstance(s, Compute) and any(_both_live(b, source, name) for b in blocks(s)):
            return True
    return False


def _target(s: Stmt) -> str | None:
    return s.dst.buffer if isinstance(s, Compute | Load | Mma) else None


def _renamed(role: Role, old: str, new: str) -> Role:
    env: dict[Expr, Expr] = {Read(old): Read(new)}

    def rule(s: Stmt) -> tuple[Stmt, ...]:
        s = map_exprs(s, lambda e: substitute(e, env))
        if isinstance(s, Compute | Load) and s.dst.buffer == old:
            s = replace(s, dst=replace(s.dst, buffer=new))
        elif isinstance(s, Mma):
            a, b = (replace(x, buffer=new) if x.buffer == old else x for x in (s.a, s.b))
            s = replace(s, a=a, b=b)
        return (s,)

    return replace(role, body=rewrite(role.body, rule), buffers=tuple(b for b in role.buffers if b.name != old))
