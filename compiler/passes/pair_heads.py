"""pair_heads: two query heads that read one key head, at the same rows, for the two CTAs of a cluster.

Contract.  In: a program whose cluster `map` is the linear one of `lower_attention`.  Out: the same tiles, in pairs of CTAs:
coordinate h counts pairs (`h_pair`), and CTA `rank` of a cluster has head 2 * h_pair + rank.  A key head h // G of an even G is
h_pair // (G / 2), so what both CTAs read does not depend on `rank`.  Both walk the same keys: nothing is walked that one
of them alone would skip.  No result changes.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.attention import Attention
from tilec.ir.build import add, floordiv, mul
from tilec.ir.expr import Expr, Int, Op, Var, free_vars, transform
from tilec.ir.nodes import Cluster, Let, Program, Stmt, map_exprs, rewrite
from tilec.passes.lower_attention import grid_of, map_lets
from tilec.passes.scope import fresh

PAIR = 2


def pairable(attn: Attention) -> str | None:
    """The fastest index of heads that come in pairs which share keys and values; None if there is none."""
    read = (*(key for _, key in attn.pairs), attn.value)
    indices = [e for name in read for e in attn.tensor(name).index]
    for i in reversed(attn.outer):
        uses = [e for e in indices if i.name in free_vars(e)]
        even = isinstance(i.extent, Int) and i.extent.value % PAIR == 0
        if even and all(_group(e, i.name) % PAIR == 0 for e in uses):
            return i.name
    return None


def _group(e: Expr, name: str) -> int:
    """G of `name // G`; 1 for anything else."""
    match e:
        case Op("//", (Var(n), Int(group))) if n == name:
            return group
    return 1


def pair_heads(program: Program, name: str) -> Program:
    """The program in clusters of two.  Raises ValueError if its blocks are mapped already."""
    grid = program.grid
    if grid.order != "linear" or grid.cluster > 1:
        raise ValueError(f"the block map is already {grid.order}, in clusters of {grid.cluster}")
    pair, rank = fresh(program, f"{name}_pair", "rank")
    coords = tuple((pair.name, floordiv(n, PAIR)) if c == name else (c, n) for c, n in grid.coords)
    lets = (Cluster("map", map_lets(coords, floordiv(Var("cta"), PAIR))), Let(name, add(mul(PAIR, pair), rank)))

    def shared(e: Expr) -> Expr | None:
        group = _group(e, name)
        return floordiv(pair, group // PAIR) if group % PAIR == 0 else None

    def rule(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Cluster) and s.kind == "map":
            return lets
        return (map_exprs(s, lambda e: transform(e, shared)),)

    found = grid_of(coords)
    (role,) = program.roles
    return program.with_(
        grid=replace(found, ctas=mul(PAIR, found.tiles), cluster=PAIR, rank=rank.name),
        roles=(replace(role, body=rewrite(role.body, rule)),),
    )
