"""fetch_pages: block tables are read where a row is fetched, instead of into a tile of page numbers.

Contract.  In: a program whose loads index tensors through integer tiles that were loaded along the keys (`@table_tile`).  Out:
each such read in the index of a load is a read of the table itself, for live lanes only, and the tile is gone.  No result
changes.  Asynchronous copies then need nothing from registers: whoever copies a row looks up its page.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.expr import Expr, Fetch, Read, substitute, walk
from tilec.ir.nodes import Cluster, For, If, Load, Program, Role, Stmt, While
from tilec.passes.tidy import tidy


def fetch_pages(program: Program) -> Program:
    """The program without tiles of page numbers."""
    return tidy(program.with_(roles=tuple(_role(r) for r in program.roles)))


def _role(role: Role) -> Role:
    whole = {b.name for b in role.buffers if b.dtype == "i32" and len(b.axes) == 1}
    return replace(role, body=_block(role.body, {}, whole))


def _block(body: tuple[Stmt, ...], known: dict[Expr, Expr], tiles: set[str]) -> tuple[Stmt, ...]:
    known = dict(known)
    out: list[Stmt] = []
    for s in body:
        match s:
            case Load():
                index = tuple(substitute(i, known) for i in s.index)
                if s.dst.buffer in tiles and not any(isinstance(x, Read) for i in index for x in walk(i)):
                    known[Read(s.dst.buffer)] = Fetch(s.tensor, index)
                out.append(replace(s, index=index))
            case For() | While() | Cluster():
                out.append(replace(s, body=_block(s.body, known, tiles)))
            case If():
                out.append(If(s.cond, _block(s.then, known, tiles), _block(s.orelse, known, tiles)))
            case _:
                out.append(s)
    return tuple(out)
