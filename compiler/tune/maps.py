"""Which block map a kernel gets on a chip of dies: the one that the simulator (`caches`) ranks first for its class of masks.

Lengths and batch are no part of a binary, so a map is chosen once for all of them; what depends on them is in the map's own
formulas (`passes.block_order`).  The ranking is kept as text, `maps.toml`, which `rank` writes and a test holds against the
simulator.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from tilec.ir.expr import Expr
from tilec.passes.map_blocks import BlockMap
from tilec.targets import Target
from tilec.tune.classes import MaskClass

WAVES = 4  # tiles of a chip-wide section for each unit: fewer leave long tails, more evict what dies share; simulated


@dataclass(frozen=True)
class Heads:
    """What a map must know of keys: bytes of one key and its value, heads that read the same ones, keys of a sequence."""

    bytes_per_key: int
    sharing: int
    keys: Expr


def candidates(target: Target, heads: Heads) -> dict[str, BlockMap]:
    """Maps by the name that the record gives them."""
    n, group, span = target.xcds, heads.sharing, WAVES * target.units
    cached = BlockMap(l2=target.l2, bytes_per_key=heads.bytes_per_key, sharing=group, keys=heads.keys)
    return {
        "linear": BlockMap(),
        "block_first": BlockMap("block_first"),
        "longest_first": replace(cached, order="longest_first"),
        "fold": BlockMap(fold=True),
        "runs": BlockMap(xcds=n),
        "runs_longest_first": BlockMap("longest_first", n),
        "runs_fold": BlockMap(xcds=n, fold=True),
        "heads": BlockMap(xcds=n, chunk=group),
        "heads_longest_first": BlockMap("longest_first", n, chunk=group, span=span),
        "heads_fold": BlockMap(xcds=n, chunk=group, fold=True),
    }


@dataclass(frozen=True)
class Ranked:
    """A line of the record.  `worst`: the largest time of a grid over linear's among the cells, `time` the geometric mean, `l2`
    the mean hit rate."""

    target: str
    mask: str
    grouped: bool
    map: str
    worst: float
    time: float
    l2: float


@cache
def record() -> tuple[Ranked, ...]:
    """All lines, the best map of each class first."""
    text = resources.files("tilec.tune").joinpath("maps.toml").read_text(encoding="utf-8")
    return read_record(text)


def read_record(text: str) -> tuple[Ranked, ...]:
    """The lines that a record's text has."""
    return tuple(
        Ranked(c["target"], c["mask"], c["grouped"], **line) for c in tomllib.loads(text)["class"] for line in c["maps"]
    )


def best(target: Target, mask: MaskClass, heads: Heads) -> str | None:
    """The name of the map for masks of that class; None for a target that the record does not have."""
    wanted = (target.name, "full" if mask == "even" else mask, heads.sharing > 1)
    return next((r.map for r in record() if (r.target, r.mask, r.grouped) == wanted), None)
