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
from tilec.ir.evaluate import ALL, AxisError, Code, Lanes, Run, Scope, aligned, compile_expr, lanes_of, spread
from tilec.ir.expr import Expr, Iota, Kind, Op, kind_of
from tilec.ir.expr import walk as walk_expr
from tilec.ir.memory import Box, kind_of_dtype
from tilec.ir.nodes import Buffer, Program, Role, Slot, Stmt


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
        f.stmt = step.stmt
        if step.visible and f.shares:
            yield None
            f.stmt = step.stmt
        if step.plain is not None:
            step.plain(f)
        elif step.blocking is not None:
            yield from step.blocking(f)


@dataclass(frozen=True)
class Executable:
    """A program ready to run: its roles' steps, and the scope for its grid expressions."""

    program: Program
    roles: tuple[tuple[Role, Block], ...]
    tiles: Code
    ctas: Code
    dims: Mapping[str, tuple[Run, ...]]
    sizes: Mapping[str, tuple[tuple[str, int], ...]]  # shared buffers
    role_sizes: Mapping[str, Mapping[str, tuple[tuple[str, int], ...]]]


class Empty:
    """A frame with no names: for constant expressions."""

    def __init__(self, values: Mapping[str, int] | None = None) -> None:
        self.vars: dict[str, Any] = dict(values or {})

    def read(self, buffer: str, stage: int) -> Any:
        raise AxisError(f"{buffer} is read in a constant expression")

    def gather(self, tensor: str, index: list[Any], axes: tuple[str, ...], live: Lanes | None) -> Any:
        raise AxisError(f"{tensor} is read in a constant expression")

    def unbound(self, name: str) -> Exception:
        return AxisError(f"{name} is not a constant here")


def constant(e: Expr, scope: Scope) -> int:
    """Value of an expression over tile constants; AxisError if it is none."""
    value = compile_expr(e, scope, {}).run(Empty(), None)
    assert isinstance(value, int)
    return value


def sizes_of(buffers: tuple[Buffer, ...], scope: Scope) -> dict[str, tuple[tuple[str, int], ...]]:
    """Lanes along each axis of each buffer."""
    return {b.name: tuple((a.name, constant(a.size, scope)) for a in b.axes) for b in buffers}


@lru_cache(maxsize=64)
def compile_program(p: Program) -> Executable:
    """Prepares a program; AxisError where axes or names do not fit.  Cached: programs are values."""
    constants = dict(p.tile)
    kinds: dict[str, Kind] = {t.name: kind_of_dtype(t.dtype) for t in p.tensors}
    outer = Scope(kinds, {}, constants)
    shared = sizes_of(p.buffers, outer)
    roles, private = [], {}
    for role in p.roles:
        own = sizes_of(role.buffers, outer)
        private[role.name] = own
        buffers = {b.name: kind_of_dtype(b.dtype) for b in (*p.buffers, *role.buffers)}
        scope = Scope(infer_kinds(role.body, {**kinds, **buffers}), {**shared, **own}, constants)
        is_shared = frozenset(shared)
        roles.append((role, Compiler(scope, is_shared).block(role.body)))
    return Executable(
        p,
        tuple(roles),
        compile_expr(p.grid.tiles, outer, {}),
        compile_expr(p.grid.ctas, outer, {}),
        {t.name: tuple(compile_expr(d, outer, {}).run for d in t.dims) for t in p.tensors},
        shared,
        private,
    )


def infer_kinds(body: tuple[Stmt, ...], known: Mapping[str, Kind]) -> dict[str, Kind]:
    """Kinds of the role's scalars, beside those of its buffers and tensors: the widest of what each is given."""
    kinds = dict(known)
    rank: dict[Kind, int] = {"bool": 0, "int": 1, "float": 2}
    lets = [s for s in nodes.walk(body) if isinstance(s, nodes.Let)]
    for _ in range(len(lets) + 1):
        given: dict[str, Kind] = {}
        for s in lets:
            kind = kind_of(s.value, kinds)
            given[s.name] = max(kind, given.get(s.name, kind), key=rank.__getitem__)
        if all(kinds.get(n) == k for n, k in given.items()):
            break
        kinds.update(given)
    return kinds


@dataclass(frozen=True)
class Place:
    """A compiled slot: which stage and box of which buffer."""

    buffer: str
    stage: Run | None
    starts: tuple[Run | None, ...]  # per axis, None if it has no window
    lanes: tuple[tuple[str, int], ...]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for a, _ in self.lanes)

    def locate(self, f: Any) -> tuple[int, Box | None]:
        """Stage number and box (None for the whole tile)."""
        stage = 0 if self.stage is None else self.stage(f, None)
        if not any(self.starts):
            return stage, None
        box = []
        for start, (_, size) in zip(self.starts, self.lanes, strict=True):
            lo = 0 if start is None else start(f, None)
            box.append((lo, lo + size))
        return stage, tuple(box)


def part_of(e: Expr) -> tuple[Expr | None, str | None] | None:
    """`e` as base + iota(axis): (base or None, axis or None), or None if it has another form."""
    match e:
        case Iota(axis):
            return None, axis
        case Op("+", (x, y)):
            left, right = part_of(x), part_of(y)
            if left is None or right is None or (left[1] is not None and right[1] is not None):
                return None
            along = left[1] or right[1]
            if along is None:
                return e, None
            bases = [b for b, _ in (left, right) if b is not None]
            return (Op("+", (bases[0], bases[1])) if len(bases) == 2 else bases[0] if bases else None), along
        case Op("-", (x, y)):
            left, right = part_of(x), part_of(y)
            if left is None or right is None or right[1] is not None or right[0] is None:
                return None
            if left[1] is None:
                return e, None
            return (Op("neg", (right[0],)) if left[0] is None else Op("-", (left[0], right[0]))), left[1]
    return (e, None)


class Compiler:
    """Turns the statements of one role into steps."""

    def __init__(self, scope: Scope, shared: frozenset[str]) -> None:
        self.scope = scope
        self.shared = shared

    def block(self, body: tuple[Stmt, ...]) -> Block:
        return [self.step(s) for s in body]

    def place(self, s: Slot) -> Place:
        """The slot's place; windows must name axes of the buffer, their sizes are constants."""
        if s.buffer not in self.scope.sizes:
            raise AxisError(f"no buffer {s.buffer} here")
        windows = {w.axis: w for w in s.windows}
        axes = self.scope.sizes[s.buffer]
        if stray := set(windows) - {a for a, _ in axes}:
            raise AxisError(f"{s.buffer} has no axis {', '.join(sorted(stray))}")
        starts = tuple(self.scalar(windows[a].start) if a in windows else None for a, _ in axes)
        lanes = tuple((a, constant(windows[a].size, self.scope) if a in windows else n) for a, n in axes)
        return Place(s.buffer, None if s.stage is None else self.scalar(s.stage), starts, lanes)

    def scalar(self, e: Expr) -> Run:
        """A value without axes."""
        code = compile_expr(e, self.scope, lanes_of(self.scope, {}, e))
        if code.axes:
            raise AxisError(f"{e} must be a scalar, but has axes {', '.join(code.axes)}")
        return code.run

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
                dst, fetch = self.place(s.dst), self.fetch(s.dst, s.tensor, s.index, s.where, s.other)
                return Step(s, plain=lambda f: f.write(dst, fetch(f)), visible=self.touches(s))
            case nodes.Store():
                return Step(s, plain=self.store(s), visible=self.touches(s))
            case nodes.Mma():
                return Step(s, plain=self.mma(s), visible=True)
            case nodes.Copy():
                dst, fetch = self.place(s.dst), self.fetch(s.dst, s.tensor, s.index, s.where, None)
                signal = None if s.signal is None else (s.signal.name, self.scalar(s.signal.stage))

                def copy(f: Any) -> Steps:
                    at = None if signal is None else (signal[0], signal[1](f, None))
                    yield from f.copy(dst, fetch(f), at, s.queue)

                return Step(s, blocking=copy, visible=True)
            case nodes.Await(queue, pending):
                return Step(s, plain=lambda f: f.await_queue(queue, pending), visible=True)
            case nodes.Wait(bar, parity):
                stage, want = self.scalar(bar.stage), self.scalar(parity)
                return Step(s, blocking=lambda f: f.wait(bar.name, stage(f, None), want(f, None)), visible=True)
            case nodes.Arrive(bar):
                stage = self.scalar(bar.stage)
                return Step(s, plain=lambda f: f.arrive(bar.name, stage(f, None)), visible=True)
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
                return Step(s, blocking=self.repeat(s), visible=self.touches(s))
        raise TypeError(f"not a statement: {s!r}")

    def touches(self, s: Stmt) -> bool:
        """Whether the statement itself reads or writes shared memory."""
        found = False

        def look(e: Expr) -> Expr:
            nonlocal found
            found = found or any(getattr(x, "buffer", None) in self.shared for x in walk_expr(e))
            return e

        nodes.map_exprs(s, look)
        dst = getattr(s, "dst", None)
        return found or (dst is not None and dst.buffer in self.shared)

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
        dst = self.place(s.dst)
        code = compile_expr(s.value, self.scope, lanes_of(self.scope, dict(dst.lanes), s.value))
        run = self.into(code, dst.axes)
        if not s.during:
            return Step(s, plain=lambda f: f.write(dst, run(f, None)), visible=self.touches(s))
        during = self.block(s.during)

        # Operands are used from before `during` until after it: both ends are checked.
        def split(f: Any) -> Steps:
            run(f, None)
            f.touch_write(dst)
            yield from run_block(f, during)
            f.stmt = s
            f.write(dst, run(f, None))

        return Step(s, blocking=split, visible=True)

    def into(self, code: Code, want: tuple[str, ...]) -> Run:
        """`code` spread over the lanes `want`, which must include its axes."""
        if extra := [a for a in code.axes if a not in want]:
            raise AxisError(f"the value has axes {', '.join(extra)}, which the destination lacks")
        return aligned(code, want)

    def fetch(
        self, slot: Slot, tensor: str, index: tuple[Expr, ...], where: Expr | None, other: Expr | None
    ) -> Callable[[Any], Any]:
        """Reads a tile of a tensor: `other` (0 if None) where `where` is false."""
        dst = self.place(slot)
        want = dst.axes
        lanes = lanes_of(self.scope, dict(dst.lanes), *index, where, other)
        indices = [compile_expr(i, self.scope, lanes) for i in index]
        spread_index = [self.into(c, want) for c in indices]
        box = self.box(index, lanes)
        have = () if box is None else tuple(a for _, a in box if a is not None)
        test = None if where is None else compile_expr(where, self.scope, lanes)
        if test is not None:
            self.into(test, want)
        fill = None if other is None else self.into(compile_expr(other, self.scope, lanes), want)

        def run(f: Any) -> Any:
            live, mask = None, None
            if test is not None:
                flags = test.run(f, ALL)
                if not np.all(flags):
                    mask = spread(flags, test.axes, want)
                    live = Lanes(flags, test.axes)
            source = f.tensors[tensor]
            parts = None if box is None else [(b(f, live), a) for b, a in box]
            if parts is not None and source.holds(parts, lanes):
                value = spread(source.load_box(parts, lanes), have, want)
            else:
                value = source.gather([r(f, live) for r in spread_index], want, live)
            if mask is None:
                return value
            return np.where(
                mask, value, np.zeros((), getattr(value, "dtype", np.float32)) if fill is None else fill(f, None)
            )

        return run

    def box(self, index: tuple[Expr, ...], lanes: Mapping[str, int]) -> list[tuple[Run, str | None]] | None:
        """Index expressions as base + lane number of distinct axes, or None if one has another form."""
        out: list[tuple[Run, str | None]] = []
        for e in index:
            part = part_of(e)
            if part is None:
                return None
            base, axis = part
            code = Code((), "int", lambda f, live: 0) if base is None else compile_expr(base, self.scope, lanes)
            if code.axes or (axis is not None and any(axis == a for _, a in out)):
                return None
            out.append((code.run, axis))
        return out

    def store(self, s: nodes.Store) -> Callable[[Any], None]:
        lanes = lanes_of(self.scope, {}, s.value, *s.index, s.where)
        for a in s.axes:
            if a not in lanes:
                if a not in self.scope.axes:
                    raise AxisError(f"the number of lanes along {a} is not known here")
                lanes[a] = self.scope.axes[a]
        index = [self.into(compile_expr(i, self.scope, lanes), s.axes) for i in s.index]
        value = compile_expr(s.value, self.scope, lanes)
        spread_value = self.into(value, s.axes)
        shape = tuple(lanes[a] for a in s.axes)
        test = None if s.where is None else compile_expr(s.where, self.scope, lanes)
        spread_test = None if test is None else self.into(test, s.axes)
        box = self.box(s.index, lanes)
        have = () if box is None else tuple(a for _, a in box if a is not None)
        dense = box is not None and set(have) == set(s.axes)
        boxed = aligned(value, have) if dense else None

        def run(f: Any) -> None:
            live, mask = None, True
            if test is not None and spread_test is not None:
                flags = test.run(f, ALL)
                if not np.all(flags):
                    live, mask = Lanes(flags, test.axes), spread(flags, test.axes, s.axes)
            target = f.tensors[s.tensor]
            if live is None and boxed is not None and box is not None:
                parts = [(b(f, live), a) for b, a in box]
                if target.holds(parts, lanes):
                    f.stored(target, target.store_box(parts, lanes, boxed(f, live), f.uid))
                    return
            where = np.broadcast_to(mask, shape)
            f.stored(target, target.store([r(f, live) for r in index], spread_value(f, live), where, f.uid))

        return run

    def mma(self, s: nodes.Mma) -> Callable[[Any], None]:
        dst, a, b = self.place(s.dst), self.place(s.a), self.place(s.b)
        product = contraction(dst, a, b)
        accumulate, queue = s.accumulate, s.queue

        def run(f: Any) -> None:
            x, y = f.load(a), f.load(b)
            value = product(x, y)
            if accumulate:
                value = f.load(dst) + value
            if queue is None:
                f.write(dst, value)
            else:
                f.issue_mma(dst, a, b, value, queue)

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
                f.stmt = s

        return run


def contraction(dst: Place, a: Place, b: Place) -> Callable[[Any, Any], Any]:
    """The product of two tiles over `dst`'s axes; f32 sums in an unspecified order."""
    gone = [x for x in a.axes if x in b.axes and x not in dst.axes]
    if not gone:
        raise AxisError(f"{a.buffer} and {b.buffer} share no axis to contract")
    sizes = dict(a.lanes)
    for other in (b, dst):
        for axis, n in other.lanes:
            if sizes.setdefault(axis, n) != n:
                raise AxisError(f"axis {axis} has {sizes[axis]} and {n} lanes in one mma")
    for x in (*a.axes, *b.axes):
        if x not in gone and x not in dst.axes:
            raise AxisError(f"axis {x} of an mma operand is neither contracted nor in {dst.buffer}")
    if missing := [x for x in dst.axes if x not in sizes or (x not in a.axes and x not in b.axes)]:
        raise AxisError(f"axis {missing[0]} of {dst.buffer} is in neither operand")
    if len(a.axes) == len(b.axes) == len(dst.axes) == 2 and len(gone) == 1:
        first, second = (a, b) if dst.axes[0] in a.axes else (b, a)
        flip_first, flip_second = first.axes[1] != gone[0], second.axes[0] != gone[0]
        swap = first is b

        def product(x: Any, y: Any) -> Any:
            left, right = (y, x) if swap else (x, y)
            return (left.T if flip_first else left) @ (right.T if flip_second else right)

        return product
    letters = {axis: chr(ord("a") + i) for i, axis in enumerate(sizes)}
    form = ",".join("".join(letters[x] for x in p.axes) for p in (a, b))
    form += "->" + "".join(letters[x] for x in dst.axes)
    return lambda x, y: np.einsum(form, x, y, optimize=True)
