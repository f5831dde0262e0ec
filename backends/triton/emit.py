"""Prints a sequential tile program as Triton source.

Nothing is decided here: loops, masks, tile sizes, block map, pipelining depth and every expression come from the program.  The
source is meant to be read: names are the spec's, `K_tile` is a tile of tensor K, `lane_d` counts along axis d.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tilec.backends.triton.expressions import DTYPES, FNUZ, Expressions
from tilec.backends.triton.names import Names
from tilec.backends.triton.parameters import Parameter, boxes_of, contiguous, filled, parameters_of
from tilec.backends.triton.prelude import prelude
from tilec.backends.triton.wrap import INDENT, WIDTH, assignment, statement
from tilec.ir.expr import Expr, Int, Var, free_vars, substitute
from tilec.ir.nodes import (
    Buffer,
    Cluster,
    Compute,
    For,
    If,
    Let,
    Load,
    Mma,
    Program,
    Seek,
    Stmt,
    Store,
    While,
    rewrite,
    walk,
)
from tilec.passes.tidy import tidy
from tilec.passes.use_boxes import corner
from tilec.targets import target

PROBES = 128  # lanes of one search round: one load of a warpgroup
FLOATS = ("bf16", "f16", "f32", "e4m3", "e5m2")
SEGMENTS = {"all": "every tile, masked", "left": "masked", "full": "no mask", "right": "masked"}


@dataclass(frozen=True)
class Printed:
    """A module with one `@triton.jit` function.  `constants`: (name, value) of its tile constants, after `parameters`.
    `boxes`: tensors read through a tensor map, and the extents of their box."""

    text: str
    function: str
    parameters: tuple[Parameter, ...]
    constants: tuple[tuple[str, int], ...]
    boxes: dict[str, list[int]]


def emit(program: Program, *, interpret: bool = False) -> Printed:
    """The source of `program`.

    `interpret`: for Triton's CPU interpreter, which has no inline assembly.  Raises ValueError for a program that
    has concurrent roles or asynchronous operations: those are for native backends."""
    return _Emitter(program, interpret).module()


class _Emitter:
    def __init__(self, program: Program, interpret: bool) -> None:
        if len(program.roles) != 1 or program.roles[0].count != 1 or program.barriers:
            raise ValueError("the triton backend prints programs of one role without barriers")
        self.program = program = tidy(_unproved(program))
        self.role = program.roles[0]
        self.interpret = interpret
        self.function = f"{program.name}_forward"
        self.names = Names((self.function,))
        self.boxes = boxes_of(program)
        self.rows = contiguous(program)
        self.parameters = parameters_of(program, self.names, self.boxes, self.rows)
        self.buffers = {b.name: b for b in self.role.buffers}
        self.sizes = {a.name: a.size for b in self.role.buffers for a in b.axes}
        tables = {b.name for b in self.role.buffers if b.dtype == "i32" and len(b.axes) == 1}
        loops = frozenset(s.var for s in walk(self.role.body) if isinstance(s, For))
        sizes = frozenset(name for name, _ in program.tile)
        nonnegative = {"cta", *program.extents, *sizes, *tables}
        positive = sizes | (free_vars(program.grid.tiles) if program.grid.coords else frozenset())
        tensors = {t.name: t for t in program.tensors}
        self.x = Expressions(
            self.names, self.buffers, tensors, self.rows, tuple(self.sizes), nonnegative, positive, loops
        )
        self.dtypes = DTYPES | (FNUZ if target(program.target).fp8 == "fnuz" else {})
        self.coordinates = False  # inside cluster `map`, whose scalars are never negative
        self.lines: list[str] = []
        self.bases: dict[tuple[str, tuple[Expr, ...]], str] = {}

    # ------------------------------------------------------------------------------------------ module

    def module(self) -> Printed:
        p = self.program
        constants = [(self.names.scalar(c), n) for c, n in p.tile]
        cta = self.names.scalar("cta")
        self.block(self.role.body, 1)
        body, self.lines = self.lines, []
        used = set(re.findall(r"\w+", "\n".join(body)))
        for axis, size in self.sizes.items():
            if self.names.lane(axis) in used:
                self.line(1, f"{self.names.lane(axis)} = tl.arange(0, {self.x.show(size)})")
        used |= set(re.findall(r"\w+", "\n".join(self.lines)))
        parameters = [q for q in self.parameters if q.name in used]
        constants = [c for c in constants if c[0] in used]
        groups = [[q.name for q in parameters if q.kind in k] for k in (("pointer", "box"), ("stride",), ("extent",))]
        groups.append([f"{c}: tl.constexpr" for c, _ in constants])
        doc = [f'"""{p.name}, forward, for {p.target}.', ""]
        doc += [f"tile    {', '.join(f'{c} = {n}' for c, n in p.tile)}"]
        doc += [f"blocks  {p.grid.tiles}, order {p.grid.title}"]
        doc += [*p.notes, '"""', ""]
        text = "\n".join(
            [
                *doc,
                "import triton",
                "import triton.language as tl",
                "",
                prelude(self.x.helpers, p.target, self.interpret),
                "@triton.jit",
                f"def {self.function}(",
                *(line for g in groups for line in filled(g)),
                "):",
                f"{INDENT}{cta} = tl.program_id(0)",
                *self.lines,
                *body,
                "",
            ]
        )
        return Printed(text, self.function, tuple(parameters), tuple(constants), self.boxes)

    # ------------------------------------------------------------------------------------------ statements

    def line(self, depth: int, text: str) -> None:
        self.lines.append(INDENT * depth + text)

    def assign(self, depth: int, target: str, text: str) -> None:
        self.lines += assignment(target, text, depth)

    def comment(self, depth: int, text: str) -> None:
        """Words of a comment, filled."""
        line = INDENT * depth + "#"
        for word in text.split(" "):
            if len(line) + len(word) >= WIDTH:
                self.lines.append(line)
                line = INDENT * depth + "#  "
            line += f" {word}"
        self.lines.append(line)

    def block(self, body: tuple[Stmt, ...], depth: int) -> None:
        """Statements of one scope: what it defines is not known after it."""
        known = dict(self.bases)
        for group in _searches(body):
            if isinstance(group[0], Seek):
                self.seek(tuple(s for s in group if isinstance(s, Seek)), depth)
            else:
                self.statement(group[0], depth)
        self.bases = known

    def hoist(self, s: Stmt, depth: int) -> None:
        """The loop-invariant part of each address that `s` needs, once, before it."""
        for x in walk((s,)):
            if isinstance(x, Store) or (isinstance(x, Load) and not x.box):
                fixed = self.fixed(x)
                if all(i is Int(0) for i in fixed) or (x.tensor, fixed) in self.bases:
                    continue
                base = self.names.base(x.tensor, fixed)
                self.assign(depth, base, self.x.pointer(x.tensor, fixed).text)
                self.bases[x.tensor, fixed] = base

    def fixed(self, s: Load | Store) -> tuple[Expr, ...]:
        """The index of `s` with 0 for what varies in a tile or in the key loop."""
        return tuple(i if self.x.is_base(i) else Int(0) for i in s.index)

    def address(self, s: Load | Store, axes: tuple[str, ...]) -> str:
        with self.x.lanes_of(s.where):
            pointer = self.x.pointer(s.tensor, s.index, self.bases.get((s.tensor, self.fixed(s))))
        return self.x.expand(pointer, axes).text

    def statement(self, s: Stmt, depth: int) -> None:
        match s:
            case Let(name, value):
                self.scalar(name, value)
                self.assign(depth, self.names.scalar(name), self.x.show(value))
            case Compute(dst, value):
                self.assign(depth, self.names.buffer(dst.buffer), self.value(self.buffers[dst.buffer], value))
            case Load():
                self.hoist(s, depth)
                self.load(s, depth)
            case Store():
                self.hoist(s, depth)
                self.store(s, depth)
            case Mma():
                self.mma(s, depth)
            case For():
                self.hoist(s, depth)
                self.loop(s, depth)
            case While(cond, body):
                self.line(depth, f"while {self.x.show(cond)}:")
                self.block(body, depth + 1)
            case If(cond, then, orelse):
                self.line(depth, f"if {self.x.show(cond)}:")
                self.block(then, depth + 1)
                if orelse:
                    self.line(depth, "else:")
                    self.block(orelse, depth + 1)
            case Cluster(kind, body):
                order = f": tile coordinates, {self.program.grid.title}" if kind == "map" else ""
                self.comment(depth, kind + order)
                self.coordinates = kind == "map"
                for inner in body:
                    self.statement(inner, depth)
                self.coordinates = False
            case _:
                raise ValueError(f"the triton backend has no text for {type(s).__name__}")

    def scalar(self, name: str, value: Expr) -> None:
        """Notes what is known of a scalar from its value."""
        if self.coordinates or self.x.is_nonnegative(value):
            self.x.nonnegative.add(name)
        if self.x.kind(value) == "float":
            self.x.floats.add(name)

    def loop(self, s: For, depth: int) -> None:
        if s.down:
            raise ValueError("the triton backend walks keys upwards")
        if s.proof is not None:
            self.comment(depth, f"{s.proof.segment} ({SEGMENTS[s.proof.segment]}): {s.proof.because}")
        if self.x.is_nonnegative(s.lo):
            self.x.nonnegative.add(s.var)
        lo, hi = self.x.show(s.lo), self.x.show(s.hi)
        stages = "" if s.stages is None else f", num_stages={s.stages}"
        self.line(depth, f"for {self.names.scalar(s.var)} in tl.range({lo}, {hi}{stages}):")
        self.block(s.body, depth + 1)

    def seek(self, group: tuple[Seek, ...], depth: int) -> None:
        """Searches that do not depend on each other, in one loop, each by `PROBES` places at once: a round leaves a
        PROBES-th of the range, so 16384 positions take two loads where bisection takes fourteen, one after the other."""
        rounds, open_ends = [], []
        for s in group:
            wanted = (s.name, f"{s.name}_to", f"{s.name}_step", f"{s.name}_probe", f"{s.name}_below")
            if self.x.is_nonnegative(s.lo):
                self.x.nonnegative |= {s.name, wanted[1], wanted[3]}
            name, hi, step, probe, below = (self.names.scalar(n) for n in wanted)
            self.comment(depth, f"{s.name}: the least from {s.lo} to {s.hi} with {s.cond}")
            self.line(depth, f"{name} = tl.cast({self.x.show(s.lo)}, tl.int32)")
            self.line(depth, f"{hi} = tl.cast({self.x.show(s.hi)}, tl.int32)")
            open_ends.append(f"({name} < {hi})")
            rounds.append((s, wanted[3], name, hi, step, probe, below))
        self.line(depth, f"while {' | '.join(open_ends) if len(open_ends) > 1 else open_ends[0][1:-1]}:")
        for s, scalar, name, hi, step, probe, below in rounds:
            self.x.lanes[scalar], self.x.fetch_guard = "seek", f", mask={probe} < {hi}"
            cond = self.x.show(substitute(s.cond, {Var(s.name): Var(scalar)}))
            self.x.fetch_guard = ""
            self.line(depth + 1, f"{step} = tl.maximum(1, tl.cdiv({hi} - {name}, {PROBES}))")
            self.line(depth + 1, f"{probe} = {name} + {step} * (tl.arange(0, {PROBES}) + 1) - 1")
            self.assign(depth + 1, below, f"({probe} < {hi}) & ~({cond})")
        for _, _, name, hi, step, _, below in rounds:
            self.line(depth + 1, f"{name} += {step} * tl.sum({below}.to(tl.int32))")
            self.line(depth + 1, f"{hi} = tl.minimum({hi}, {name} + {step} - 1)")

    def value(self, buffer: Buffer, value: Expr) -> str:
        """`value` as a whole tile of `buffer`."""
        axes = tuple(a.name for a in buffer.axes)
        t = self.x.text(value)
        shape = f"[{', '.join(self.x.show(a.size) for a in buffer.axes)}]"
        dtype = self.dtypes[buffer.dtype]
        if not t.axes and axes:
            return f"tl.full({shape}, {t.text}, {dtype})"
        if t.axes != axes:
            return f"tl.broadcast_to({self.x.expand(t, axes).text}, {shape})"
        floating = self.x.kind(value) == "float"
        if (buffer.dtype != "f32" and floating) or (buffer.dtype == "f32" and not floating):
            return f"{t.at(100)}.to({dtype})"
        return t.text

    def guard(self, where: Expr | None, axes: tuple[str, ...], other: str | None) -> str:
        if where is None:
            return ""
        mask = self.x.text(where)
        text = mask.text if not mask.axes else self.x.expand(mask, axes).text
        return f", mask={text}" + ("" if other is None else f", other={other}")

    def load(self, s: Load, depth: int) -> None:
        buffer = self.buffers[s.dst.buffer]
        axes = tuple(a.name for a in buffer.axes)
        if s.box:
            start = ", ".join(self.x.show(i) for i in corner(s.index))
            shape = ", ".join(self.x.show(a.size) for a in buffer.axes)
            box = f"{self.names.box(s.tensor)}.load([{start}]).reshape([{shape}])"
            self.assign(depth, self.names.buffer(buffer.name), box)
            return
        other = self.x.show(s.other) + (".0" if buffer.dtype in FLOATS else "")
        guard = self.guard(s.where, axes, other)
        self.assign(depth, self.names.buffer(buffer.name), f"tl.load({self.address(s, axes)}{guard})")

    def store(self, s: Store, depth: int) -> None:
        dtype = self.x.tensors[s.tensor].dtype
        value = self.x.expand(self.x.text(s.value), s.axes)
        rounded = value.text if dtype == "f32" else f"{value.at(100)}.to({self.dtypes[dtype]})"
        self.lines += statement(
            f"tl.store({self.address(s, s.axes)}, {rounded}{self.guard(s.where, s.axes, None)})", depth
        )

    def mma(self, s: Mma, depth: int) -> None:
        if s.queue is not None:
            raise ValueError("the triton backend has no asynchronous matrix products")
        dst, a, b = (tuple(x.name for x in self.buffers[slot.buffer].axes) for slot in (s.dst, s.a, s.b))
        (shared,) = set(a) & set(b)
        name, left, right = (self.names.buffer(slot.buffer) for slot in (s.dst, s.a, s.b))
        left = left if a == (dst[0], shared) else f"tl.trans({left})"
        right = right if b == (shared, dst[1]) else f"tl.trans({right})"
        acc = f", {name}" if s.accumulate else ""
        exact = ', input_precision="ieee"' if self.buffers[s.a.buffer].dtype == "f32" else ""
        self.assign(depth, name, f"tl.dot({left}, {right}{acc}{exact})")


def _searches(body: tuple[Stmt, ...]) -> list[tuple[Stmt, ...]]:
    """Statements one by one, but consecutive searches that do not read each other's results together."""
    groups: list[tuple[Stmt, ...]] = []
    for s in body:
        last = groups[-1] if groups else ()
        found = {x.name for x in last if isinstance(x, Seek)}
        if isinstance(s, Seek) and found and not found & (free_vars(s.cond) | free_vars(s.lo) | free_vars(s.hi)):
            groups[-1] = (*last, s)
        else:
            groups.append((s,))
    return groups


def _unproved(program: Program) -> Program:
    """The program without what only proofs mention: rows and keys that no statement reads."""
    zero = Int(0)

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(s, For) and s.proof is not None:
            return (replace(s, proof=replace(s.proof, rows=(zero, zero), keys=None, size=None)),)
        return None

    roles = tuple(replace(r, body=rewrite(r.body, rule)) for r in program.roles)
    return program.with_(roles=roles)
