"""stage_copies: operands come to shared memory by asynchronous copies, in flight with the products of neighbouring steps.

Contract.  In: the one-role program of `split_rows` on warps, one walk over the keys, positions written out, tiles of keys and
values loaded in the step that uses them.  Out: the same steps from the last tile of keys to the first, operands in shared
tiles that all warps fill together, a slice of rows each, on queue `cp_async`; waits and CTA-wide syncs stand between fill and
use, and between use and the next fill.  Results differ by the order of tiles alone.

    STAGES 1  one tile of keys, one of values.  The values of a step are in flight with its scores, the keys of the next step
              with its softmax and the product with the values.  Two syncs a step
    STAGES 2  keys and values of the next step are in flight with all of this one, in the other slot.  One sync a step
    PEEL      the copies of the first step stand before the loops: cluster `prologue`, of the last tile that any loop walks
    NEXT      the tile after j is j - 1 within a part of the mask, else the last one of the nearest part below that has tiles
    BELOW     see `key_steps`
    OWN       query rows belong to an instance: a slot each, filled and read by one warp, which needs no sync

Source: FlashAttention-2, Dao, arXiv 2307.08691, section 3.3; the order of copies and syncs is that of its released kernel,
flash_fwd_kernel.h (Dao-AILab/flash-attention).
Raises ScheduleFault E0811 for operands that are no 16-bit floats or have two uses in one slot, E0808 for other stages, E0812 for
keys that warps cannot share out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilec.dsl.faults import ScheduleFault
from tilec.ir.axes import constant
from tilec.ir.build import add, compare, mod, mul, sub, where
from tilec.ir.expr import ONE, ZERO, Expr, Int, Read, Var
from tilec.ir.nodes import (
    Await,
    Bar,
    Barrier,
    Buffer,
    Cluster,
    Compute,
    Copy,
    For,
    If,
    Let,
    Load,
    Mma,
    Program,
    Role,
    Slot,
    Stmt,
    Sync,
    While,
    Window,
)
from tilec.ir.nodes import walk as statements
from tilec.passes.key_steps import at_tile, shifted, without_end_guard
from tilec.passes.parts import extent, parts, some
from tilec.passes.scope import fresh, key_axes
from tilec.passes.tidy import tidy

QUEUE = "cp_async"
FLOATS = ("bf16", "f16")
STAGES = (1, 2)


@dataclass(frozen=True)
class Staging:
    """`stages` of keys and values; `queries`: what the products read them from; `registers` of a thread at most."""

    stages: int = 1
    queries: Literal["registers", "shared"] = "shared"
    registers: int = 255


def stage_copies(program: Program, staging: Staging = Staging()) -> Program:
    """The program with copies.  Raises ValueError if it is not the one-role form on warps."""
    (role,) = program.roles
    if role.unit != "warp":
        raise ValueError("stage_copies needs rows split over warps")
    if staging.stages not in STAGES:
        raise ScheduleFault("E0808", f"{staging.stages} stages of keys and values", hint="1 and 2 are legal")
    stager = _Stager(program, role, staging)
    body = stager.block(role.body, looped=False)
    gone = {name for name in stager.shared if not (name in stager.own and staging.queries == "registers")}
    kept = tuple(b for b in role.buffers if b.name not in gone)
    return tidy(
        program.with_(
            buffers=(*program.buffers, *stager.shared.values()),
            barriers=(*program.barriers, Barrier(stager.everyone.name, "named", role.count)),
            roles=(replace(role, body=body, buffers=kept, registers=staging.registers),),
        )
    )


class _Stager:
    """`shared`: the shared tile in place of each loaded operand, by the name of its register tile; `own`: loads of queries."""

    def __init__(self, program: Program, role: Role, staging: Staging) -> None:
        self.staging, self.count = staging, role.count
        self.q, self.k = key_axes(program)
        self.constants = dict(program.tile)
        assert role.var is not None
        self.instance = Var(role.var)
        loops = [s for s in statements(role.body) if isinstance(s, For) and s.proof is not None]
        self.var = loops[0].var
        self.operands = {x.buffer for s in statements(role.body) if isinstance(s, Mma) for x in (s.a, s.b)}
        inside = {s.dst.buffer for loop in loops for s in loop.body if isinstance(s, Load)}
        loads = [s for s in statements(role.body) if isinstance(s, Load) and s.dst.buffer in self.operands]
        self.own = {s.dst.buffer: s for s in loads if s.dst.buffer not in inside}
        tiles = {b.name: b for b in role.buffers}
        self.shared: dict[str, Buffer] = {}
        wanted = {s.dst.buffer: s.tensor for s in loads}
        *names, self.everyone, self.step, self.first, self.next = fresh(
            program, *(f"s{t}" for t in wanted.values()), "everyone", "n", f"{self.var}_first", f"{self.var}_next"
        )
        (self.below,) = fresh(program, f"{self.var}_below")
        for name, (tile, tensor) in zip(names, wanted.items(), strict=True):
            if tiles[tile].dtype not in FLOATS:
                note = f"matrix instructions take {' and '.join(FLOATS)} as they lie"
                raise ScheduleFault("E0811", f"`{tensor}` is {tiles[tile].dtype}", note=note, hint=PORTABLE)
            stages = role.count if tile in self.own else staging.stages
            self.shared[tile] = replace(tiles[tile], name=name.name, space="shared", stages=stages)
        self.share = self._share(tiles)

    def _share(self, tiles: dict[str, Buffer]) -> int:
        """Keys of a tile that each warp copies."""
        (size,) = {constant(a.size, self.constants) for b in tiles.values() for a in b.axes if a.name == self.k}
        assert size is not None
        if size % self.count:
            message = f"{size} keys are not shared out evenly by {self.count} warps"
            raise ScheduleFault("E0812", message, hint=f"a multiple of {self.count} is legal")
        return size // self.count

    # ------------------------------------------------------------------------------------------ blocks

    def block(self, body: tuple[Stmt, ...], *, looped: bool) -> tuple[Stmt, ...]:
        """The statements with cluster `keys` rewritten, wherever it is; `looped`: a CTA comes by here several times."""
        out: list[Stmt] = []
        for s in body:
            match s:
                case Cluster("keys", loops):
                    found = tuple(x for x in loops if isinstance(x, For))
                    out.append(Cluster("keys", self.keys(found, looped=looped)))
                case Load() if s.dst.buffer in self.own:
                    continue
                case If(cond, then, orelse):
                    out.append(If(cond, self.block(then, looped=looped), self.block(orelse, looped=looped)))
                case Cluster():
                    out.append(replace(s, body=self.block(s.body, looped=looped)))
                case While():
                    out.append(replace(s, body=self.block(s.body, looped=True)))
                case _:
                    out.append(s)
        return tuple(out)

    def keys(self, loops: tuple[For, ...], *, looped: bool) -> tuple[Stmt, ...]:
        """Prologue and loops for these consecutive loops: rules PEEL and NEXT."""
        general = next((x for x in loops if x.proof is not None and x.proof.segment != "full"), loops[0])
        any_tile, last = extent(loops)
        keys, values = self.loads(general)
        ahead = keys if self.staging.stages == 1 else (*keys, *values)
        copies = [self.copy(at_tile(s, self.var, self.first), ZERO) for s in ahead]
        queries: tuple[Stmt, ...] = tuple(map(self.copy_own, self.own.values()))
        fetch: tuple[Stmt, ...] = ()
        if self.staging.queries == "registers":
            reads = (Compute(Slot(n), Read(self.shared[n].name, self.instance)) for n in self.own)
            fetch = (Await(QUEUE, len(copies)), *reads)
        ready = (Sync(Bar(self.everyone.name)),) if looped else ()
        begin = Cluster("prologue", (*ready, *queries, *copies, *fetch))
        lets: list[Stmt] = []
        steps: list[Stmt] = []
        below: Expr = Int(-1)
        for n, part in enumerate(parts(loops)):
            steps = [*(self.loop(x, part[0].lo, below, ahead) for x in reversed(part)), *steps]
            if n + 1 < len(parts(loops)):
                name = Var(f"{self.below.name}{n + 1}")
                lets.append(Let(name.name, where(some(part), sub(part[-1].hi, 1), below)))
                below = name
        count = (Let(self.step.name, ZERO),) if self.staging.stages > 1 else ()
        return (If(any_tile, (Let(self.first.name, sub(last, 1)), *count, *lets, begin, *steps)),)

    def loop(self, loop: For, lo: Expr, below: Expr, ahead: tuple[Load, ...]) -> For:
        """A loop whose steps fetch for the next one; `lo` begins its part, `below` is the tile after that."""
        keys, values = self.loads(loop)
        j, slot = Var(loop.var), self.slot(ZERO)
        wait: tuple[Stmt, ...] = (Await(QUEUE, 0), Sync(Bar(self.everyone.name)))
        fetch = self.fetch(j, lo, below, ahead)
        body = [s for s in loop.body if not (isinstance(s, Load) and s.dst.buffer in self.shared)]
        used = [self.product(s, slot) if isinstance(s, Mma) else s for s in body]
        if self.staging.stages > 1:
            whole = (*wait, *fetch, *used, Let(self.step.name, add(self.step, ONE)))
            return replace(loop, body=whole, down=True, stages=None)
        if not values:
            message = f"`{keys[0].tensor}` is keys and values at once, so a slot of it is in use for a whole step"
            raise ScheduleFault("E0811", message, hint="`stages 2` has a second slot")
        after = 1 + max(
            n for n, s in enumerate(body) if isinstance(s, Mma) and s.b.buffer in {x.dst.buffer for x in keys}
        )
        now = tuple(self.copy(s, slot) for s in values)
        whole = (*wait, *now, *used[:after], *wait, *fetch, *used[after:])
        return replace(loop, body=whole, down=True, stages=None)

    def loads(self, loop: For) -> tuple[tuple[Load, ...], tuple[Load, ...]]:
        """Loads of operands in a step: of the products before the last one, and of that one alone."""
        products = [s for s in loop.body if isinstance(s, Mma)]
        found = [s for s in loop.body if isinstance(s, Load) and s.dst.buffer in self.shared]
        early = {x.buffer for s in products[:-1] for x in (s.a, s.b)}
        return tuple(s for s in found if s.dst.buffer in early), tuple(s for s in found if s.dst.buffer not in early)

    # ------------------------------------------------------------------------------------------ copies

    def slot(self, lag: Expr) -> Expr:
        """Slot of the tiles of this step, or of the one after `lag` more."""
        return ZERO if self.staging.stages == 1 else mod(add(self.step, lag), self.staging.stages)

    def fetch(self, j: Var, lo: Expr, below: Expr, ahead: tuple[Load, ...]) -> tuple[Stmt, ...]:
        """Copies for the step after that of tile j: rules NEXT and BELOW."""
        slot = self.slot(ONE)
        inside = compare(">", j, lo)
        lets: tuple[Stmt, ...] = ()
        to: Expr = sub(j, 1)
        if isinstance(below, Var):
            lets, to = (Let(self.next.name, where(inside, to, below)),), self.next
            inside = compare(">=", self.next, 0)
        return (
            *lets,
            If(inside, tuple(self.copy(at_tile(without_end_guard(s, self.var), self.var, to), slot) for s in ahead)),
        )

    def copy(self, s: Load, slot: Expr) -> Copy:
        """This warp's slice of a tile."""
        offset = mul(self.share, self.instance)
        s = shifted(s, self.k, offset)
        windows = (Window(self.k, offset, Int(self.share)),)
        return Copy(self._place(s, slot, windows), s.tensor, s.index, s.where, queue=QUEUE)

    def copy_own(self, s: Load) -> Copy:
        """Rule OWN."""
        return Copy(self._place(s, self.instance, ()), s.tensor, s.index, s.where, queue=QUEUE)

    def _place(self, s: Load, slot: Expr, windows: tuple[Window, ...]) -> Slot:
        buffer = self.shared[s.dst.buffer]
        return Slot(buffer.name, slot if buffer.stages > 1 else None, windows)

    def product(self, s: Mma, slot: Expr) -> Mma:
        """A product with its operands where they are."""

        def at(x: Slot) -> Slot:
            buffer = self.shared.get(x.buffer)
            if buffer is None or (x.buffer in self.own and self.staging.queries == "registers"):
                return x
            stage = self.instance if x.buffer in self.own else slot
            return Slot(buffer.name, stage if buffer.stages > 1 else None)

        return replace(s, a=at(s.a), b=at(s.b))


PORTABLE = "the portable backend takes it"
