"""Rules for the body of one role: what `ir.verify` checks statement by statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.ir import axes as ax
from tilec.ir import nodes
from tilec.ir.axes import AxisError, Scope, constant, kind_of_dtype
from tilec.ir.expr import COMPARISONS, OPS, Bool, Expr, Fetch, Float, Int, Iota, Kind, Op, Read, Reduce, Var, walk
from tilec.ir.nodes import Bar, Program, Role, Slot, Stmt
from tilec.ir.print import show_stmt

FLOAT8 = frozenset({"e4m3", "e5m2"})


class Report:
    """Messages, each with the places it is in."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._places: list[str] = []

    def __call__(self, message: str) -> None:
        self.messages.append(": ".join([*self._places, message]))

    @contextmanager
    def within(self, place: str) -> Iterator[None]:
        """Messages in this block are of `place`."""
        self._places.append(place)
        yield
        self._places.pop()


class Body:
    """Checks one role."""

    def __init__(self, p: Program, role: Role, scope: Scope, report: Report) -> None:
        self.role, self.scope, self.report = role, scope, report
        self.tensors = {t.name: t for t in p.tensors}
        self.barriers = {b.name: b for b in p.barriers}
        self.buffers = {b.name: b for b in (*p.buffers, *role.buffers)}
        computed = {n for n, _ in (*p.tile, *p.scalars)}
        self.fixed = computed | set(p.extents) | {"cta"} | {n for n in (role.var, p.grid.rank) if n}
        self.clustered = p.grid.rank is not None
        self.defined: set[str] = set(self.fixed)

    def check(self) -> None:
        self.block(self.role.body)

    def block(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            with self.report.within(f"`{show_stmt(s)}`"):
                try:
                    self.statement(s)
                except AxisError as e:
                    self.report(str(e))
            self.nested(s)

    def nested(self, s: Stmt) -> None:
        """Blocks inside `s`, and what is defined after it on every path."""
        match s:
            case nodes.If():
                before = set(self.defined)
                self.block(s.then)
                after, self.defined = self.defined, before
                self.block(s.orelse)
                self.defined &= after
            case nodes.For():
                before = set(self.defined)
                if s.var in self.fixed or s.var in self.buffers or s.var in before:
                    self.report(f"loop variable {s.var} has another meaning here")
                if any(
                    isinstance(x, nodes.Let | nodes.Claim | nodes.Seek) and x.name == s.var for x in nodes.walk(s.body)
                ):
                    self.report(f"loop variable {s.var} is assigned in its loop")
                self.defined.add(s.var)
                self.block(s.body)
                self.defined = before
            case nodes.While():
                before = set(self.defined)
                self.block(s.body)
                self.defined = before
            case nodes.Cluster():
                self.block(s.body)
            case nodes.Compute() if s.during:
                self.block(s.during)

    # Statements.

    def statement(self, s: Stmt) -> None:
        match s:
            case nodes.Let(name, value):
                self.scalar(value, None)
                self.define(name)
            case nodes.Seek(name, lo, hi, cond):
                self.scalar(lo, "int")
                self.scalar(hi, "int")
                self.define(name)
                self.scalar(cond, "bool")
            case nodes.Compute():
                self.compute(s)
            case nodes.Load() | nodes.Copy():
                self.load(s)
            case nodes.Move():
                self.move(s)
            case nodes.Store():
                self.store(s)
            case nodes.Mma():
                self.mma(s)
            case nodes.Await():
                if s.pending < 0:
                    self.report("a negative number of pending operations")
            case nodes.Wait(bar, parity):
                self.bar(bar, "mbarrier")
                self.scalar(parity, "int")
            case nodes.Send():
                self.send(s)
            case nodes.Arrive(bar, at):
                self.bar(bar, None if at is None and not s.everywhere else "mbarrier")
                self.across(at is not None or s.everywhere)
                if at is not None:
                    self.scalar(at, "int")
                    if s.everywhere:
                        self.report("one CTA, and all of them")
            case nodes.Sync(bar):
                self.bar(bar, "named")
            case nodes.Claim(name, counter):
                if counter not in self.tensors or self.tensors[counter].mode != "counter":
                    self.report(f"{counter} is no counter")
                self.define(name)
            case nodes.If(cond) | nodes.While(cond):
                self.scalar(cond, "bool")
            case nodes.For():
                self.scalar(s.lo, "int")
                self.scalar(s.hi, "int")

    def define(self, name: str) -> None:
        if name in self.fixed or name in self.buffers:
            self.report(f"{name} has another meaning and cannot be assigned")
        self.defined.add(name)

    def compute(self, s: nodes.Compute) -> None:
        lanes = self.slot(s.dst)
        self.value(s.value, lanes, s.dst)
        if s.unless is not None:
            self.unless(s.unless, lanes, s)
        if not 0 <= s.after <= s.of:
            self.report(f"after {s.after} of {s.of} groups")
        busy = {x.buffer for x in walk(s.value) if isinstance(x, Read)} | {s.dst.buffer}
        for inner in nodes.walk(s.during):
            dst = getattr(inner, "dst", None)
            if dst is not None and dst.buffer in busy:
                self.report(f"`{show_stmt(inner)}` writes what the statement around it uses")

    def unless(self, e: Expr, lanes: ax.Lanes, s: nodes.Compute) -> None:
        """A condition of lanes."""
        ax.within(ax.axes_of(e, self.scope), tuple(a for a, _ in lanes))
        if self.expr(e, ax.lanes_of(self.scope, dict(lanes), e)) != "bool":
            self.report(f"`unless {e}` is no condition")
        if s.during:
            self.report("what may be left out has statements in its middle")

    def value(self, e: Expr, lanes: ax.Lanes, dst: Slot) -> None:
        """A value that goes to lanes of a buffer."""
        all_lanes = ax.lanes_of(self.scope, dict(lanes), e)
        ax.within(ax.axes_of(e, self.scope), tuple(a for a, _ in lanes))
        self.holds(kind_of_dtype(self.buffers[dst.buffer].dtype), self.expr(e, all_lanes), dst.buffer)

    def holds(self, kind: Kind, value: Kind, where: str) -> None:
        if kind != value and not (kind == "float" and value == "int"):
            self.report(f"{where} holds {kind} values, but this is {value}")

    def load(self, s: nodes.Load | nodes.Copy) -> None:
        lanes = self.slot(s.dst)
        dst, tensor = self.buffers[s.dst.buffer], self.tensor(s.tensor, s.index)
        other = s.other if isinstance(s, nodes.Load) else None
        self.guarded(lanes, s.index, s.where, other)
        if other is not None and other is not Int(0):  # 0 is the zero of every kind
            self.holds(kind_of_dtype(dst.dtype), self.expr(other, dict(lanes)), dst.name)
        if tensor is not None:
            self.holds(kind_of_dtype(dst.dtype), kind_of_dtype(tensor.dtype), dst.name)
        if isinstance(s, nodes.Load):
            if s.queue is not None and dst.space != "register":
                self.report(f"an asynchronous load goes to registers, and {dst.name} is shared: that is a copy")
            return
        if (s.signal is None) == (s.queue is None):
            self.report("a copy completes by a signal or by a queue: exactly one")
        self.across(s.multicast)
        if s.multicast and s.signal is None:
            self.report("a copy to several CTAs completes by a signal")
        if dst.space != "shared":
            self.report(f"a copy goes to shared memory, which {dst.name} is not in")
        if tensor is not None and tensor.dtype != dst.dtype:
            self.report(f"a copy does not convert {tensor.dtype} to {dst.dtype}")
        if s.signal is not None:
            self.signal(s.signal)

    def move(self, s: nodes.Move) -> None:
        dst, src = dict(self.slot(s.dst)), dict(self.slot(s.src))
        to, given = self.buffers[s.dst.buffer], self.buffers[s.src.buffer]
        if dst != src:
            self.report(f"a move is lane by lane, but {to.name} and {given.name} have not the same lanes")
        if to.dtype != given.dtype:
            self.report(f"a move does not convert {given.dtype} to {to.dtype}")

    def send(self, s: nodes.Send) -> None:
        self.across(True)
        if self.slot(s.dst) or self.buffers[s.dst.buffer].space != "shared":
            self.report(f"a send goes to a scalar in shared memory, which {s.dst.buffer} is not")
        self.scalar(s.value, kind_of_dtype(self.buffers[s.dst.buffer].dtype))
        self.signal(s.signal)

    def signal(self, b: Bar) -> None:
        self.bar(b, "mbarrier")
        if b.name in self.barriers and not self.barriers[b.name].tx:
            self.report(f"barrier {b.name} does not count bytes (tx)")

    def across(self, reaches: bool) -> None:
        """What reaches other CTAs needs a cluster."""
        if reaches and not self.clustered:
            self.report("the CTAs of the grid have no cluster")

    def guarded(self, lanes: ax.Lanes, index: tuple[Expr, ...], where: Expr | None, other: Expr | None) -> None:
        """Index, condition and substitute of an access to a tensor."""
        all_lanes = ax.lanes_of(self.scope, dict(lanes), *index, where, other)
        want = tuple(a for a, _ in lanes)
        for e in (*index, where, other):
            if e is not None:
                ax.within(ax.axes_of(e, self.scope), want)
        for i in index:
            self.kind(i, all_lanes, "int")
        if where is not None:
            self.kind(where, all_lanes, "bool")

    def store(self, s: nodes.Store) -> None:
        tensor = self.tensor(s.tensor, s.index)
        sizes = ax.lanes_of(self.scope, {}, s.value, *s.index, s.where)
        if len(set(s.axes)) < len(s.axes):
            self.report("an axis twice")
        lanes = tuple((a, ax.lanes_along(a, sizes, self.scope)) for a in s.axes)
        self.guarded(lanes, s.index, s.where, None)
        ax.within(ax.axes_of(s.value, self.scope), s.axes)
        indexed = ax.union(*(ax.axes_of(i, self.scope) for i in s.index))
        if same := [a for a in s.axes if a not in indexed]:
            self.report(f"all lanes along {same[0]} store to one element")
        kind = self.expr(s.value, sizes)
        if tensor is not None:
            self.holds(kind_of_dtype(tensor.dtype), kind, tensor.name)
            if tensor.mode != "out":
                self.report(f"{tensor.name} is no output")

    def mma(self, s: nodes.Mma) -> None:
        dst, a, b = (self.slot(x) for x in (s.dst, s.a, s.b))
        ax.contracted(dst, a, b)
        to, x, y = (self.buffers[n.buffer] for n in (s.dst, s.a, s.b))
        if to.dtype != "f32":
            self.report(f"an mma sums in f32, but {to.name} is {to.dtype}")
        for operand in (x, y):
            if kind_of_dtype(operand.dtype) != "float":
                self.report(f"operand {operand.name} holds no floats")
        if x.dtype != y.dtype and not {x.dtype, y.dtype} <= FLOAT8:
            self.report(f"operands of two types, {x.dtype} and {y.dtype}")
        if s.queue is not None and to.space != "register":
            self.report(f"an asynchronous mma sums in registers, but {to.name} is shared")

    def bar(self, b: Bar, kind: str | None) -> None:
        self.scalar(b.stage, "int")
        if b.name not in self.barriers:
            self.report(f"there is no barrier {b.name}")
            return
        barrier = self.barriers[b.name]
        if kind is not None and barrier.kind != kind:
            self.report(f"{b.name} is {'a named barrier' if kind == 'mbarrier' else 'an mbarrier'}")
        self.in_range(b.stage, barrier.stages, f"barrier {b.name}")

    # Parts of statements.

    def slot(self, s: Slot) -> ax.Lanes:
        lanes = ax.slot_lanes(s, self.scope)
        self.stage(s.buffer, s.stage)
        full = dict(self.scope.sizes[s.buffer])
        if len({w.axis for w in s.windows}) < len(s.windows):
            self.report(f"two windows of {s.buffer} along one axis")
        for w in s.windows:
            self.scalar(w.start, "int")
            start, size = constant(w.start, self.scope.constants), constant(w.size, self.scope.constants)
            if size is not None and start is not None and not 0 <= start <= full[w.axis] - size:
                self.report(
                    f"lanes {start} … {start + size - 1} along {w.axis} of {s.buffer}, which has {full[w.axis]}"
                )
        return lanes

    def stage(self, buffer: str, stage: Expr | None) -> None:
        stages = self.buffers[buffer].stages
        if stage is None:
            if stages > 1:
                self.report(f"{buffer} has {stages} stages: which one?")
            return
        self.scalar(stage, "int")
        self.in_range(stage, stages, buffer)

    def in_range(self, e: Expr, count: int, what: str) -> None:
        """A stage number, as far as it is known: a constant, or `… % n`."""
        value = constant(e, self.scope.constants)
        match e:
            case Op("%", (_, Int(n))):
                value = n - 1 if n > 0 else None
        if value is not None and not 0 <= value < count:
            self.report(f"stage {e} of {what}, which has {count}")

    def tensor(self, name: str, index: tuple[Expr, ...]) -> nodes.Global | None:
        tensor = self.tensors.get(name)
        if tensor is None:
            self.report(f"there is no tensor {name}")
        elif tensor.mode == "counter":
            self.report(f"counter {name} is claimed from, not read or written")
        elif len(index) != len(tensor.dims):
            self.report(f"{name} has {len(tensor.dims)} dimensions, not {len(index)}")
        return tensor

    # Expressions.

    def scalar(self, e: Expr, kind: Kind | None) -> None:
        """A value without axes, of the kind."""
        lanes = ax.lanes_of(self.scope, {}, e)
        if axes := ax.axes_of(e, self.scope):
            self.report(f"{e} must be a scalar, but has axes {', '.join(axes)}")
        self.kind(e, lanes, kind)

    def kind(self, e: Expr, lanes: dict[str, int], kind: Kind | None) -> None:
        found = self.expr(e, lanes)
        if kind is not None and found != kind:
            self.report(f"{e} must be {kind}, but is {found}")

    def expr(self, e: Expr, lanes: dict[str, int]) -> Kind:
        """The kind of `e`, with everything in it checked."""
        match e:
            case Int() | Iota():
                return "int"
            case Float():
                return "float"
            case Bool():
                return "bool"
            case Var(name):
                if name not in self.defined:
                    self.report(f"{name} is not defined on every path to here")
                return self.scope.kinds.get(name, "int")
            case Read(buffer, stage):
                self.stage(buffer, stage)
                return kind_of_dtype(self.buffers[buffer].dtype)
            case Fetch(name, index):
                tensor = self.tensor(name, index)
                for i in index:
                    self.kind(i, lanes, "int")
                return "int" if tensor is None else kind_of_dtype(tensor.dtype)
            case Reduce(op, _, x):
                kind = self.expr(x, lanes)
                if kind == "bool":
                    self.report(f"{op} of a bool in {e}")
                return kind
            case Op(name, args):
                return self.operator(e, name, [self.expr(a, lanes) for a in args])
        raise TypeError(f"not an expression: {e!r}")

    def operator(self, e: Expr, name: str, kinds: list[Kind]) -> Kind:
        spec = OPS[name]
        if len(kinds) != spec.arity:
            self.report(f"{name} takes {spec.arity} operands, not {len(kinds)}")
            return "int"
        numbers = kinds
        if name in ("and", "or", "not"):
            if kinds.count("bool") < len(kinds):
                self.report(f"{name} of numbers in {e}")
            return "bool"
        if name == "where":
            if kinds[0] != "bool":
                self.report(f"the condition of {e} is {kinds[0]}")
            numbers = kinds[1:]
        if "bool" in numbers and not (name in ("==", "!=", "where") and set(numbers) == {"bool"}):
            self.report(f"{name} of a bool in {e}")
        if name == "uniform" and "float" in numbers:
            self.report(f"{e} takes integers")
        if name in COMPARISONS or spec.result == "bool":
            return "bool"
        if spec.result != "join":
            return spec.result
        return "float" if "float" in numbers else numbers[0]
