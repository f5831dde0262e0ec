"""specialize: one warp loads, the warpgroups compute.

Contract.  In: the one-role program of `split_rows` and `overlap`, which loads for itself, one tile per CTA.  Out: role `producer`
(1 warp: copies through the tensor memory accelerator into shared rings) and role `consumer`, with barriers between them that
follow from which product reads which loaded tile (`rings`).  Consumers compute the same values in the same order; no result
changes.

    producer  see `producer`: SLICE, FIRST
    consumer  see `consumer`: RELEASE, TURNS (ping-pong)
    TAIL      what lies behind the end of a sequence reaches no product of weights (see `tails`)
    OWN       query rows belong to an instance: a slot per warpgroup, read into registers, or by the products themselves
    CLUSTER   the CTAs of a cluster fill the rings of keys and values for each other (see `rings`: PART), so they walk the same
              tiles.  A producer ends when the other CTAs have given back all of its slots: nobody arrives at a CTA that is gone
    TURNOVER  parts of the next tile come before the end of one (see `turnover`: NUMBER, SCORES)
    WORK      `one`: a CTA has one tile.  `static`: tiles cta, cta + ctas, …  `dynamic`: the first is the CTA's own number, others
              are claimed from a counter (see `work`)
    SEARCH    what a tile's searches find, the producer hands over (see `searches`), unless tiles begin ahead
    EARLY     a launch sets up its barriers while the one before it ends
    TRADE     registers per thread after setmaxnreg; all warpgroups together have what the CTA was launched with

Sources: FlashAttention-3, Shah et al., arXiv 2407.08608, section 3.1; PTX ISA, mbarrier and setmaxnreg.
Raises ScheduleFault E0811 for tiles that are no boxes, operands that are no 16-bit floats, clusters that cannot share and
tiles that cannot begin ahead, and E0808 for counts out of range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilec.dsl.faults import ScheduleFault
from tilec.ir.expr import Expr
from tilec.ir.nodes import Barrier, If, Load, Program, Role, While
from tilec.ir.nodes import walk as statements
from tilec.passes.consumer import Consumer
from tilec.passes.producer import Producer
from tilec.passes.reuse import in_place
from tilec.passes.rings import Position, Ring, check_walks, find_rings
from tilec.passes.scope import fresh, key_axes
from tilec.passes.searches import find_searches
from tilec.passes.tails import find_tails
from tilec.passes.tidy import tidy
from tilec.passes.turnover import Ahead, turned
from tilec.passes.work import Kind, work_of

REGISTERS = {1: (56, 256), 2: (24, 240), 3: (32, 160)}  # producer, consumers; by number of consumer warpgroups
MAX_STAGES = 8
FILE, WARPGROUP, UNIT, LEAST, MOST = 65_536, 128, 8, 24, 256  # registers of an SM, threads; setmaxnreg's unit and range


@dataclass(frozen=True)
class Roles:
    """`stages` of the rings of keys and values.  `queries`: what the products read them from.  `turns`: rule TURNS, where
    there are several warpgroups.  `work`: rule WORK.  `registers`: (producer, consumer), None for the usual split.
    `query_slots` of each warpgroup: with two, queries of the next tile are there when a tile ends whose products read them.
    `ahead`: what of the next tile is done before a tile ends (rule TURNOVER): its number is received and mapped, or its first
    scores are issued as well."""

    stages: int = 2
    queries: Literal["registers", "shared"] = "registers"
    turns: bool = True
    work: Kind = "dynamic"
    registers: tuple[int, int] | None = None
    query_slots: int = 1
    ahead: Ahead = "nothing"


def specialize(program: Program, roles: Roles = Roles()) -> Program:
    """The program with a producer.  Raises ValueError if it is not the one-role form."""
    (role,) = program.roles
    if role.unit != "warpgroup" or any(isinstance(s, While) for s in statements(role.body)):
        raise ValueError("specialize needs rows split over warpgroups, and one tile per CTA")
    for count, what in ((roles.stages, "stages"), (roles.query_slots, "slots of queries")):
        if not 1 <= count <= MAX_STAGES:
            raise ScheduleFault("E0808", f"{count} {what}", hint=f"1 to {MAX_STAGES} are legal")
    few, many = split_registers(role.count, roles.registers)
    found = find_rings(program, role, roles.stages, roles.query_slots)
    rings = {r.tile.name: r for r in found}
    check_walks(program, role, found)
    leader = next(r for r in found if not r.own)
    work = work_of(program, roles.work, role.count, _rows(role, found))
    tails = find_tails(program, role, found)
    filled = [r for r in found if r.follows is None]
    named = program.with_(
        buffers=(*program.buffers, *(r.buffer for r in filled), *work.buffers),
        barriers=(*program.barriers, *(b for r in filled for b in (r.full, r.empty)), *work.barriers),
    )
    searches = find_searches(named, role, found, work.rows) if roles.ahead == "nothing" else None
    half, pass_on = fresh(program, "half", "turn")
    turn = Barrier(pass_on.name, "named", 2, role.count) if roles.turns and role.count > 1 else None
    shared = roles.queries == "shared"
    produced = Producer(role, rings, work, tails, half, Position(work.steps, leader), searches).body()
    role = role if roles.ahead == "nothing" else in_place(role, key_axes(program)[1])
    consumer = Consumer(role, rings, work, turn, shared, Position(work.steps, leader), searches)
    if roles.ahead == "nothing":
        consumed = consumer.body()
    else:
        entry, tile = turned(consumer, program, roles.ahead)
        consumed = consumer.around(tile, entry)
    kept = tuple(b for b in role.buffers if b.name not in rings or (rings[b.name].own and not shared))
    extra = (*((tails.landed,) if tails.used(produced) else ()), *(() if turn is None else (turn,)))
    handed = ((), ()) if searches is None else (searches.buffers, searches.barriers)
    return tidy(
        program.with_(
            extents=(*program.extents, *work.extents),
            tensors=(*program.tensors, *work.tensors),
            grid=replace(program.grid, ctas=work.ctas, early=True),
            buffers=(*named.buffers, *handed[0]),
            barriers=(*named.barriers, *handed[1], *extra),
            roles=(
                Role("producer", "warp", 1, produced, registers=few),
                replace(role, body=consumed, buffers=kept, registers=many),
            ),
        )
    )


def _rows(role: Role, rings: tuple[Ring, ...]) -> Expr | None:
    """The condition under which a tile has query rows, where there is one."""
    own = {r.tile.name for r in rings if r.own}
    for s in role.body:
        if isinstance(s, If) and any(isinstance(x, Load) and x.dst.buffer in own for x in statements(s.then)):
            return s.cond
    return None


def split_registers(consumers: int, asked: tuple[int, int] | None = None) -> tuple[int, int]:
    """Registers per thread of producer and consumers: rule TRADE.  ScheduleFault E0808 where they do not add up."""
    usual = REGISTERS.get(consumers)
    if usual is None:
        raise ScheduleFault("E0808", f"{consumers} consumer warpgroups", hint=f"1 to {max(REGISTERS)} are legal")
    few, many = asked or usual
    launched = min(MOST, FILE // (WARPGROUP * (consumers + 1)) // UNIT * UNIT)
    limit, total = launched * (consumers + 1), few + consumers * many
    if total > limit or any(n % UNIT or not LEAST <= n <= MOST for n in (few, many)):
        raise ScheduleFault(
            "E0808",
            f"{few} + {consumers} x {many} = {total} registers",
            note=f"setmaxnreg takes multiples of {UNIT} from {LEAST} to {MOST}, and all warpgroups have {limit} together",
            hint=f"{usual[0]} and {usual[1]} are the usual ones",
        )
    return few, many
