"""overlap: products of neighbouring key steps in flight together.

Contract.  In: the one-pass loops of `online_softmax` in cluster `keys`, positions written out, tiles of keys and values loaded in
the step that uses them.  Out: the same steps from the last tile of keys to the first, products on queue `wgmma`.  A step issues
the scores of tile j and then the values of the tile before it, awaits the scores (one operation pending), and awaits the
values in the middle of the exponentials.  Results differ by the order of tiles alone.

    PEEL      the first step has scores only: cluster `prologue`, of the last tile that any loop walks (`j_first`), which then
              ends the ranges of all loops.  It applies the mask if any loop does, so it may stand for a step of each.
              What is left over is the values of the last step: cluster `epilogue`
    EMPTY     all of it stands under "some loop has a tile".  Loops of one part of a mask are contiguous (`arith.segments`), so
              a part has tiles if its first loop begins before its last one ends
    CARRY     `j_prev` is the tile whose values are still to be added: between parts it is not j + 1
    CLIP      a box is clipped by hardware whatever its guard says, so loops share the guard of the masked ones
    EARLY     values per key (a param that the mask or a score line reads) are loaded in front of a step's products, and have
              come when these are made
    START     what the running maximum, sum and output start as is folded into the first step

Source: FlashAttention-3, Shah et al., arXiv 2407.08608, section 3.2, algorithm 2 (two-stage pipelining within a warpgroup).
Where the second await lands among the exponentials is a choice (`Pipeline.wait`): ptxas hoists an unpinned one above them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.dsl.faults import ScheduleFault
from tilec.ir.axes import constant
from tilec.ir.build import minimum, sub
from tilec.ir.expr import Expr, Float, Op, Read, Reduce, Var, substitute, walk
from tilec.ir.nodes import (
    Await,
    Cluster,
    Compute,
    For,
    If,
    Let,
    Load,
    Mma,
    Program,
    Stmt,
    While,
    map_exprs,
)
from tilec.ir.nodes import walk as statements
from tilec.passes.first_step import first_step
from tilec.passes.parts import extent
from tilec.passes.scope import fresh, key_axes

QUEUE = "wgmma"
COLUMNS = 8  # of a group of exponentials: one row's part of an 8-column block of the accumulator
ROWS_OF_A_THREAD = 2


@dataclass(frozen=True)
class Pipeline:
    """`lag`: whether values trail scores by a step.  `wait`: groups of exponentials, of 2 rows x keys / 8 columns, before the
    values of the step before are awaited; None: a quarter of them.  `chains`: of a thread's sum of weights (`ir.expr.Reduce`),
    in steps with a lag."""

    lag: bool = True
    wait: int | None = None
    chains: int = 0


@dataclass(frozen=True)
class Step:
    """The parts of a key step.  `vectors`: loads of values per key; `scores`: loads and products of queries with keys; `softmax`
    ends with the weights; `pack` rounds them to the operand that `gather` multiplies with the loaded `values`; `rescale` belongs
    to its destination."""

    vectors: tuple[Load, ...]
    scores: tuple[Load | Mma, ...]
    softmax: tuple[Stmt, ...]
    pack: tuple[Stmt, ...]
    rescale: tuple[Stmt, ...]
    values: tuple[Load, ...]
    gather: Mma


def overlap(program: Program, pipeline: Pipeline = Pipeline()) -> Program:
    """The program with asynchronous products.  ScheduleFault E0811 where a step has not the form of `Step`, E0808 for a wait
    outside the exponentials.  Raises ValueError if its products are asynchronous already."""
    (role,) = program.roles
    if any(isinstance(s, Mma) and s.queue is not None for s in statements(role.body)):
        raise ValueError("the products are asynchronous already")
    body = _Overlap(program, pipeline).block(role.body)
    return program.with_(roles=(replace(role, body=body),))


class _Overlap:
    def __init__(self, program: Program, pipeline: Pipeline) -> None:
        _, k = key_axes(program)
        self.pipeline = pipeline
        buffers = program.roles[0].buffers
        (size,) = {constant(a.size, dict(program.tile)) for b in buffers for a in b.axes if a.name == k}
        assert size is not None
        self.wide = {b.name for b in buffers if len(b.axes) > 1 and any(a.name == k for a in b.axes)}
        self.vectors = frozenset(b.name for b in buffers if [a.name for a in b.axes] == [k])
        self.groups = ROWS_OF_A_THREAD * size // COLUMNS
        self.wait = self.groups // 4 if pipeline.wait is None else pipeline.wait
        if not 0 <= self.wait <= self.groups:
            raise ScheduleFault("E0808", f"a wait after {self.wait} groups of {self.groups} exponentials")
        var = next(s.var for s in statements(program.roles[0].body) if isinstance(s, For) and s.proof is not None)
        self.first, self.previous = fresh(program, f"{var}_first", f"{var}_prev")

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The statements with cluster `keys` rewritten, wherever it is."""
        out: list[Stmt] = []
        for n, s in enumerate(body):
            match s:
                case Cluster("keys", loops):
                    found = tuple(x for x in loops if isinstance(x, For))
                    rewritten = self.lagging(found, _starts(body[:n])) if self.pipeline.lag else self.in_turn(found)
                    out.append(Cluster("keys", rewritten))
                case If(cond, then, orelse):
                    out.append(If(cond, self.block(then), self.block(orelse)))
                case Cluster() | While():
                    out.append(replace(s, body=self.block(s.body)))
                case _:
                    out.append(s)
        return tuple(out)

    def lagging(self, loops: tuple[For, ...], starts: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        """Prologue, loops and epilogue for these consecutive loops: rules PEEL and START."""
        general = next((x for x in loops if x.proof is not None and x.proof.segment != "full"), loops[0])
        whole = split(general, self.vectors)
        values = tuple(_at(s, general.var, self.previous) for s in whole.values)
        gather: tuple[Stmt, ...] = (*values, replace(whole.gather, queue=QUEUE))
        prologue = (
            *(_at(_started(s), general.var, self.first) for s in (*whole.vectors, *whole.scores)),
            Await(QUEUE, 0),
            *first_step(
                tuple(_at(s, general.var, self.first) for s in (*whole.softmax, *whole.pack, *whole.rescale)), starts
            ),
        )
        some, last = extent(loops)
        steps = tuple(self.loop(x, whole, gather, x.hi is last) for x in reversed(loops))
        return (
            Let(self.first.name, sub(last, 1)),
            Let(self.previous.name, self.first),
            If(some, (Cluster("prologue", prologue), *steps, Cluster("epilogue", (*gather, Await(QUEUE, 0))))),
        )

    def loop(self, loop: For, whole: Step, gather: tuple[Stmt, ...], ends_last: bool) -> For:
        """A loop whose steps trail: rules CARRY and CLIP; `ends_last`: its end is just after the peeled tile."""
        step = split(loop, self.vectors)
        clipped = {s.dst: s for s in whole.scores if isinstance(s, Load) and s.box}
        scores = (clipped.get(s.dst, s) if isinstance(s, Load) and s.box else s for s in step.scores)
        body = (
            *step.vectors,
            *map(_started, scores),
            *gather,
            Await(QUEUE, 1),
            *self.awaiting(step),
            *step.pack,
            *step.rescale,
            Let(self.previous.name, Var(loop.var)),
        )
        hi = self.first if ends_last else minimum(loop.hi, self.first)
        return replace(loop, hi=hi, body=body, stages=None, down=True)

    def in_turn(self, loops: tuple[For, ...]) -> tuple[For, ...]:
        """Each product awaited before what uses it."""
        out = []
        for loop in loops:
            s = split(loop, self.vectors)
            scores, gather = map(_started, s.scores), replace(s.gather, queue=QUEUE)
            wait = Await(QUEUE, 0)
            body = (*s.vectors, *scores, wait, *s.softmax, *s.pack, *s.rescale, *s.values, gather, wait)
            out.append(replace(loop, body=body, stages=None))
        return tuple(out)

    def awaiting(self, step: Step) -> tuple[Stmt, ...]:
        """The softmax of a step with the await of the values inside its exponentials, and the chains of its sum."""
        host = next(s for s in step.softmax if self._is_exponential(s))
        assert isinstance(host, Compute)
        held = replace(host, during=(Await(QUEUE, 0),), after=self.wait, of=self.groups)
        return tuple(self._chained(held if s is host else s) for s in step.softmax)

    def _chained(self, s: Stmt) -> Stmt:
        if not isinstance(s, Compute):
            return s
        sums = (x for x in walk(s.value) if isinstance(x, Reduce) and x.op == "sum")
        chained: dict[Expr, Expr] = {x: replace(x, chains=self.pipeline.chains) for x in sums}
        return replace(s, value=substitute(s.value, chained))

    def _is_exponential(self, s: Stmt) -> bool:
        """Of a whole tile, not of rows alone."""
        if not isinstance(s, Compute):
            return False
        parts = list(walk(s.value))
        return s.dst.buffer in self.wide and any(isinstance(x, Op) and x.name == "exp2" for x in parts)


def split(loop: For, vectors: frozenset[str] = frozenset()) -> Step:
    """The parts of a loop's body, where `vectors` hold a value per key.  ScheduleFault E0811 if it has others."""
    computed = {s.dst.buffer for s in loop.body if isinstance(s, Compute)}
    products = [s for s in loop.body if isinstance(s, Mma)]
    gathers = [s for s in products if s.accumulate and s.a.buffer in computed]
    operands = {x.buffer for s in products if s not in gathers for x in (s.a, s.b)}
    if len(gathers) != 1 or operands & computed:
        raise _unfit("a step that is not one product of weights with values after those of queries with keys")
    (gather,) = gathers
    if gather.b.buffer in operands:
        raise _unfit(f"`{gather.b.buffer}`, which is keys and values at once")
    early: list[Load] = []
    scores: list[Load | Mma] = []
    parts: dict[str, list[Stmt]] = {"softmax": [], "pack": [], "rescale": []}
    values: list[Load] = []
    for s in loop.body:
        match s:
            case Mma():
                scores += [] if s is gather else [s]
            case Load() if s.dst.buffer in operands:
                scores.append(s)
            case Load() if s.dst == gather.b:
                values.append(s)
            case Load() if s.dst.buffer in vectors and s.dst.buffer not in computed:
                early.append(s)
            case Compute() if s.dst == gather.dst:
                parts["rescale"].append(s)
            case Compute() if s.dst == gather.a:
                parts["pack"].append(s)
            case Compute() | Load():
                parts["softmax"].append(s)
            case _:
                raise _unfit(f"a {type(s).__name__.lower()} in a key step")
    if any(isinstance(x, Read) for s in values for i in s.index for x in walk(i)):
        raise _unfit("values that are gathered through a tile of positions")
    return Step(
        tuple(early), tuple(scores), **{n: tuple(x) for n, x in parts.items()}, values=tuple(values), gather=gather
    )


def _unfit(what: str) -> ScheduleFault:
    return ScheduleFault("E0811", f"the native pipeline does not take {what}", hint="the portable backend does")


def _started(s: Stmt) -> Stmt:
    return replace(s, queue=QUEUE) if isinstance(s, Mma) else s


def _at(s: Stmt, var: str, value: Expr) -> Stmt:
    """A statement of a key step for the tile numbered `value`."""
    return map_exprs(s, lambda e: substitute(e, {Var(var): value}))


def _starts(before: tuple[Stmt, ...]) -> dict[Expr, Expr]:
    """Register tiles that hold one constant."""
    known: dict[Expr, Expr] = {}
    for s in before:
        if isinstance(s, Compute) and not s.dst.windows:
            known.pop(Read(s.dst.buffer), None)
            if isinstance(s.value, Float):
                known[Read(s.dst.buffer)] = s.value
    return known
