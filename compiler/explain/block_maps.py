"""What `explain` says of block maps on a chip of dies: for each, what the caches see and how long the grid takes, as simulated.

The simulated work is the kernel's own: the tiles that its blocks take under each map, and the key tiles that its loops visit.
All of it is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilec.count import key_ranges
from tilec.ir.attention import Attention
from tilec.ir.nodes import Program
from tilec.passes.map_blocks import map_blocks
from tilec.pipeline import bytes_per_key, heads_per_key_head, keys_in_memory
from tilec.shapes import call_sizes
from tilec.targets import Target
from tilec.traffic import rescales_seldom, shape_of, step_clocks, traffic_of
from tilec.tune.caches import BUDGET, Dies, Traffic, dies_of
from tilec.tune.maps import Heads, candidates
from tilec.tune.model import resident

if TYPE_CHECKING:
    from tilec.predict.times import BlockTime

FEW = BUDGET // 6  # accesses of a map that are simulated in detail: a reader waits for ten maps


@dataclass(frozen=True)
class MapFacts:
    """`traffic` of each map by its name in `tune.maps`; `chosen`: the program's, which is there as well; `by`: who chose.
    `step`: clocks of a key step of a block, of which `resident` share a unit, by `model`."""

    dies: Dies
    clock: int
    chosen: str
    by: str
    traffic: Mapping[str, Traffic]
    step: float
    resident: int
    model: str


def map_facts(
    before: Program,
    mapped: Program,
    lowered: Program,
    attn: Attention,
    target: Target,
    sizes: Mapping[str, int],
    by_line: bool,
    block: BlockTime | None = None,
) -> MapFacts | None:
    """`before` has tiles and no map yet, `mapped` the chosen one, `lowered` its roles.  `block`: what the model of cycles says of
    its machine code; without it a step has the clocks of the static bound.

    None for targets whose dies are not described, and for kernels whose visited tiles depend on tensors."""
    dies = dies_of(target)
    full = call_sizes(attn, sizes)
    ranges = None if dies is None or attn.index(attn.q).storage.kind == "packed" else key_ranges(before, full)
    if dies is None or ranges is None:
        return None
    heads = Heads(bytes_per_key(attn), heads_per_key_head(attn), keys_in_memory(attn))
    maps = candidates(target, heads)
    programs = {n: map_blocks(before, m) for n, m in maps.items()}
    grid = mapped.grid
    chosen = next(
        (n for n, p in programs.items() if (p.grid.order, p.grid.numbers) == (grid.order, grid.numbers)), None
    )
    if chosen is None:
        chosen = grid.order
        programs[chosen] = mapped
    shape = shape_of(before, attn, lowered)
    if block is None:
        step, model = step_clocks(attn, target, shape, seldom=rescales_seldom(lowered)), "static bound"
        blocks = resident(attn, target, shape)
    else:
        step, model, blocks = block.step, "cycle model", block.timing.resident
    traffic = {
        n: traffic_of(p, attn, target, dies, full, ranges, shape, step, FEW, blocks) for n, p in programs.items()
    }
    by = "the spec's line" if by_line else "the record of simulations"
    return MapFacts(dies, target.sustained_clock, chosen, by, traffic, step, blocks, model)


def to_data(f: MapFacts) -> dict[str, Any]:
    """JSON values."""
    rows = {
        n: {
            "l2": t.l2,
            "llc": t.llc,
            "memory": t.memory,
            "seconds": t.makespan / f.clock,
            "ideal": t.ideal / f.clock,
            "method": t.method,
        }
        for n, t in f.traffic.items()
    }
    step = {"step_clocks": f.step, "resident": f.resident, "step_model": f.model}
    return {"chosen": f.chosen, "by": f.by, **step, "maps": rows}


def lines(f: MapFacts) -> list[str]:
    """For a person, the quickest first."""
    d = f.dies
    sampled = any(t.method == "sampled" for t in f.traffic.values())
    how = "from samples of its accesses" if sampled else "from all of its accesses"
    out = ["", f"block maps on {d.dies} dies of {d.units} units with {d.l2 >> 20} MB of L2, as simulated {how}"]
    wide = max(map(len, f.traffic))
    out += [f"  {'':{wide}}      L2  last level   memory        time  over even"]
    for n, t in sorted(f.traffic.items(), key=lambda item: item[1].makespan):
        rates = f"{t.l2:7.1%} {t.llc:11.1%} {t.memory:8.1%}"
        time = f"{t.makespan / f.clock * 1e6:9.1f} us {t.makespan / t.ideal if t.ideal else 1:10.3f}"
        out.append(f"  {n:{wide}} {rates} {time}{'  chosen' if n == f.chosen else ''}")
    out.append(f"  a step of a block takes {f.step:,.0f} clocks by the {f.model}, {f.resident} to a unit")
    return [*out, f"  chosen by {f.by}; predicted, not measured"]
