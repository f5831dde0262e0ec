"""Statements of a role as closures over a running instance; axes, lanes and kinds are resolved once per program.

A block is a list of steps.  A plain step is a function of the instance; a blocking one is a generator that yields to
the scheduler (`ir.interp`): None where another instance may be run first, a `Blocked` where it cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilec.ir import nodes
from tilec.ir.access import Place, contraction, fetch, into, place, scalar, store
from tilec.ir.axes import Axes, AxisError, Lanes, Scope, buffer_lanes, kind_of_dtype, lanes_of, scope_of
from tilec.ir.errors import Changed
from tilec.ir.evaluate import Live, Run, compile_expr
from tilec.ir.expr import Expr
from tilec.ir.expr import walk as walk_expr
from tilec.ir.nodes import Program, Role, Stmt


@dataclass(frozen=True)
class Blocked:
    """Why an instance cannot go on: `ready` says when it can, `why` what it waits for."""

    ready: Callable[[], bool]
    why: Callable[[], str]


Steps = Iterator[Blocked | None]
Block = list["Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One statement: `plain` runs to its end, `blocking` is a generator; exactly one is given.

    `visible`: what it does can be seen by other instances, so the scheduler may switch before it."""

    stmt: Stmt
    plain: Callable[[Any], None] | None = None
    blocking: Callable[[Any], Steps] | None = None
    visible: bool = False


def run_block(f: Any, block: Block) -> Steps:
    """Runs the steps in order on instance `f`."""
    for step in block:
        if step.visible and f.shares:
            yield None
        f.stmt = step.stmt
        if step.plain is not None:
            step.plain(f)
        elif step.blocking is not None:
            yield from step.blocking(f)


@dataclass(frozen=True)
class Executable:
    """A program ready to run: the steps of its roles, and its grid and dimensions as functions of the extents."""

    program: Program
    roles: tuple[tuple[Role, Block, Mapping[str, Lanes]], ...]  # with the lanes of their register buffers
    shared: Mapping[str, Lanes]
    ctas: Run
    dims: Mapping[str, tuple[Run, ...]]


class Extents:
    """A frame with the program's runtime scalars alone: for the grid and the dimensions of tensors."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.vars: dict[str, Any] = dict(values)

    def read(self, buffer: str, stage: int) -> Any:
        raise AxisError(f"buffer {buffer} is read outside a role")

    def gather(self, tensor: str, index: list[Any], axes: Axes, live: Live | None) -> Any:
        raise AxisError(f"tensor {tensor} is read outside a role")

    def unbound(self, name: str) -> Exception:
        return AxisError(f"{name} is no extent")


@lru_cache(maxsize=64)
def compile_program(p: Program) -> Executable:
    """Prepares a program; AxisError where axes or names do not fit.  Cached: programs are values."""
    constants = dict(p.tile)
    outer = Scope({t.name: kind_of_dtype(t.dtype) for t in p.tensors}, {}, constants)
    shared = buffer_lanes(p.buffers, constants)
    return Executable(
        p,
        tuple(
            (r, Compiler(scope_of(p, r), frozenset(shared)).block(r.body), buffer_lanes(r.buffers, constants))
            for r in p.roles
        ),
        shared,
        scalar(p.grid.ctas, outer),
        {t.name: tuple(scalar(d, outer) for d in t.dims) for t in p.tensors},
    )


class Compiler:
    """Turns the statements of one role into steps."""

    def __init__(self, scope: Scope, shared: frozenset[str]) -> None:
        self.scope = scope
        self.shared = shared

    def block(self, body: tuple[Stmt, ...]) -> Block:
        return [self.step(s) for s in body]

    def scalar(self, e: Expr) -> Run:
        return scalar(e, self.scope)

    def step(self, s: Stmt) -> Step:
        match s:
            case nodes.Let(name, value):
                run = self.scalar(value)

                def let(f: Any) -> None:
                    f.vars[name] = run(f, None)

                return Step(s, plain=let, visible=self.touches(s))
            case nodes.Seek():
                return Step(s, plain=self.seek(s), visible=self.touches(s))
            case nodes.Compute():
                return self.compute(s)
            case nodes.Load():
                dst, load, queue = place(s.dst, self.scope), fetch(s, self.scope), s.queue
                if queue is not None:
                    return Step(s, blocking=lambda f: f.copy(dst, load(f), None, queue), visible=True)
                return Step(s, plain=lambda f: f.write(dst, load(f)), visible=self.touches(s))
            case nodes.Move():
                return Step(s, plain=self.move(s), visible=s.queue is not None or self.touches(s))
            case nodes.Store():
                return Step(s, plain=store(s, self.scope), visible=self.touches(s))
            case nodes.Mma():
                return Step(s, plain=self.mma(s), visible=True)
            case nodes.Copy():
                return Step(s, blocking=self.copy(s), visible=True)
            case nodes.Send():
                return Step(s, blocking=self.send(s), visible=True)
            case nodes.Await(queue, pending):
                return Step(s, plain=lambda f: f.await_queue(queue, pending), visible=True)
            case nodes.Wait(bar, parity):
                stage, want = self.scalar(bar.stage), self.scalar(parity)
                return Step(s, blocking=lambda f: f.wait(bar.name, stage(f, None), want(f, None)), visible=True)
            case nodes.Arrive():
                return Step(s, plain=self.arrive(s), visible=True)
            case nodes.Sync(bar):
                stage = self.scalar(bar.stage)
                return Step(s, blocking=lambda f: f.sync(bar.name, stage(f, None)), visible=True)
            case nodes.Claim(name, counter):

                def claim(f: Any) -> None:
                    f.vars[name] = f.claim(counter)

                return Step(s, plain=claim, visible=True)
            case nodes.Fence(kind):
                return Step(s, plain=lambda f: f.fence(kind))
            case nodes.Priority():
                return Step(s, plain=lambda f: None)
            case nodes.Cluster():
                body = self.block(s.body)
                return Step(s, blocking=lambda f: run_block(f, body))
            case nodes.If():
                return Step(s, blocking=self.branch(s), visible=self.touches(s))
            case nodes.For():
                return Step(s, blocking=self.loop(s), visible=self.touches(s))
            case nodes.While():
                return Step(s, blocking=self.repeat(s), visible=True)
        raise TypeError(f"not a statement: {s!r}")

    def touches(self, s: Stmt) -> bool:
        """Whether the statement itself reads or writes shared memory."""
        found: list[str] = []

        def look(e: Expr) -> Expr:
            found.extend(x.buffer for x in walk_expr(e) if hasattr(x, "buffer"))
            return e

        nodes.map_exprs(s, look)
        found.extend(x.buffer for x in (getattr(s, n, None) for n in ("dst", "src")) if x is not None)
        return any(name in self.shared for name in found)

    def seek(self, s: nodes.Seek) -> Callable[[Any], None]:
        low, high = self.scalar(s.lo), self.scalar(s.hi)
        holds, name = self.scalar(s.cond), s.name

        def run(f: Any) -> None:
            lo, hi = low(f, None), high(f, None)
            while lo < hi:
                middle = (lo + hi) // 2
                f.vars[name] = middle
                if holds(f, None):
                    hi = middle
                else:
                    lo = middle + 1
            f.vars[name] = lo

        return run

    def compute(self, s: nodes.Compute) -> Step:
        dst = place(s.dst, self.scope)
        code = compile_expr(s.value, self.scope, lanes_of(self.scope, dict(dst.lanes), s.value))
        run = into(code, dst.axes)
        if s.unless is not None:
            run = self.kept(s.unless, dst, run)
        if not s.during:
            return Step(s, plain=lambda f: f.write(dst, run(f, None)), visible=self.touches(s))
        during = self.block(s.during)

        # Operands and destination are in use from before `during` until after it: both ends are checked.
        def split(f: Any) -> Steps:
            run(f, None)
            f.touch_write(dst)
            yield from run_block(f, during)
            f.stmt = s
            f.write(dst, run(f, None))

        return Step(s, blocking=split, visible=True)

    def kept(self, unless: Expr, dst: Place, run: Run) -> Run:
        """`run`, which must change no lane of `dst` in which `unless` holds."""
        holds = into(compile_expr(unless, self.scope, lanes_of(self.scope, dict(dst.lanes), unless)), dst.axes)

        def checked(f: Any, live: Live | None) -> Any:
            held, own, new = holds(f, live), f.load(dst), run(f, live)
            same = (own == new) | ((own != own) & (new != new))  # NaN stays NaN
            if np.any(held & ~same):
                raise Changed(f"{dst.buffer} changes in lanes where {unless}")
            return new

        return checked

    def mma(self, s: nodes.Mma) -> Callable[[Any], None]:
        dst, a, b = (place(x, self.scope) for x in (s.dst, s.a, s.b))
        product = contraction(dst, a, b)
        accumulate, queue = s.accumulate, s.queue

        def run(f: Any) -> None:
            if queue is None:
                value = product(f.load(a), f.load(b))
                f.write(dst, f.load(dst) + value if accumulate else value)
            else:
                f.issue_mma(dst, a, b, product, accumulate, queue)

        return run

    def move(self, s: nodes.Move) -> Callable[[Any], None]:
        dst, src = place(s.dst, self.scope), place(s.src, self.scope)
        queue, order = s.queue, tuple(src.axes.index(a) for a in dst.axes)

        def run(f: Any) -> None:
            if queue is None:
                f.write(dst, np.transpose(f.load(src), order))
            else:
                f.issue_move(dst, src, order, queue)

        return run

    def copy(self, s: nodes.Copy) -> Callable[[Any], Steps]:
        dst, load = place(s.dst, self.scope), fetch(s, self.scope)
        if s.signal is None:
            return lambda f: f.copy(dst, load(f), None, s.queue)
        name, stage = s.signal.name, self.scalar(s.signal.stage)
        return lambda f: f.copy(dst, load(f), (name, stage(f, None)), None, everywhere=s.multicast)

    def send(self, s: nodes.Send) -> Callable[[Any], Steps]:
        dst, value = place(s.dst, self.scope), self.scalar(s.value)
        name, stage = s.signal.name, self.scalar(s.signal.stage)
        return lambda f: f.copy(dst, value(f, None), (name, stage(f, None)), None, everywhere=True)

    def arrive(self, s: nodes.Arrive) -> Callable[[Any], None]:
        name, stage, everywhere = s.bar.name, self.scalar(s.bar.stage), s.everywhere
        at = None if s.at is None else self.scalar(s.at)

        def run(f: Any) -> None:
            f.arrive(name, stage(f, None), None if at is None else at(f, None), everywhere)

        return run

    def branch(self, s: nodes.If) -> Callable[[Any], Steps]:
        test, then, orelse = self.scalar(s.cond), self.block(s.then), self.block(s.orelse)
        return lambda f: run_block(f, then if test(f, None) else orelse)

    def loop(self, s: nodes.For) -> Callable[[Any], Steps]:
        low, high, body, name = self.scalar(s.lo), self.scalar(s.hi), self.block(s.body), s.var

        def run(f: Any) -> Steps:
            numbers = range(low(f, None), high(f, None))
            for i in reversed(numbers) if s.down else numbers:
                f.vars[name] = i
                yield from run_block(f, body)

        return run

    def repeat(self, s: nodes.While) -> Callable[[Any], Steps]:
        test, body = self.scalar(s.cond), self.block(s.body)

        def run(f: Any) -> Steps:
            while test(f, None):
                yield from run_block(f, body)
                yield None
                f.stmt = s

        return run
