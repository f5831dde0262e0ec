"""write_positions: positions of rows and keys as arithmetic on lanes, instead of tiles that hold them.

Contract.  In: a program with position tiles (`k = j * TK + iota(k)`).  Out: every read of one is the expression it was given, and
the tile is gone.  No result changes.  A mask then compares scalars and lane numbers, which cost no registers, and an
index shows the corner of its tile.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.expr import Expr, Iota, Read, substitute, walk
from tilec.ir.nodes import Buffer, Cluster, Compute, For, If, Program, Role, Slot, Stmt, While, map_exprs


def write_positions(program: Program) -> Program:
    """The program without position tiles."""
    return program.with_(roles=tuple(_role(r) for r in program.roles))


def _role(role: Role) -> Role:
    positions = {b.name for b in role.buffers if _is_position(b)}
    written: set[str] = set()
    body = _block(role.body, {}, positions, written)
    return replace(role, body=body, buffers=tuple(b for b in role.buffers if b.name not in written))


def _is_position(b: Buffer) -> bool:
    return b.dtype == "i32" and len(b.axes) == 1 and b.stages == 1


def _block(body: tuple[Stmt, ...], known: dict[Expr, Expr], positions: set[str], done: set[str]) -> tuple[Stmt, ...]:
    known = dict(known)
    out: list[Stmt] = []
    for s in body:
        s = map_exprs(s, lambda e: substitute(e, known))
        match s:
            case Compute(Slot(name, None, ()), value) if name in positions and _counts_lanes(value):
                known[Read(name)] = value
                done.add(name)
            case For() | While() | Cluster():
                out.append(replace(s, body=_block(s.body, known, positions, done)))
            case If():
                then = _block(s.then, known, positions, done)
                out.append(If(s.cond, then, _block(s.orelse, known, positions, done)))
            case _:
                out.append(s)
    return tuple(out)


def _counts_lanes(e: Expr) -> bool:
    parts = list(walk(e))
    return any(isinstance(x, Iota) for x in parts) and not any(isinstance(x, Read) for x in parts)
