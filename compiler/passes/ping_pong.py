"""ping_pong: waves of a block compute and move memory in turns, so that matrix units and memory are busy at once.

Contract.  In: the one-role program of `split_rows` on waves, one walk over the keys, positions written out, tiles of keys and
values loaded in the step that uses them.  Out: the same steps from the last tile of keys to the first, transposed, in clusters.
Results differ by the order of tiles alone.

    TRANSPOSE  scores are keys by rows, S^T = K . Q^T, outputs features by rows, O^T = V^T . P^T: then a lane of a wave has one
               row, and its weights are the second operand of the product with values where they are (AMD matrix instruction
               calculator, cdna3: registers of C and of B)
    LAG        the values of a tile are multiplied a step after its scores.  A step's clusters are
                 compute   scores of tile j
                 memory    values of j and keys of the next tile start; statistics of j; fragments of values of the tile before
                 compute   output += values . weights of the tile before
                 memory    outputs are rescaled; values of j to shared memory; fragments of keys of the next tile
               Exponentials stand beside memory, those of the last part of j in the second memory cluster and the others in the
               first, all rounded in the second; or beside products, those of the last part in the first compute cluster of
               the next step and the others in the second one.  A cluster ends with a barrier of all waves
    OFFSET     the second half of the waves meets one barrier more before the loops, the first half one more behind them: where
               one half computes, the other, on the same SIMDs, moves memory.  Without it there is a wave to a SIMD, and a step
               has one compute cluster, within which the toolchain interleaves, and one barrier
    STAGE      keys come by asynchronous copies into one of two slots, values through registers into one of two slots, features
               first; the waves share both out by rows.  What a memory cluster reads from shared memory is awaited at its end,
               as the other half may write over it next
    AHEAD      of the fragments of an operand that a compute cluster multiplies, the first come in the memory cluster before it:
               of keys those of the first part, which the first half of the waves brings, as the second half still awaits its own
    CARRY      where exponentials are left over for the next step, `j_prev` is the tile that they are of, and what they subtract
               is in the same rows whichever loop its step was of: a loop without dead rows has one more statement for it
    PEEL, NEXT the first step stands before the loops: cluster `prologue`, of the last tile that any loop walks.  The tile after j
               is j - 1 within a part of the mask, else the last one of the nearest part below that has tiles, -1 if none has
    OWN        query rows are loaded into registers by the wave that has them

Source: HipKittens, arXiv 2511.08083, section 3 (8-wave ping-pong).
Raises ScheduleFault E0811 for steps or operands of another form, E0812 for keys that waves cannot share out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilec.ir.build import add, compare, minimum, mod, sub, where
from tilec.ir.expr import ONE, ZERO, Expr, Int, Var
from tilec.ir.nodes import (
    Await,
    Bar,
    Barrier,
    Cluster,
    Compute,
    For,
    If,
    Interleave,
    Let,
    Priority,
    Program,
    Role,
    Stmt,
    Sync,
    While,
)
from tilec.ir.nodes import walk as statements
from tilec.passes.key_parts import Softmax, same_rows, sort
from tilec.passes.key_steps import at_tile
from tilec.passes.overlap import split
from tilec.passes.parts import extent, parts, some
from tilec.passes.reuse import in_place
from tilec.passes.scope import fresh, key_axes
from tilec.passes.tidy import tidy
from tilec.passes.wave_operands import LDS, MEMORY, Operands

SLOTS = 2  # of keys and of values


@dataclass(frozen=True)
class Turns:
    """`offset`: rule OFFSET.  `beside`: where exponentials stand, rule LAG.  `keys_ahead`: features of the first part of keys
    whose fragments a memory cluster reads, and `values_ahead`: keys of values; rule AHEAD.  `scores`, `outputs`: order of the
    instructions of the two compute clusters.  `registers` of a lane at most."""

    offset: bool = True
    beside: Literal["memory", "products"] = "memory"
    keys_ahead: int = 64
    values_ahead: int = 16
    scores: tuple[Interleave, ...] = ()
    outputs: tuple[Interleave, ...] = ()
    registers: int = 256


def ping_pong(program: Program, turns: Turns = Turns()) -> Program:
    """The program in clusters.  Raises ValueError if it is not the one-role form on waves."""
    (role,) = program.roles
    if role.unit != "wave":
        raise ValueError("ping_pong needs rows split over waves")
    _, k = key_axes(program)
    role = in_place(role, k)
    pass_ = _PingPong(program.with_(roles=(role,)), role, turns)
    body = pass_.block(role.body, looped=False)
    barrier = Barrier(pass_.everyone.name, "named", role.count)
    buffers = tuple(pass_.operands.register(b) for b in role.buffers) + pass_.operands.staged
    return tidy(
        program.with_(
            buffers=(*program.buffers, *pass_.operands.shared.values()),
            barriers=(*program.barriers, barrier),
            roles=(replace(role, body=body, buffers=buffers, registers=turns.registers),),
        )
    )


class _PingPong:
    def __init__(self, program: Program, role: Role, turns: Turns) -> None:
        self.turns = turns
        loops = [s for s in statements(role.body) if isinstance(s, For) and s.proof is not None]
        self.var = loops[0].var
        stems = ("first", "prev", "next", "below")
        self.everyone, self.step, self.first, self.previous, self.next, self.below = fresh(
            program, "everyone", "n", *(f"{self.var}_{stem}" for stem in stems)
        )
        self.operands = Operands(program, role, split(loops[0]), turns.keys_ahead, turns.values_ahead)
        self.half = role.count // 2

    @property
    def sync(self) -> Sync:
        return Sync(Bar(self.everyone.name))

    # ------------------------------------------------------------------------------------------ blocks

    def block(self, body: tuple[Stmt, ...], *, looped: bool) -> tuple[Stmt, ...]:
        """The statements with cluster `keys` rewritten, wherever it is; `looped`: a block comes by here several times."""
        out: list[Stmt] = []
        for s in body:
            match s:
                case Cluster("keys", loops):
                    found = tuple(x for x in loops if isinstance(x, For))
                    out.append(Cluster("keys", self.keys(found, looped=looped)))
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
        """Prologue, loops and epilogue of these consecutive loops: rules PEEL and NEXT."""
        general = next((x for x in loops if x.proof is not None and x.proof.segment != "full"), loops[0])
        any_tile, last = extent(loops)
        lets: list[Stmt] = []
        steps: list[Stmt] = []
        below: Expr = Int(-1)
        following: Expr = Int(-1)  # the first tile's
        found = parts(loops)
        for n, part in enumerate(found):
            steps = [*(self.loop(x, general, part[0].lo, below, ends=x.hi is last) for x in reversed(part)), *steps]
            here = where(compare(">", self.first, part[0].lo), sub(self.first, 1), below)
            following = here if len(found) == 1 else where(some(part), here, following)
            if n + 1 < len(found):
                name = Var(f"{self.below.name}{n + 1}")
                lets.append(Let(name.name, where(some(part), sub(part[-1].hi, 1), below)))
                below = name
        ready: tuple[Stmt, ...] = (self.sync,) if looped else ()
        body: tuple[Stmt, ...] = (
            Let(self.first.name, sub(last, 1)),
            *lets,
            Let(self.next.name, following),
            Cluster("prologue", (*ready, *self.prologue(general))),
            *self.apart(1),
            *steps,
            *self.apart(0),
            Cluster("epilogue", self.epilogue(general)),
        )
        return (If(any_tile, body),)

    def apart(self, group: int) -> tuple[Stmt, ...]:
        """Rule OFFSET: one more barrier of half the waves."""
        if not self.turns.offset:
            return ()
        return (If(compare(">=" if group else "<", self.operands.instance, self.half), (self.sync,)),)

    # ------------------------------------------------------------------------------------------ steps

    def softmax(self, loop: For) -> Softmax:
        step = split(loop)
        return sort((*step.softmax, *step.pack), self.operands.parts)

    @property
    def carries(self) -> bool:
        """Whether exponentials are left over: rule CARRY."""
        return not self.turns.offset or self.turns.beside == "products"

    def apart_from_pack(self, loop: For) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """`early`, and of it what rounds the weights."""
        operand, early = split(loop).gather.a.buffer, self.early(loop)
        rounds = tuple(s for s in early if isinstance(s, Compute) and s.dst.buffer == operand)
        return tuple(s for s in early if s not in rounds), rounds

    def last(self, loop: For) -> tuple[Stmt, ...]:
        """Exponentials of the last of several parts, in their own step."""
        return tuple(s for part in self.softmax(loop).weights[1:][-1:] for s in part)

    def early(self, loop: For) -> tuple[Stmt, ...]:
        """Exponentials of the parts that stand in their own step: all but the last one, or the only one."""
        weights = self.softmax(loop).weights
        return tuple(s for part in weights[: max(1, len(weights) - 1)] for s in part)

    def late(self, general: For) -> tuple[Stmt, ...]:
        """Exponentials left over from the step before: rule CARRY."""
        weights = self.softmax(general).weights
        return tuple(at_tile(s, self.var, self.previous) for part in weights[1:][-1:] for s in part)

    def statistics(self, loop: For, general: For) -> tuple[Stmt, ...]:
        """With the rows that `late` reads."""
        own, whole = self.softmax(loop), self.softmax(general)
        if not self.carries:
            return own.statistics
        return (*own.statistics, *same_rows(whole.weights[-1], own.weights[-1]))

    def prologue(self, general: For) -> tuple[Stmt, ...]:
        """The first step: its scores, its values on their way, and what the loops expect of the step before theirs."""
        o = self.operands
        first = replace(general, body=tuple(at_tile(s, self.var, self.first) for s in general.body))
        step = split(first)
        return (
            *o.copy_keys(step, ZERO),
            Await(MEMORY, 0),
            self.sync,
            *o.all_keys(ZERO),
            *o.scores(step),
            *o.load_values(step),
            *self.fetch(general, ONE),
            *self.softmax(first).statistics,
            *self.early(first),
            *(() if self.carries else self.last(first)),
            Await(MEMORY, 0),
            *o.store_values(ZERO),
            Await(LDS, 0),
            self.sync,
            *self.ahead(ONE),
            *_awaited(self.ahead(ONE)),
            Let(self.previous.name, self.first),
            Let(self.step.name, ONE),
        )

    def fetch(self, loop: For, slot: Expr) -> tuple[Stmt, ...]:
        """Copies of the next tile of keys, where there is one."""
        copies = self.operands.copy_keys(split(loop), slot, (self.var, self.next))
        return (If(compare(">=", self.next, 0), copies),)

    def ahead(self, slot: Expr) -> tuple[Stmt, ...]:
        """The first fragments of the next keys, of which there may be none."""
        moves = self.operands.first_keys(slot) if self.turns.offset else ()
        return (If(compare(">=", self.next, 0), moves),) if moves else ()

    def loop(self, loop: For, general: For, lo: Expr, below: Expr, *, ends: bool) -> For:
        """A loop of steps behind the first one; `lo` begins its part, `below` is the tile after that."""
        o, step, j = self.operands, split(loop), Var(loop.var)
        here, other = mod(self.step, SLOTS), mod(add(self.step, 1), SLOTS)
        following = Let(self.next.name, where(compare(">", j, lo), sub(j, 1), below))
        start = (*o.load_values(step), following, *self.fetch(loop, other))
        count = (Let(self.previous.name, j), Let(self.step.name, add(self.step, 1)))
        first, *others = o.scores(step)
        statistics, early, late = self.statistics(loop, general), self.early(loop), self.late(general)
        if self.turns.offset:
            read = o.first_values(other)
            beside: tuple[Stmt, ...] = ()
            behind: tuple[Stmt, ...] = ()
            if not self.carries:
                beside, rounds = self.apart_from_pack(loop)
                behind, early, late = (*rounds, *self.last(loop)), (), ()
            scores = (*o.rest_of_keys(here), first, *late, *others)
            outputs = (*o.rest_of_values(other), *o.outputs(step), *early)
            end = (*step.rescale, *behind, *o.store_values(here), *self.ahead(other), Await(LDS, 0), *count)
            body: tuple[Stmt, ...] = (
                Cluster("compute", (Priority(1), *scores, Priority(0)), self.turns.scores),
                self.sync,
                Cluster("memory", (*start, *read, *statistics, *beside, *_awaited(read))),
                self.sync,
                Cluster("compute", (Priority(1), *outputs, Priority(0), Await(MEMORY, 0)), self.turns.outputs),
                self.sync,
                Cluster("memory", end),
                self.sync,
            )
        else:
            scores = (*o.all_keys(here), first, *late, *others)
            outputs = (*o.all_values(other), *o.outputs(step), *early)
            end = (*step.rescale, Await(MEMORY, 0), *o.store_values(here), Await(LDS, 0), *count)
            body = (
                Cluster("memory", start),
                Cluster("compute", (*scores, *statistics, *outputs), self.turns.scores),
                Cluster("memory", end),
                self.sync,
            )
        hi = self.first if ends else minimum(loop.hi, self.first)
        return replace(loop, hi=hi, body=body, stages=None, down=True)

    def epilogue(self, general: For) -> tuple[Stmt, ...]:
        """The values of the last step."""
        o, other = self.operands, mod(add(self.step, 1), SLOTS)
        return (*(self.late(general) if self.carries else ()), *o.all_values(other), *o.outputs(split(general)))


def _awaited(moves: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return (Await(LDS, 0),) if moves else ()
