"""row_values: what a store needs once per row is computed once per row.

Contract.  In: a program whose stores of tiles have factors that depend on the row alone (`acc * where(sum == 0, 0, 1 / sum)`).
Out: each such factor with a division or a function in it is a buffer of rows, computed before the store.  No result changes:
the same operations give the same values.  An assembler does not see it: every element then has its own division.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.expr import Expr, Fetch, Iota, Op, Read, Reduce, children, substitute, walk
from tilec.ir.nodes import Buffer, Compute, Program, Role, Slot, Stmt, Store, rewrite
from tilec.passes.scope import fresh

COSTLY = frozenset({"/", "exp", "exp2", "log", "log2", "sqrt", "tanh"})


def row_values(program: Program) -> Program:
    """The program with those buffers."""
    return program.with_(roles=tuple(_role(program, r) for r in program.roles))


def _role(program: Program, role: Role) -> Role:
    rows = {b.name: b for b in role.buffers if len(b.axes) == 1 and b.dtype == "f32"}
    made: dict[Expr, Buffer] = {}

    def rule(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Store) or len(s.axes) < 2:
            return (s,)
        found = dict.fromkeys(_maximal(s.value, rows))
        for e in found:
            like = next(rows[x.buffer] for x in walk(e) if isinstance(x, Read))
            if e not in made:
                (name,) = fresh(program, f"row_factor_{len(made)}" if made else "row_factor")
                made[e] = replace(like, name=name.name)
        env: dict[Expr, Expr] = {e: Read(made[e].name) for e in found}
        before = tuple(Compute(Slot(made[e].name), e) for e in found)
        return (*before, replace(s, value=substitute(s.value, env)))

    body = rewrite(role.body, rule)
    return replace(role, body=body, buffers=(*role.buffers, *made.values()))


def _maximal(e: Expr, rows: dict[str, Buffer]) -> list[Expr]:
    """The largest parts of `e` that rows decide, if they cost something."""
    inside = list(walk(e))
    leaves = [x for x in inside if isinstance(x, Read | Iota | Fetch | Reduce)]
    if leaves and all(isinstance(x, Read) and x.buffer in rows for x in leaves):
        return [e] if any(isinstance(x, Op) and x.name in COSTLY for x in inside) else []
    return [x for c in children(e) for x in _maximal(c, rows)]
