"""choose_tiles: sizes of the tiles, warps and pipeline stages.

Contract.  In: a program with default tile constants.  Out: the same program with the constants, the role's warps and the stages
of its key loops set; feature guards (`iota(d) < 128`) stay only where the tile is wider than the feature.  Results differ by
the order of accumulation alone.

Who decides, first match wins: a `tile`, `stages` or `warps` line; the tuning record (`tune.record`) among what `tune` lines
allow; the target's cost model (`tune.model`).  What was chosen and by whom is a note in the program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.ir.attention import Attention, least_depth
from tilec.ir.build import all_of
from tilec.ir.expr import TRUE, Expr, Int, Iota, Op, Var, transform
from tilec.ir.nodes import For, Program, Stmt, map_exprs, rewrite


@dataclass(frozen=True)
class Choice:
    """Tile of `q` rows and `k` keys; `by`: spec, record or model."""

    q: int
    k: int
    warps: int | None
    stages: int | None
    by: str


def choose_tiles(program: Program, attn: Attention, choice: Choice, *, power_of_two: bool) -> Program:
    """The program with these tiles.  `power_of_two`: feature tiles are padded to one (at least 16), as Triton needs."""
    role = program.roles[0]
    sizes = dict(program.tile)
    axes = {a.name: a.size for b in role.buffers for a in b.axes}
    for name, constant in axes.items():
        assert isinstance(constant, Var)
        extent = attn.index(name).extent
        if name == attn.q:
            sizes[constant.name] = choice.q
        elif name == attn.k:
            sizes[constant.name] = choice.k
        elif isinstance(extent, Int):
            sizes[constant.name] = padded(extent.value, depth(attn, name)) if power_of_two else extent.value

    def exact(e: Expr) -> Expr | None:
        match e:
            case Op("<", (Iota(axis), Int(extent))):
                size = axes[axis]
                return TRUE if isinstance(size, Var) and sizes[size.name] == extent else None
            case Op("and", args):
                return all_of(*args)
        return None

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        new = map_exprs(s, lambda e: transform(e, exact))
        if isinstance(new, For) and new.proof is not None:
            new = replace(new, stages=choice.stages)
        return (new,)

    note = f"tiles by {choice.by}"
    return program.with_(
        tile=tuple(sizes.items()),
        roles=(replace(role, warps=choice.warps, body=rewrite(role.body, rule)),),
        notes=(*program.notes, note),
    )


def padded(extent: int, least: int = 16) -> int:
    """The power of two a feature tile is padded to."""
    return max(least, 1 << max(0, extent - 1).bit_length())


def depth(attn: Attention, feature: str) -> int:
    """The least tile of a feature index: what the products that contract it need."""
    pairs = zip(attn.contracted, attn.pairs, strict=True)
    return max((least_depth(attn.tensor(key).dtype) for name, (_, key) in pairs if name == feature), default=16)
