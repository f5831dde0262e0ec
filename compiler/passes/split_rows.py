"""split_rows: the rows of a tile over warpgroups, 64 to each, and first over the CTAs of a cluster.

Contract.  In: a program of one sequential `block` role.  Out: the same statements in a role `consumer` of n warpgroups; register
tiles have TQ / n rows, and row i of warpgroup `wg` is row (TQ / n) * wg + i of the tile.  Each warpgroup still loads all that it
needs.  Bounds of loops stay those of the whole tile: warpgroups take the same steps, so that they can share what is loaded.
Rows are independent of each other; no result changes.

With `cluster` CTAs to a tile, CTA `rank` of the cluster has its rows from TQ / cluster * rank on, and block number cta // cluster
is the tile's.  All of them walk the keys of the whole tile.

Raises ScheduleFault E0812 where the rows are not 64 per warpgroup: wgmma's tile is m64 (PTX ISA, wgmma.mma_async).
"""

from __future__ import annotations

from dataclasses import replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.axes import constant
from tilec.ir.build import add, floordiv, mul
from tilec.ir.expr import Expr, Int, Iota, Op, Var, substitute, transform
from tilec.ir.nodes import Axis, For, Let, Program, Role, Stmt, map_exprs, rewrite, walk
from tilec.passes.scope import fresh, key_axes

ROWS = 64  # of one warpgroup


def split_rows(program: Program, warpgroups: int, cluster: int = 1) -> Program:
    """The program on `warpgroups` warpgroups of each of `cluster` CTAs.  Raises ValueError if its rows were already split."""
    (role,) = program.roles
    if role.unit != "block":
        raise ValueError(f"the rows are already split over {role.count} {role.unit}s")
    q, _ = key_axes(program)
    (size,) = {a.size for b in role.buffers for a in b.axes if a.name == q}
    rows = constant(size, dict(program.tile))
    if rows != ROWS * warpgroups * cluster:
        raise ScheduleFault(
            "E0812",
            f"a tile of {rows} rows is not {ROWS} for each of {warpgroups * cluster} warpgroups",
            note="a warpgroup's matrix instruction has 64 rows",
            hint=f"`{q} = {ROWS * warpgroups * cluster}` is the nearest",
        )
    wg, row, rank = fresh(program, "wg", f"{q}_row", "rank")
    offset, body, grid = mul(ROWS, wg), role.body, program.grid
    if cluster > 1:
        if grid.cluster > 1:
            raise ValueError(f"the grid has clusters of {grid.cluster} already")
        offset = add(mul(ROWS * warpgroups, rank), offset)
        body = in_clusters(body, cluster)
        grid = replace(grid, ctas=mul(cluster, grid.ctas), cluster=cluster, rank=rank.name)
    body = _shifted(body, q, offset, row)
    buffers = tuple(
        replace(b, axes=tuple(Axis(q, Int(ROWS)) if a.name == q else a for a in b.axes)) for b in role.buffers
    )
    consumer = Role("consumer", "warpgroup", warpgroups, body, wg.name, buffers=buffers)
    return program.with_(grid=grid, roles=(consumer,))


def in_clusters(body: tuple[Stmt, ...], cluster: int) -> tuple[Stmt, ...]:
    """The body of a block number, run by `cluster` CTAs each."""
    env: dict[Expr, Expr] = {Var("cta"): floordiv(Var("cta"), cluster)}
    return rewrite(body, lambda s: (map_exprs(s, lambda e: substitute(e, env)),))


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
