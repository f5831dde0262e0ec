"""choose_tiles: sizes of the tiles, warps and pipeline stages.

Contract.  In: a program with default tile constants.  Out: the same program with the constants, the role's warps and the stages
of its key loops set; feature guards (`iota(d) < 128`) stay only where the tile is wider than the feature.  Results differ by
the order of accumulation alone.

    PAD       `exact`: a feature tile has its extent.  `steps`: one that a product contracts is padded to whole steps of a matrix
              instruction, with zeros; `all`: so are the others; a number: to multiples of it, as instructions of that many rows
              need.  `power`: each is padded to a power of two of at least 16, as Triton needs

Who decides, first match wins: a `tile`, `stages` or `warps` line; the tuning record (`tune.record`) among what `tune` lines
allow; the target's cost model (`tune.model`).  What was chosen and by whom is a note in the program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilec.ir.attention import Attention, least_depth
from tilec.ir.build import all_of
from tilec.ir.expr import TRUE, Expr, Int, Iota, Op, Var, transform
from tilec.ir.nodes import For, Program, Stmt, map_exprs, rewrite

Padding = Literal["exact", "steps", "all", "power"] | int


@dataclass(frozen=True)
class Choice:
    """Tile of `q` rows and `k` keys; `by`: spec, record or model."""

    q: int
    k: int
    warps: int | None
    stages: int | None
    by: str


def choose_tiles(program: Program, attn: Attention, choice: Choice, *, pad: Padding) -> Program:
    """The program with these tiles.  `pad`: rule PAD."""
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
            sizes[constant.name] = _feature_tile(attn, name, extent.value, pad)

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


def _feature_tile(attn: Attention, name: str, extent: int, pad: Padding) -> int:
    """Rule PAD."""
    match pad:
        case int():
            return -(-extent // pad) * pad
        case "power":
            return padded(extent, depth(attn, name))
        case "steps" | "all" if pad == "all" or name in attn.contracted:
            step = depth(attn, name)
            return -(-extent // step) * step
        case _:
            return extent


def padded(extent: int, least: int = 16) -> int:
    """The power of two a feature tile is padded to."""
    return max(least, 1 << max(0, extent - 1).bit_length())


def depth(attn: Attention, feature: str) -> int:
    """The least tile of a feature index: what the products that contract it need."""
    pairs = zip(attn.contracted, attn.pairs, strict=True)
    return max((least_depth(attn.tensor(key).dtype) for name, (_, key) in pairs if name == feature), default=16)
