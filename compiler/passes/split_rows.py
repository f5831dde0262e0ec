"""split_rows: the rows of a tile over warpgroups, 64 to each, or warps or waves, 16 or 32 to each, and first over the CTAs of a
cluster.

Contract.  In: a program of one sequential `block` role.  Out: the same statements in a role `consumer` of n warpgroups (or
warps, or waves); register tiles have TQ / n rows, and row i of instance `wg` (`w`) is row (TQ / n) * wg + i of the tile.  Each
instance still loads all that it needs.  Bounds of loops stay those of the whole tile: instances take the same steps, so that
they can share what is loaded.  Rows are independent of each other; no result changes.

With `cluster` CTAs to a tile, CTA `rank` of the cluster has its rows from TQ / cluster * rank on, and block number cta // cluster
is the tile's.  All of them walk the keys of the whole tile.

Raises ScheduleFault E0812 where the rows do not fit the unit's matrix instruction: wgmma's tile is m64, that of a warp's
mma.sync m16 (PTX ISA, wgmma.mma_async, mma.sync), of which a thread's registers hold two; a wave's MFMA has 16 or 32 columns,
which are its rows (AMD matrix instruction calculator, cdna3).
"""

from __future__ import annotations

from dataclasses import replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.axes import constant
from tilec.ir.build import add, floordiv, mul
from tilec.ir.expr import Expr, Int, Iota, Op, Var, substitute, transform
from tilec.ir.nodes import Axis, For, Let, Program, Role, Stmt, Unit, map_exprs, rewrite, walk
from tilec.passes.scope import fresh, key_axes

ROWS = 64  # of one warpgroup
LEGAL: dict[Unit, tuple[int, ...]] = {"warpgroup": (ROWS,), "warp": (16, 32), "wave": (32, 16)}  # rows of one instance
STEMS: dict[Unit, str] = {"warpgroup": "wg", "warp": "w", "wave": "w"}


def split_rows(program: Program, count: int, cluster: int = 1, *, unit: Unit = "warpgroup") -> Program:
    """The program on `count` units of each of `cluster` CTAs.  Raises ValueError if its rows were already split."""
    (role,) = program.roles
    if role.unit != "block":
        raise ValueError(f"the rows are already split over {role.count} {role.unit}s")
    q, _ = key_axes(program)
    (size,) = {a.size for b in role.buffers for a in b.axes if a.name == q}
    total, legal = constant(size, dict(program.tile)), LEGAL[unit]
    rows = next((n for n in legal if total == n * count * cluster), None)
    if rows is None:
        near = min((n * count * cluster for n in legal), key=lambda n: abs(n - (total or 0)))
        raise ScheduleFault(
            "E0812",
            f"a tile of {total} rows is not {' or '.join(map(str, legal))} for each of {count * cluster} {unit}s",
            note=f"a {unit}'s matrix instruction has {legal[0]} rows",
            hint=f"`{q} = {near}` is the nearest",
        )
    number, row, rank = fresh(program, STEMS[unit], f"{q}_row", "rank")
    offset, body, grid = mul(rows, number), role.body, program.grid
    if cluster > 1:
        if grid.cluster > 1:
            raise ValueError(f"the grid has clusters of {grid.cluster} already")
        offset = add(mul(rows * count, rank), offset)
        body = in_clusters(body, cluster)
        grid = replace(grid, ctas=mul(cluster, grid.ctas), cluster=cluster, rank=rank.name)
    body = _shifted(body, q, offset, row)
    buffers = tuple(
        replace(b, axes=tuple(Axis(q, Int(rows)) if a.name == q else a for a in b.axes)) for b in role.buffers
    )
    consumer = Role("consumer", unit, count, body, number.name, buffers=buffers)
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
