"""tidy: drops what nothing uses.

Contract.  Removes `let` lines whose name no later expression mentions, guards that became `true`, tiles that are loaded or
computed and never read, and register buffers without a reader or writer.  Results are untouched.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.expr import TRUE, Expr, Read, Var, walk
from tilec.ir.nodes import (
    Compute,
    Copy,
    Let,
    Load,
    Mma,
    Move,
    Program,
    Role,
    Seek,
    Slot,
    Stmt,
    Store,
    map_exprs,
    rewrite,
)
from tilec.ir.nodes import walk as statements


def tidy(program: Program) -> Program:
    """The program without dead scalars and dead buffers."""
    return program.with_(roles=tuple(_tidy(r) for r in program.roles))


def _tidy(role: Role) -> Role:
    body, own = role.body, {b.name for b in role.buffers}
    while True:
        used, buffers = mentioned(body)
        dead = own - read(body)

        def rule(s: Stmt, used: set[str] = used, dead: set[str] = dead) -> tuple[Stmt, ...] | None:
            if isinstance(s, Let | Seek) and s.name not in used:
                return ()
            if isinstance(s, Load | Compute | Move) and s.dst.buffer in dead and not getattr(s, "during", ()):
                return ()
            if isinstance(s, Load | Store | Copy) and s.where is TRUE:
                return (replace(s, where=None),)
            return None

        new = rewrite(body, rule)
        if new == body:
            kept = tuple(b for b in role.buffers if b.name in buffers)
            return replace(role, body=body, buffers=kept)
        body = new


def read(body: tuple[Stmt, ...]) -> set[str]:
    """Buffers whose contents a statement uses."""
    found: set[str] = set()

    def note(e: Expr) -> Expr:
        found.update(x.buffer for x in walk(e) if isinstance(x, Read))
        return e

    for s in statements(body):
        map_exprs(s, note)
        if isinstance(s, Mma):
            found |= {s.a.buffer, s.b.buffer} | ({s.dst.buffer} if s.accumulate else set())
        elif isinstance(s, Move):
            found.add(s.src.buffer)
    return found


def mentioned(body: tuple[Stmt, ...]) -> tuple[set[str], set[str]]:
    """(scalars, buffers) that statements use; a scalar's own definition does not count."""
    scalars: set[str] = set()
    buffers: set[str] = set()

    def note(e: Expr) -> Expr:
        for x in walk(e):
            if isinstance(x, Var):
                scalars.add(x.name)
            elif isinstance(x, Read):
                buffers.add(x.buffer)
        return e

    for s in statements(body):
        map_exprs(s, note)
        buffers.update(x.buffer for x in (getattr(s, n, None) for n in ("dst", "src", "a", "b")) if isinstance(x, Slot))
    return scalars, buffers
