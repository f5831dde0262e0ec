"""split_rows: the rows of a tile over warpgroups, 64 to each.

Contract.  In: a program of one sequential `block` role.  Out: the same statements in a role `consumer` of n warpgroups; register
tiles have TQ / n rows, and row i of warpgroup `wg` is row (TQ / n) * wg + i of the tile.  Each warpgroup still loads all that it
needs.  Bounds of loops stay those of the whole tile: warpgroups take the same steps, so that they can share what is loaded.
Rows are independent of each other; no result changes.

Raises ScheduleFault E0812 where the rows are not 64 per warpgroup: wgmma's tile is m64 (PTX ISA, wgmma.mma_async).
"""

from __future__ import annotations

from dataclasses import replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.axes import constant
from tilec.ir.build import add, mul
from tilec.ir.expr import Expr, Int, Iota, Op, Var, transform
from tilec.ir.nodes import Axis, For, Let, Program, Role, Stmt, map_exprs, rewrite, walk
from tilec.passes.scope import fresh, key_axes

ROWS = 64  # of one warpgroup


def split_rows(program: Program, warpgroups: int) -> Program:
    """The program on `warpgroups` warpgroups.  Raises ValueError if its rows were already split."""
    (role,) = program.roles
    if role.unit != "block":
        raise ValueError(f"the rows are already split over {role.count} {role.unit}s")
    q, _ = key_axes(program)
    (size,) = {a.size for b in role.buffers for a in b.axes if a.name == q}
    rows = constant(size, dict(program.tile))
    if rows != ROWS * warpgroups:
        raise ScheduleFault(
            "E0812",
            f"a tile of {rows} rows is not {ROWS} for each of {warpgroups} warpgroups",
            note="a warpgroup's matrix instruction has 64 rows",
            hint=f"`{q} = {ROWS * warpgroups}` is the nearest",
        )
    wg, row = fresh(program, "wg", f"{q}_row")
    body = _shifted(role.body, q, mul(ROWS, wg), row)
    buffers = tuple(
        replace(b, axes=tuple(Axis(q, Int(ROWS)) if a.name == q else a for a in b.axes)) for b in role.buffers
    )
    return program.with_(roles=(Role("consumer", "warpgroup", warpgroups, body, wg.name, buffers=buffers),))


def _shifted(body: tuple[Stmt, ...], q: str, offset: Expr, row: Var) -> tuple[Stmt, ...]:
    """`iota(q)` counts from this instance's first row; `row` names it where the tile's first row has a name."""
    first = next(s.proof.rows[0] for s in walk(body) if isinstance(s, For) and s.proof is not None)

    def lanes(e: Expr) -> Expr | None:
        match e:
            case Op("+", (x, Op("+", (y, Iota(axis))))) if axis == q and y is offset:
                return Op("+", (row if x is first and isinstance(first, Var) else add(x, offset), Iota(q)))
            case Iota(axis) if axis == q:
                return Op("+", (offset, e))
        return None

    def rule(s: Stmt) -> tuple[Stmt, ...]:
        s = map_exprs(s, lambda e: transform(e, lanes))
        if isinstance(s, Let) and isinstance(first, Var) and s.name == first.name:
            return (s, Let(row.name, add(first, offset)))
        return (s,)

    return rewrite(body, rule)
