"""From an Attention to a fully lowered tile program: the passes of each target, as a list to read.

lower_attention   textbook tile loops
prove_mask        trim and split the key loops; residue order
online_softmax    one walk over the keys
choose_tiles      sizes, warps, stages
map_blocks        order of the blocks
tidy              drop what nothing uses
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilec.backends.base import backend as half
from tilec.ir import storage
from tilec.ir.attention import BYTES, Attention, least_depth
from tilec.ir.build import mul
from tilec.ir.expr import Expr, Int, Op, Var, free_vars
from tilec.ir.nodes import Program
from tilec.legality import check_schedule, check_target
from tilec.passes.choose_tiles import Choice, Padding, choose_tiles
from tilec.passes.lower_attention import lower_attention
from tilec.passes.map_blocks import BlockMap, map_blocks
from tilec.passes.names import distinct_indices
from tilec.passes.online_softmax import online_softmax
from tilec.passes.prove_mask import MaskOptions, prove_mask, residue_order
from tilec.passes.tidy import tidy
from tilec.passes.use_boxes import use_boxes
from tilec.route import Refusal, first
from tilec.schedule import EMPTY, Schedule
from tilec.targets import Backend, Target
from tilec.targets import target as target_of
from tilec.tune import maps, model, record
from tilec.tune.classes import mask_class

CPU_TILE = 64  # rows and keys of a tile where the interpreter runs: NumPy's cost is per operation, not per element


@dataclass(frozen=True)
class Case:
    """What decides: the kernel, the machine, who prints, what the spec says of the how, and what is known of the calls
    (`backends.base`, Variants)."""

    attn: Attention
    target: Target
    backend: Backend
    schedule: Schedule
    features: frozenset[str]

    @property
    def boxes(self) -> bool:
        """Whether tiles of keys may come through tensor maps: needs dense storage walked in order."""
        dense = self.attn.index(self.attn.k).storage.kind == "dense"
        in_order = not (mask_options(self).residue and residue_order(self.attn))
        return (
            "aligned" in self.features
            and self.backend.name == "triton"
            and "tma" in self.target.features
            and dense
            and in_order
        )


Pass = tuple[str, Callable[[Program], Program]]


def lower(
    attn: Attention,
    target: str,
    schedule: Schedule | None = None,
    backend: str | None = None,
    *,
    features: frozenset[str] = frozenset(),
) -> Program:
    """The lowered program.  Raises Faults (E08, E09) for a schedule or a dtype that the target or backend cannot take."""
    *_, (_, program) = stages(attn, target, schedule, backend, features=features)
    return program


def stages(
    attn: Attention,
    target: str,
    schedule: Schedule | None = None,
    backend: str | None = None,
    *,
    features: frozenset[str] = frozenset(),
) -> Iterator[tuple[str, Program]]:
    """(pass name, program after it), in order.  Without a backend: of the target's first that takes calls of these features,
    the kernel and every line of its schedule."""
    yield from routed(attn, target, schedule, backend, features=features).passes


@dataclass(frozen=True)
class Routed:
    """`passes` are those of `backend`; `refused`: the ones before it in the target's order."""

    backend: Backend
    passes: tuple[tuple[str, Program], ...]
    refused: tuple[Refusal, ...]


def routed(
    attn: Attention,
    target: str,
    schedule: Schedule | None = None,
    backend: str | None = None,
    *,
    features: frozenset[str] = frozenset(),
) -> Routed:
    """What `stages` lists, with whose it is."""
    machine, lines = target_of(target), schedule or EMPTY

    def attempt(b: Backend) -> tuple[Backend, tuple[tuple[str, Program], ...]]:
        by = half(b.name)
        check_target(attn, machine)
        check_schedule(attn, lines, machine, b)
        by.check(attn, target, features & by.features)
        if b.prints:
            from tilec.native import trails

            return b, next(trails(attn, target, lines))
        return b, tuple(_portable(Case(attn, machine, b, lines, features & by.features)))

    (chosen, found), refused = first(machine, backend, attempt)
    return Routed(chosen, found, refused)


def _portable(case: Case) -> Iterator[tuple[str, Program]]:
    program = lower_attention(distinct_indices(case.attn), case.target.name)
    if "unit" in case.features:
        rows = tuple(replace(t, mode="row") if t.mode == "param" else t for t in program.tensors)
        program = program.with_(tensors=rows)
    yield "lower_attention", program
    for name, run in passes(case):
        program = run(program)
        yield name, program


def passes(case: Case) -> tuple[Pass, ...]:
    """The passes after lower_attention, with what they were told."""
    attn = distinct_indices(case.attn)
    pad: Padding = "power" if case.backend.name == "triton" else "exact"
    return (
        ("prove_mask", lambda p: prove_mask(p, attn, mask_options(case))),
        ("online_softmax", lambda p: online_softmax(p, attn.q, attn.k)),
        ("choose_tiles", lambda p: choose_tiles(p, attn, tile_choice(case), pad=pad)),
        ("map_blocks", lambda p: map_blocks(p, block_map(case))),
        *([("use_boxes", lambda p: use_boxes(p, key_tensors(attn)))] if case.boxes else []),
        ("tidy", tidy),
    )


def key_tensors(attn: Attention) -> frozenset[str]:
    """Keys and values: what each step of the loop reads."""
    return frozenset((*(key for _, key in attn.pairs), attn.value))


def mask_options(case: Case) -> MaskOptions:
    """`order` and `skip` lines; residue order is the default where the mask allows it."""
    order = case.schedule.order
    return MaskOptions(residue=order is None or "residue" in order, split=case.schedule.skip != "none")


def tile_choice(case: Case) -> Choice:
    """Schedule lines, else the tuning record, else the cost model."""
    attn, s = case.attn, case.schedule
    pinned = {n: (v,) for n, v in s.tile} | dict(s.choices)
    warps = s.warps.get("warp") if s.warps and s.warps.name == "split_q" else None
    if not case.target.modelled:
        q, k = (pinned.get(n, (CPU_TILE,))[0] for n in (attn.q, attn.k))
        return Choice(q, k, warps, s.stages, "spec" if pinned else "default")
    found = record.lookup(attn, case.target.name, case.backend.name, "box" if case.boxes else "pointer")
    if found is not None:
        e = found.shape
        allowed = all(size in pinned.get(n, (size,)) for n, size in ((attn.q, e.q), (attn.k, e.k)))
        if allowed and warps in (None, e.warps) and s.stages in (None, e.stages):
            return Choice(e.q, e.k, e.warps, e.stages, "record")
    shapes = model.candidates(attn, case.target, pinned, warps=warps, stages=s.stages)
    best = model.best(shapes, attn, case.target)
    if best is None:
        best = next(smallest(case, pinned, warps))
    return Choice(best.q, best.k, best.warps, best.stages, "spec" if pinned else "model")


def smallest(case: Case, pinned: dict[str, tuple[int, ...]], warps: int | None) -> Iterator[model.Shape]:
    """What is tried where no candidate fits the model's budget: the smallest tile, which the toolchain may still spill."""
    attn, s = case.attn, case.schedule
    q, k = (min(pinned.get(n, model.SIZES)) for n in (attn.q, attn.k))
    k = max(k, least_depth(attn.tensor(attn.value).dtype))
    yield model.Shape(q, k, warps or 4, s.stages or 1)


def block_map(case: Case) -> BlockMap:
    """The `map` line, else what the simulator ranks first on a chip of dies (`tune.maps`), else longest first for masks whose
    rows see more keys the later they come, else linear."""
    attn, target = case.attn, case.target
    kind = case.schedule.map[0] if case.schedule.map else None
    dense = attn.index(attn.q).storage.kind != "packed"
    if kind is None and dense and target.chiplet is not None:
        heads = maps.Heads(bytes_per_key(attn), heads_per_key_head(attn), keys_in_memory(attn))
        found = maps.best(target, mask_class(attn), heads)
        if found is not None:
            return maps.candidates(target, heads)[found]
    longest = kind == "longest_first" or (kind in (None, "xcd", "persistent") and mask_class(attn) == "growing")
    xcds = target.xcds if kind in (None, "xcd") else 1
    return BlockMap(
        order="longest_first" if longest and dense else "linear",
        xcds=xcds,
        units=target.units if kind == "persistent" else None,
        l2=target.l2,
        bytes_per_key=bytes_per_key(attn),
        sharing=heads_per_key_head(attn),
        keys=keys_in_memory(attn),
    )


def keys_in_memory(attn: Attention) -> Expr:
    """Keys of one sequence at most, over the call's symbols: where all tensors along k are paged, pages of the table."""
    rows = storage.rows_symbol(attn.index(attn.k))
    if free_vars(rows) <= set(storage.storage_symbols(attn)):
        return rows
    paged = next(t for t in attn.tensors if t.paged is not None)
    assert paged.paged is not None
    return mul(Var(f"{paged.paged.tensor}_width"), paged.page or 1)


def bytes_per_key(attn: Attention) -> int:
    """Bytes of one key and its value, of one head."""
    total = 0
    for name, feature in {**{k: d for (_, k), d in zip(attn.pairs, attn.contracted, strict=True)}}.items():
        total += BYTES[attn.tensor(name).dtype] * _constant(attn, feature)
    if attn.value not in {k for _, k in attn.pairs}:
        total += BYTES[attn.tensor(attn.value).dtype] * _constant(attn, attn.feature)
    return max(1, total)


def heads_per_key_head(attn: Attention) -> int:
    """Query heads that read the same key head: 4 for `h // 4`; the extent of every index that keys do not have at all."""
    key = attn.tensor(attn.pairs[0][1])
    used = {n for e in key.index for n in free_vars(e)}
    sharing = 1
    for e in key.index:
        match e:
            case Op("//", (Var(_), Int(group))):
                sharing *= group
    for i in attn.outer:
        if i.name not in used and isinstance(i.extent, Int):
            sharing *= i.extent.value
    return sharing


def _constant(attn: Attention, name: str) -> int:
    extent = attn.index(name).extent
    return extent.value if isinstance(extent, Int) else 1
