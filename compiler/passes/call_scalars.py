"""call_scalars: what the sizes of a call decide is computed once for it, on its host.

Contract.  In: a program whose roles compute scalars.  Out: the same program, in which those of them that follow from extents and
tile constants alone, at the beginning of a role or in its block map, are `scalars` of the program instead.  A block map takes
integer divisions of numbers that are not known before a call; each of a kernel's threads would repeat these for each tile,
and keep their results in registers.

    ONCE   a name that is given one value, the same wherever it is given one
    WHOLE  no element of a tensor, and no number of a block or of a role's instance, is in it; a number alone stays where it is
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.expr import Expr, Fetch, Float, Int, Read, free_vars, walk
from tilec.ir.nodes import Claim, Cluster, For, Let, Program, Seek, Stmt, rewrite
from tilec.ir.nodes import walk as statements


def call_scalars(program: Program) -> Program:
    """The program with scalars of its calls."""
    candidates = dict(_lets(program))
    for role in program.roles:  # rule ONCE
        for s in statements(role.body):
            match s:
                case Let(name, value) if candidates.get(name, value) is not value:
                    del candidates[name]
                case Seek() | Claim():
                    candidates.pop(s.name, None)
                case For():
                    candidates.pop(s.var, None)
                case _:
                    ...
    known = {n for n, _ in (*program.tile, *program.scalars)} | set(program.extents)
    found: dict[str, Expr] = {}
    for name, value in candidates.items():
        if _whole(value) and free_vars(value) <= known:
            found[name] = value
            known.add(name)

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        return () if isinstance(s, Let) and s.name in found else None

    roles = tuple(replace(r, body=rewrite(r.body, rule)) for r in program.roles)
    return program.with_(scalars=(*program.scalars, *found.items()), roles=roles)


def _lets(program: Program) -> list[tuple[str, Expr]]:
    """Lines at the beginning of roles and in maps."""
    out: list[tuple[str, Expr]] = []
    for role in program.roles:
        maps = [s.body for s in statements(role.body) if isinstance(s, Cluster) and s.kind == "map"]
        out += [(s.name, s.value) for body in (role.body, *maps) for s in body if isinstance(s, Let)]
    return out


def _whole(value: Expr) -> bool:
    """Rule WHOLE, but for names."""
    return not isinstance(value, Int | Float) and not any(isinstance(e, Fetch | Read) for e in walk(value))
