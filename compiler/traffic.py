"""The simulated traffic and time of a kernel's own grid: the tiles that its blocks take, the key tiles that its loops visit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilec.budget import width
from tilec.count import key_loops, tile_of
from tilec.ir.attention import Attention
from tilec.ir.expr import free_vars
from tilec.ir.nodes import Compute, Program, walk
from tilec.oracle.scalar import evaluate
from tilec.passes.names import distinct_indices
from tilec.pipeline import bytes_per_key
from tilec.targets import Target
from tilec.tune import model
from tilec.tune.blocks import taken
from tilec.tune.bound import bound
from tilec.tune.caches import BUDGET, Dies, Traffic, simulate
from tilec.tune.rank import work_of

Ranges = tuple[tuple[str, ...], dict[tuple[int, ...], tuple[int, int]]]


def shape_of(p: Program, attn: Attention, lowered: Program | None = None) -> model.Shape:
    """Tiles, waves and stages of a program with tiles; `lowered`: the one whose waves they are, where roles came later."""
    inside = distinct_indices(attn)
    stages = next((loop.stages for loop in key_loops(p) if loop.stages), None)
    roles = (lowered or p).roles
    waves = sum(r.count if r.unit == "wave" else r.warps or 4 for r in roles)
    return model.Shape(tile_of(p, inside.q), tile_of(p, inside.k), waves, stages or 1)


def rescales_seldom(lowered: Program) -> bool:
    """Whether a step leaves out to multiply what was gathered where the maximum in use stays (`passes.rescale_seldom`)."""
    return any(isinstance(s, Compute) and s.unless is not None for r in lowered.roles for s in walk(r.body))


def step_clocks(attn: Attention, target: Target, shape: model.Shape, *, seldom: bool = False) -> float:
    """Clocks of a key step of a block, of which `model.resident` share a unit: the static bound, else the products alone.
    `seldom` as `tune.bound.bound` takes it."""
    found = bound(attn, target, shape.q, shape.k, shape.warps, model.resident(attn, target, shape), seldom=seldom)
    if found is not None:
        return found.clocks
    features = sum(width(attn, d) or 0 for d in (*attn.contracted, attn.feature))
    return 2 * shape.q * shape.k * features / target.matrix[attn.tensor(attn.value).dtype]


def traffic_of(
    p: Program,
    attn: Attention,
    target: Target,
    dies: Dies,
    sizes: Mapping[str, int],
    ranges: Ranges,
    shape: model.Shape,
    clocks: float,
    budget: int = BUDGET,
    resident: int | None = None,
) -> Traffic:
    """The simulation of a program with a block map, of that shape, whose key step takes so many clocks.  `ranges`: as
    `count.key_ranges`, of `sizes`, every symbol of the call.  `resident`: blocks on a unit, where that is known."""
    found, attn = taken(p, sizes), distinct_indices(attn)  # as in the program
    names, table = ranges
    at = np.stack([found.at[n] for n in names], axis=-1) if names else np.zeros((len(found.block), 0), np.int64)
    distinct, back = np.unique(at, axis=0, return_inverse=True)
    seen = np.array([table[tuple(row)] for row in distinct.tolist()], np.int64).reshape(-1, 2)[back.reshape(-1)]
    outer = {i.name for i in attn.outer}
    inner = {attn.k, *attn.contracted, attn.feature}
    index = [e for e in attn.tensor(attn.pairs[0][1]).index if not free_vars(e) & inner]
    columns = [np.broadcast_to(evaluate(e, found.at, _no_tensor), found.block.shape) for e in index]
    columns += [found.at[n] for n, _ in p.grid.coords[1:] if n not in outer]  # residue classes
    columns = [np.zeros_like(found.block), *columns]
    streams = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
    size, blocks = shape.k * bytes_per_key(attn), resident or model.resident(attn, target, shape)
    return simulate(work_of(found, streams, (seen[:, 0], seen[:, 1]), clocks, size, blocks), dies, budget=budget)


def _no_tensor(tensor: str, index: tuple[Any, ...]) -> Any:
    raise ValueError(f"a key head is looked up in {tensor}")
