"""Ranks block maps by the simulator over a grid of shapes, and writes the record that `maps` reads.

    python -m tilec.tune.rank > compiler/tune/maps.toml

First come maps whose grids take no longer than linear's in any cell, within TIE; among them the shortest mean time; among those
within TIE of it the highest mean hit rate of the L2, since bytes that do not travel leave power to the products.  Tiles are
PORTABLE ones; a test holds the choice for NATIVE ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from statistics import fmean, geometric_mean

import numpy as np
from numpy.typing import NDArray

from tilec.ir.expr import Var
from tilec.targets import Target, target
from tilec.tune.blocks import Taken, plain, taken
from tilec.tune.caches import Traffic, Work, dies_of, simulate
from tilec.tune.maps import Heads, Ranked, candidates

Ints = NDArray[np.int64]

TIE = 0.005  # two seeds of the jitter differ by less
WINDOW = 1024  # of the narrow mask
BYTES = 2 * 2  # of a feature of a key and of its value in bf16
LENGTHS = (1024, 4096, 16384, 131072)
HEADS = {False: ((4, 1), (12, 1), (32, 1), (128, 1)), True: ((16, 4), (24, 2), (32, 8), (128, 16))}  # all, and sharing
BUDGET = 100_000  # accesses of a cell that are simulated in detail


@dataclass(frozen=True)
class Tiles:
    """Of a kernel: rows, keys of a step, features of a head, and clocks of the step; None for those of its products alone."""

    rows: int = 128
    keys: int = 64
    features: int = 128
    clocks: float | None = None


PORTABLE = Tiles()
# What `tune.cdna` begins with, and what the model of cycles says of it.
NATIVE = (Tiles(256, 128, 64, 6528), Tiles(256, 64, 128, 4496), Tiles(256, 32, 192, 3694), Tiles(128, 32, 256, 3165))


def seen(mask: str, row: Ints, keys: int, t: Tiles) -> tuple[Ints, Ints]:
    """First and last step, plus one, of tiles of rows.  KeyError for a class that is not ranked."""
    ends = np.minimum(keys, -(-(row + 1) * t.rows // t.keys))
    return {
        "full": (0 * row, 0 * row + keys),
        "growing": (0 * row, ends),
        "narrow": (np.maximum(0, row * t.rows - WINDOW) // t.keys, ends),
    }[mask]


MASKS = ("full", "growing", "narrow")


@dataclass(frozen=True)
class Cell:
    """A call: so many rows and keys of each of so many heads, batch entries counted as heads, `sharing` heads to a key head."""

    mask: str
    length: int
    heads: int
    sharing: int


def work_of(found: Taken, stream: Ints, seen: tuple[Ints, Ints], clocks: float, size: int, resident: int = 1) -> Work:
    """The work of tiles that blocks have taken."""
    first = np.searchsorted(found.block, np.arange(found.ctas + 1))
    tile = np.zeros(len(found.block), np.int64)
    for place in found.at.values():
        tile = tile * (int(place.max(initial=0)) + 1) + place
    return Work(first, stream, *seen, tile, clocks, size, resident)


@cache
def simulated(on: str, cell: Cell, name: str, t: Tiles = PORTABLE) -> Traffic:
    """One map in one cell, of bf16 heads.  ValueError for a target whose dies are not described."""
    machine = target(on)
    dies = dies_of(machine)
    if dies is None:
        raise ValueError(f"the dies of {on} are not described")
    maps = candidates(machine, Heads(BYTES * t.features, cell.sharing, Var("N")))
    rows, keys = -(-cell.length // t.rows), -(-cell.length // t.keys)
    found = taken(plain(maps[name]), {"R": rows, "H": cell.heads, "N": cell.length})
    clocks = t.clocks or 4 * t.rows * t.keys * t.features / machine.matrix["bf16"]
    walked = seen(cell.mask, found.at["row"], keys, t)
    work = work_of(found, found.at["head"] // cell.sharing, walked, clocks, t.keys * BYTES * t.features)
    return simulate(work, dies, budget=BUDGET)


def cells(mask: str, grouped: bool) -> list[Cell]:
    """Those that a class is ranked over."""
    return [Cell(mask, length, *heads) for length in LENGTHS for heads in HEADS[grouped]]


def rank(machine: Target, mask: str, grouped: bool, some: Sequence[Cell]) -> list[Ranked]:
    """All maps, the best first.  Raises as `simulated`."""
    out = []
    for name in candidates(machine, Heads(BYTES * PORTABLE.features, 1, Var("N"))):
        runs = [simulated(machine.name, c, name) for c in some]
        lines = [simulated(machine.name, c, "linear") for c in some]
        times = [a.makespan / b.makespan for a, b in zip(runs, lines, strict=True)]
        worst, time, l2 = (round(x, 4) for x in (max(times), geometric_mean(times), fmean(r.l2 for r in runs)))
        out.append(Ranked(machine.name, mask, grouped, name, worst, time, l2))
    least = min(r.time for r in out if r.worst <= 1 + TIE)

    def key(r: Ranked) -> tuple[bool, bool, float]:
        near = r.time <= least * (1 + TIE)
        return r.worst > 1 + TIE, not near, -r.l2 if near else r.time

    return sorted(out, key=key)


HEAD = """# Block maps as the simulator ranks them, the best of each class first.  Written by
#     python -m tilec.tune.rank > compiler/tune/maps.toml
# Predicted, not measured: `worst` is the largest simulated time over linear's, `time` the geometric mean of them, `l2` the mean
# hit rate, over the cells of `tune.rank`.
"""


def text(lines: Iterable[Ranked]) -> str:
    """TOML of the record."""
    out = HEAD
    for (name, mask, grouped), some in groupby(lines, key=lambda r: (r.target, r.mask, r.grouped)):
        out += f'\n[[class]]\ntarget = "{name}"\nmask = "{mask}"\ngrouped = {str(grouped).lower()}\nmaps = [\n'
        out += "".join(f'  {{ map = "{r.map}", worst = {r.worst}, time = {r.time}, l2 = {r.l2} }},\n' for r in some)
        out += "]\n"
    return out


def main() -> None:
    """Writes the record for gfx942."""
    from tilec.terminal import bar

    machine, classes = target("gfx942"), [(mask, grouped) for mask in MASKS for grouped in HEADS]
    with bar() as say:

        def lines() -> Iterator[Ranked]:
            for n, (mask, grouped) in enumerate(classes):
                say(f"{mask}, {'grouped' if grouped else 'single'} heads", n, len(classes))
                yield from rank(machine, mask, grouped, cells(mask, grouped))

        sys.stdout.write(text(lines()))


if __name__ == "__main__":
    main()
