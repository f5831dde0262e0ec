"""Passes that follow `map_blocks` for native Hopper kernels, as a list to read, and the way from an Attention through them.

pack_rows        (before `map_blocks`, where calls have few queries) heads that share a key head as rows of one tile
values_apart     a second tile for values that are keys
use_boxes        loads that the tensor memory accelerator can do
write_positions  positions as arithmetic
row_values       what a row's store divides by, once
split_rows       64 query rows to a warpgroup, of two CTAs if these pair up along the rows
overlap          scores of a step in flight with the values of the one before
rescale_seldom   the running maximum moves only where it falls behind, if that was asked for
specialize       a producer warp, rings and barriers, turns, the scheduler
call_scalars     what a call's sizes decide is the host's to compute
place_buffers    layouts; what does not fit is refused

`lower_native` runs the portable passes and then these, at the first point of the tuning table (`tune.hopper`) whose tiles fit;
for targets whose warps multiply and copy for themselves, those of `ampere`, and those of `cdna` for waves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from tilec import ampere, cdna
from tilec.dsl.faults import ScheduleFault, TargetFault
from tilec.ir.attention import Attention
from tilec.ir.build import cdiv
from tilec.ir.expr import Int
from tilec.ir.nodes import Program
from tilec.legality import check_schedule, check_target
from tilec.passes.call_scalars import call_scalars
from tilec.passes.choose_tiles import Choice, choose_tiles
from tilec.passes.lower_attention import lower_attention
from tilec.passes.map_blocks import BlockMap, map_blocks
from tilec.passes.names import distinct_indices
from tilec.passes.online_softmax import online_softmax
from tilec.passes.overlap import COLUMNS, ROWS_OF_A_THREAD, Pipeline, overlap
from tilec.passes.pack_rows import group_of, pack_rows
from tilec.passes.pair_heads import PAIR, pair_heads, pairable
from tilec.passes.place_buffers import place_buffers
from tilec.passes.prove_mask import prove_mask, residue_order
from tilec.passes.rescale_seldom import rescale_seldom
from tilec.passes.row_values import row_values
from tilec.passes.scope import key_axes
from tilec.passes.specialize import Roles, specialize
from tilec.passes.split_rows import ROWS, split_rows
from tilec.passes.tidy import tidy
from tilec.passes.use_boxes import use_boxes
from tilec.passes.values_apart import values_apart
from tilec.passes.work import Kind
from tilec.passes.write_positions import write_positions
from tilec.pipeline import Case, Pass, block_map, mask_options
from tilec.schedule import EMPTY, Schedule
from tilec.targets import target as target_of
from tilec.targets import warp_wide
from tilec.tune.classes import LengthClass, data_decides, mask_class
from tilec.tune.hopper import Point, points
from tilec.user_record import user_rows, user_wave_rows

TOO_LARGE = ("E0803", "E0812")  # other points of the table may fit
# Tiles of a section of longest_first, for each block that runs at once.  Generated causal kernels on an H200, against sections of
# as many heads as L2 holds, sustained: 1.05 and 1.08 times as fast at 512 positions and head dims 128 and 64, 1.02 at 2048
# and 4096, 1.01 at 8192 and 16384; 1 and 4 are no better.
WAVES = 2


@dataclass(frozen=True)
class HopperOptions:
    """Query tiles have 64 rows for each of `warpgroups`; `pipeline` and `roles` are what `overlap` and `specialize` take.

    `pairs`: two CTAs share their keys and values, with the halves of a tile of twice as many rows, or with two heads (for which
    `pair_heads` ran before `map_blocks`).  `seldom`: how far maxima may rise before outputs are rescaled, in powers of two; None:
    these are rescaled at every step."""

    warpgroups: int = 2
    pipeline: Pipeline = field(default_factory=Pipeline)
    roles: Roles = field(default_factory=Roles)
    pairs: Literal["rows", "heads"] | None = None
    seldom: float | None = None

    @property
    def cluster(self) -> int:
        """CTAs that have the rows of one tile."""
        return PAIR if self.pairs == "rows" else 1

    @property
    def rows(self) -> int:
        """Of a tile."""
        return ROWS * self.warpgroups * self.cluster


def hopper_passes(options: HopperOptions = HopperOptions()) -> tuple[Pass, ...]:
    """The passes with what they are told; each raises ScheduleFaults for what it cannot express."""
    most = options.seldom
    seldom: tuple[Pass, ...] = () if most is None else (("rescale_seldom", lambda p: rescale_seldom(p, most)),)
    return (
        ("values_apart", values_apart),
        ("use_boxes", lambda p: use_boxes(p, inputs(p), sequences=True, split=key_axes(p)[0])),
        ("write_positions", lambda p: tidy(write_positions(p))),
        ("row_values", row_values),
        ("split_rows", lambda p: split_rows(p, options.warpgroups, options.cluster)),
        ("overlap", lambda p: overlap(p, options.pipeline)),
        *seldom,
        ("specialize", lambda p: specialize(p, options.roles)),
        ("call_scalars", call_scalars),
        ("place_buffers", place_buffers),
    )


def inputs(program: Program) -> frozenset[str]:
    """Queries, keys and values."""
    return frozenset(t.name for t in program.tensors if t.mode == "in")


Trail = tuple[tuple[str, Program], ...]  # (pass, program after it), in order


def lower_native(
    attn: Attention, target: str, schedule: Schedule | None = None, features: frozenset[str] = frozenset()
) -> Program:
    """The first program of `programs`.

    Raises Faults (E08, E09) for a schedule, a dtype or a target that native kernels do not take, and ScheduleFault for a
    kernel without a shape that fits, with what its first shape lacks."""
    return next(programs(attn, target, schedule, features))


def programs(
    attn: Attention, target: str, schedule: Schedule | None = None, features: frozenset[str] = frozenset()
) -> Iterator[Program]:
    """Lowered programs whose tiles fit, the fastest that was measured first, for calls with `features` (`backends.base`):
    `short` calls, of few queries, have heads share tiles, and what the schedule leaves free is one warpgroup at first;
    `few_keys` and `many_keys` choose rows of the tuning table.  Raises as `lower_native`."""
    return (trail[-1][1] for trail in trails(attn, target, schedule, features))


def trails(
    attn: Attention, target: str, schedule: Schedule | None = None, features: frozenset[str] = frozenset()
) -> Iterator[Trail]:
    """How each of `programs` came about."""
    case = native_case(attn, target, schedule, features)
    front = sequential(case)
    first: ScheduleFault | None = None
    found = False
    shapes: Iterator[Callable[[Program], Iterator[tuple[str, Program]]]]
    if "waves" in case.target.features:
        shapes = (partial(cdna.shaped, case=case, point=p) for p in cdna.points(attn, case.schedule, user_wave_rows()))
    elif warp_wide(case.target):
        shapes = (partial(ampere.shaped, case=case, point=p) for p in ampere.points(attn, case.target, case.schedule))
    else:
        shapes = (partial(_shaped, case=case, point=p) for p in _points(case))
    for shaped in shapes:
        try:
            trail = (*front, *shaped(front[-1][1]))
        except ScheduleFault as fault:
            if fault.code not in TOO_LARGE:
                raise
            first = first or fault
            continue
        found = True
        yield trail
    if not found:
        assert first is not None
        raise first


def program_at(attn: Attention, target: str, schedule: Schedule | None, point: Point) -> Program:
    """The program at one point.  Raises as `lower_native`, also for tiles that do not fit."""
    case = native_case(attn, target, schedule)
    *_, (_, program) = _shaped(sequential(case)[-1][1], case, point)
    return program


def wave_trail(attn: Attention, target: str, schedule: Schedule | None, point: cdna.Point) -> Trail:
    """How the program of waves at one point comes about.  Raises as `lower_native`, also for tiles that do not fit."""
    case = native_case(attn, target, schedule)
    front = sequential(case)
    return (*front, *cdna.shaped(front[-1][1], case, point))


def period_of(case: Case) -> int:
    """Residue classes that rows and keys are walked by; 1 where they are walked in order."""
    residue = residue_order(case.attn) if mask_options(case).residue else None
    return residue.period.value if residue is not None and isinstance(residue.period, Int) else 1


def length_matters(attn: Attention, target: str, schedule: Schedule, features: frozenset[str]) -> bool:
    """Whether the shape that is tried first depends on the class of lengths that `features` tell."""
    length = _length(features)
    if length is None or "wgmma" not in target_of(target).features:
        return False
    own = user_rows()
    return next(points(attn, schedule, own)) != next(points(attn, schedule, own, length))


def _length(features: frozenset[str]) -> LengthClass | None:
    return "short" if "few_keys" in features else "long" if "many_keys" in features else None


def grouped(case: Case) -> bool:
    """Whether heads that share a key head share a tile: in calls of few queries, unless CTAs share keys, and in order."""
    if period_of(case) > 1:
        return False
    return "short" in case.features and case.schedule.cluster is None and group_of(case.attn) is not None


def _points(case: Case) -> Iterator[Point]:
    """Those of the tuning table; for few queries tiles of 64 rows come first, unless a group of heads fills more."""
    attn, s = case.attn, case.schedule
    found = points(attn, s, user_rows(), _length(case.features))
    group = group_of(attn)
    if "short" not in case.features or s.tile or s.choices or s.warps or (group is not None and group.room > ROWS):
        yield from found
        return
    first = next(found)
    yield replace(first, warpgroups=1, turns=False)
    yield first
    yield from found


def native_case(
    attn: Attention, target: str, schedule: Schedule | None, features: frozenset[str] = frozenset()
) -> Case:
    """What decides.  Raises the faults of `lower_native` that do not depend on shapes."""
    machine, schedule = target_of(target), schedule or EMPTY
    backend = next((b for b in machine.backends if b.prints), None)
    if backend is None or not (warp_wide(machine) or "wgmma" in machine.features or "waves" in machine.features):
        message = f"there are no native kernels for {target}"
        note = "matrix instructions are wgmma, mma.sync where a target has nothing wider, or MFMA"
        raise TargetFault("E0914", message, note=note, hint="sm80, sm89, sm90 and gfx942 have them")
    check_target(attn, machine)
    check_schedule(attn, schedule, machine, backend)
    return Case(attn, machine, backend, schedule, features | {"aligned"})


def sequential(case: Case) -> Trail:
    """One walk over the keys, before tiles have sizes."""
    attn = distinct_indices(case.attn)
    textbook = lower_attention(attn, case.target.name)
    proved = prove_mask(textbook, attn, mask_options(case))
    online = online_softmax(proved, attn.q, attn.k)
    return ("lower_attention", textbook), ("prove_mask", proved), ("online_softmax", online)


def _shaped(program: Program, case: Case, point: Point) -> Iterator[tuple[str, Program]]:
    """At this point of the tuning table, through every pass that is left."""
    attn = distinct_indices(case.attn)
    options, heads = options_of(case, point), pairable(attn)
    choice = Choice(options.rows, point.keys, None, None, point.by)
    order = replace(_order(case), fill=WAVES * case.target.units // (PAIR if options.pairs else 1))
    packing: tuple[Pass, ...] = ()
    if options.pairs == "heads" and heads is not None:
        packing = (("pair_heads", lambda p: pair_heads(p, heads)),)
        order = replace(order, sharing=max(1, order.sharing // PAIR))
    elif grouped(case):
        packing = (("pack_rows", lambda p: tidy(pack_rows(p, attn))),)
        order = replace(order, sharing=1)
    rest: tuple[Pass, ...] = (
        ("choose_tiles", lambda p: choose_tiles(p, attn, choice, pad="steps")),
        *packing,
        ("map_blocks", lambda p: tidy(map_blocks(p, order))),
        *hopper_passes(options),
    )
    for name, run in rest:
        program = run(program)
        yield name, program


def _order(case: Case) -> BlockMap:
    """As for every backend; but where data decide how long tiles are and nothing is asked for, the last rows come first too:
    under causal masks the first rows of a document are the shortest, and what is claimed last should be short."""
    order, period = replace(block_map(case), units=None), period_of(case)
    if period > 1:  # a class has as much less to keep in caches
        order = replace(order, keys=cdiv(order.keys, period))
    dense = case.attn.index(case.attn.q).storage.kind != "packed"
    if case.schedule.map is None and dense and data_decides(case.attn):
        return replace(order, order="longest_first")
    return order


def clustered(case: Case, point: Point) -> bool:
    """Whether pairs of CTAs share keys: if a line says so; where none does, if the point does, for whole tensors of many rows."""
    if case.schedule.cluster is not None:
        return case.schedule.cluster == PAIR
    dense = all(i.storage.kind == "dense" for i in case.attn.indices) and period_of(case) == 1
    return point.cluster == PAIR and dense and "short" not in case.features


def options_of(case: Case, point: Point) -> HopperOptions:
    """What the passes are told.  Blocks claim tiles where these differ in length, else each has its share of them.  Tiles that
    may have no rows, and products awaited one by one, leave nothing of the next tile to do ahead."""
    groups = ROWS_OF_A_THREAD * point.keys // COLUMNS
    lag = case.schedule.overlap is not False
    dense = case.attn.index(case.attn.q).storage.kind == "dense"
    work: Kind = "static" if mask_class(case.attn) == "full" else "dynamic"
    pairs: Literal["rows", "heads"] | None = None
    if clustered(case, point):
        pairs = "heads" if pairable(distinct_indices(case.attn)) else "rows"
    return HopperOptions(
        point.warpgroups,
        Pipeline(lag, round(point.wait * groups), point.chains),
        Roles(point.stages, point.queries, point.turns, work, ahead=point.ahead if lag and dense else "nothing"),
        pairs,
        point.seldom,
    )
