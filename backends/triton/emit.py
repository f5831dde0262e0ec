"""Prints a sequential tile program as Triton source.

Nothing is decided here: loops, masks, tile sizes, block map, pipelining depth and every expression come from the program.  The
source is meant to be read: names are the spec's, `K_tile` is a tile of tensor K, `lane_d` counts along axis d.

Conventions of the generated function: for each tensor a pointer and the strides of all dimensions but the last, which is
contiguous; then the call's extents; then tile constants.  Offsets are 64-bit.
"""

from __future__ import annotations

from tilec.backends.triton.expressions import DTYPES, NARROW, Expressions, stride
from tilec.backends.triton.prelude import prelude
from tilec.ir.expr import Expr, Int, Read, Var, substitute
from tilec.ir.nodes import (
    Buffer,
    Cluster,
    Compute,
    For,
    Global,
    If,
    Let,
    Load,
    Mma,
    Program,
    Seek,
    Stmt,
    Store,
    walk,
)

INDENT = "    "
PROBES = 128  # lanes of one search round: one load of a warpgroup


def emit(program: Program, *, interpret: bool = False) -> str:
    """Source of a module with one `@triton.jit` function, named `function_name(program)`.

    `interpret`: for Triton's CPU interpreter, which has no inline assembly.  Raises ValueError for a program that
    has concurrent roles or asynchronous operations: those are for native backends."""
    return _Emitter(program, interpret).module()


def function_name(program: Program) -> str:
    """Name of the kernel function."""
    return f"{program.name}_forward"


def arguments(program: Program) -> tuple[str, ...]:
    """Runtime arguments in order: pointers, strides in elements (see `strided_dimensions`), extents."""
    out = [f"{t.name}_ptr" for t in program.tensors]
    for t in program.tensors:
        out += [stride(t.name, n) for n in strided_dimensions(t)]
    return (*out, *program.extents)


def strided_dimensions(t: Global) -> range:
    """Dimensions whose stride is an argument: all of a param's, all but the last of other tensors."""
    return range(len(t.dims) if t.mode == "param" else len(t.dims) - 1)


class _Emitter:
    def __init__(self, program: Program, interpret: bool) -> None:
        if len(program.roles) != 1 or program.roles[0].count != 1 or program.barriers:
            raise ValueError("the triton backend prints programs of one role without barriers")
        self.program = program
        self.role = program.roles[0]
        self.interpret = interpret
        self.buffers = {b.name: b for b in self.role.buffers}
        order: dict[str, None] = {}
        for b in self.role.buffers:
            for a in b.axes:
                order.setdefault(a.name)
        self.sizes = {a.name: a.size for b in self.role.buffers for a in b.axes}
        tables = {b.name for b in self.role.buffers if b.dtype == "i32" and len(b.axes) == 1}
        loops = frozenset(s.var for s in walk(self.role.body) if isinstance(s, For))
        positive = {"cta", *program.extents, *(name for name, _ in program.tile), *tables}
        self.x = Expressions(self.buffers, {t.name: t for t in program.tensors}, tuple(order), positive, loops)
        self.coordinates = False  # inside cluster `map`, whose scalars are never negative
        self.lines: list[str] = []
        self.bases: dict[tuple[str, tuple[Expr, ...]], str] = {}

    # ------------------------------------------------------------------------------------------ module

    def module(self) -> str:
        name = function_name(self.program)
        self.block(self.role.body, 1)
        body, self.lines = self.lines, []
        lanes = [f"{INDENT}lane_{a} = tl.arange(0, {self.x.show(size)})" for a, size in self.sizes.items()]
        used = "\n".join(body)
        lanes = [line for line in lanes if line.split()[0] in used]
        parameters = [*arguments(self.program), *(f"{c}: tl.constexpr" for c, _ in self.program.tile)]
        doc = [f'"""{self.program.name}, forward, for {self.program.target}.', ""]
        doc += [f"tile    {', '.join(f'{c} = {n}' for c, n in self.program.tile)}"]
        doc += [f"blocks  {self.program.grid.tiles}, order {self.program.grid.order}"]
        doc += [*self.program.notes, '"""', ""]
        return "\n".join(
            [
                *doc,
                "import triton",
                "import triton.language as tl",
                "",
                prelude(self.x.helpers, self.program.target, self.interpret),
                "@triton.jit",
                f"def {name}(",
                *_wrapped(parameters),
                "):",
                f"{INDENT}cta = tl.program_id(0)",
                *lanes,
                *body,
                "",
            ]
        )

    # ------------------------------------------------------------------------------------------ statements

    def line(self, depth: int, text: str) -> None:
        self.lines.append(INDENT * depth + text)

    def block(self, body: tuple[Stmt, ...], depth: int) -> None:
        for s in body:
            if not isinstance(s, If):
                self.hoist(s, depth)
            self.statement(s, depth)

    def hoist(self, s: Stmt, depth: int) -> None:
        """The loop-invariant part of each address that `s` needs, once, before it."""
        for x in walk((s,)):
            if isinstance(x, Load | Store):
                fixed = tuple(i if self.x.is_base(i) else Int(0) for i in x.index)
                if all(i is Int(0) for i in fixed) or (x.tensor, fixed) in self.bases:
                    continue
                names = [n for t, n in self.bases.items() if t[0] == x.tensor]
                base = f"{x.tensor}_base{len(names) or ''}"
                self.line(depth, f"{base} = {self.x.pointer(x.tensor, fixed).text}")
                self.bases[x.tensor, fixed] = base

    def base(self, s: Load | Store) -> str | None:
        fixed = tuple(i if self.x.is_base(i) else Int(0) for i in s.index)
        return self.bases.get((s.tensor, fixed))

    def statement(self, s: Stmt, depth: int) -> None:
        match s:
            case Let(name, value):
                if self.coordinates or self.x.is_nonnegative(value):
                    self.x.nonnegative.add(name)
                self.line(depth, f"{name} = {self.x.show(value)}")
            case Seek():
                self.seek(s, depth)
            case Compute(dst, value):
                self.line(depth, f"{dst.buffer} = {self.value(self.buffers[dst.buffer], value)}")
            case Load():
                self.load(s, depth)
            case Store():
                self.store(s, depth)
            case Mma():
                self.mma(s, depth)
            case For():
                self.loop(s, depth)
            case If(cond, then, orelse):
                self.line(depth, f"if {self.x.show(cond)}:")
                self.block(then, depth + 1)
                if orelse:
                    self.line(depth, "else:")
                    self.block(orelse, depth + 1)
            case Cluster(kind, body):
                if kind != "map":
                    self.line(depth, f"# {kind}")
                self.coordinates = kind == "map"
                self.block(body, depth)
                self.coordinates = False
            case _:
                raise ValueError(f"the triton backend has no text for {type(s).__name__}")

    def loop(self, s: For, depth: int) -> None:
        if s.down:
            raise ValueError("the triton backend walks keys upwards")
        if s.proof is not None:
            self.line(depth, f"# {s.proof.segment}: {s.proof.because}")
        if self.x.is_nonnegative(s.lo):
            self.x.nonnegative.add(s.var)
        lo, hi = self.x.show(s.lo), self.x.show(s.hi)
        stages = "" if s.stages is None else f", num_stages={s.stages}"
        self.line(depth, f"for {s.var} in tl.range({lo}, {hi}{stages}):")
        self.block(s.body, depth + 1)

    def seek(self, s: Seek, depth: int) -> None:
        """Search by `PROBES` places at once: each round leaves a PROBES-th of the range, so 16384 positions take two loads
        where bisection takes fourteen, one after the other."""
        name, hi, probe, step = s.name, f"{s.name}_to", f"{s.name}_probe", f"{s.name}_step"
        if self.x.is_nonnegative(s.lo):
            self.x.nonnegative |= {name, hi, probe}
        self.x.lanes[probe], self.x.fetch_guard = "seek", f", mask={probe} < {hi}"
        cond = self.x.show(_rename(s.cond, name, probe))
        self.x.fetch_guard = ""
        self.line(depth, f"# {name}: the least from {s.lo} to {s.hi} with {s.cond}")
        self.line(depth, f"{name} = tl.cast({self.x.show(s.lo)}, tl.int32)")
        self.line(depth, f"{hi} = tl.cast({self.x.show(s.hi)}, tl.int32)")
        self.line(depth, f"while {name} < {hi}:")
        self.line(depth + 1, f"{step} = tl.cdiv({hi} - {name}, {PROBES})")
        self.line(depth + 1, f"{probe} = {name} + {step} * (tl.arange(0, {PROBES}) + 1) - 1")
        self.line(depth + 1, f"below = ({probe} < {hi}) & ~({cond})")
        self.line(depth + 1, f"{name} += {step} * tl.sum(below.to(tl.int32))")
        self.line(depth + 1, f"{hi} = tl.minimum({hi}, {name} + {step} - 1)")

    def value(self, buffer: Buffer, value: Expr) -> str:
        """`value` as a whole tile of `buffer`."""
        axes = tuple(a.name for a in buffer.axes)
        t = self.x.text(value)
        shape = f"[{', '.join(self.x.show(a.size) for a in buffer.axes)}]"
        dtype = DTYPES[buffer.dtype]
        if not t.axes and axes:
            return f"tl.full({shape}, {t.text}, {dtype})"
        if t.axes != axes:
            return f"tl.broadcast_to({self.x.expand(t, axes).text}, {shape})"
        if isinstance(value, Read) and self.buffers[value.buffer].dtype != buffer.dtype:
            return f"{t.at(100)}.to({dtype})"
        return t.text

    def guard(self, where: Expr | None, axes: tuple[str, ...], other: str | None) -> str:
        if where is None:
            return ""
        mask = self.x.text(where)
        text = mask.text if not mask.axes else self.x.expand(mask, axes).text
        return f", mask={text}" + ("" if other is None else f", other={other}")

    def load(self, s: Load, depth: int) -> None:
        axes = tuple(a.name for a in self.buffers[s.dst.buffer].axes)
        pointer = self.x.pointer(s.tensor, s.index, self.base(s))
        other = self.x.show(s.other)
        guard = self.guard(s.where, axes, f"{other}.0" if self.buffers[s.dst.buffer].dtype in FLOATS else other)
        self.line(depth, f"{s.dst.buffer} = tl.load({self.x.expand(pointer, axes).text}{guard})")

    def store(self, s: Store, depth: int) -> None:
        pointer = self.x.pointer(s.tensor, s.index, self.base(s))
        dtype = DTYPES[self.x.tensors[s.tensor].dtype]
        value = self.x.expand(self.x.text(s.value), s.axes)
        self.line(depth, f"tl.store({pointer.text}, {value.at(100)}.to({dtype}){self.guard(s.where, s.axes, None)})")

    def mma(self, s: Mma, depth: int) -> None:
        if s.queue is not None:
            raise ValueError("the triton backend has no asynchronous matrix products")
        dst, a, b = (tuple(x.name for x in self.buffers[slot.buffer].axes) for slot in (s.dst, s.a, s.b))
        (shared,) = set(a) & set(b)
        left = s.a.buffer if a == (dst[0], shared) else f"tl.trans({s.a.buffer})"
        right = s.b.buffer if b == (shared, dst[1]) else f"tl.trans({s.b.buffer})"
        dtype = self.buffers[s.a.buffer].dtype
        if self.interpret and dtype in NARROW:
            # The interpreter multiplies bf16 and fp8 as integers of that width; products of them are exact in f32.
            left, right, dtype = f"{left}.to(tl.float32)", f"{right}.to(tl.float32)", "f32"
        exact = ', input_precision="ieee"' if dtype == "f32" else ""
        acc = f", {s.dst.buffer}" if s.accumulate else ""
        self.line(depth, f"{s.dst.buffer} = tl.dot({left}, {right}{acc}{exact})")


FLOATS = ("bf16", "f16", "f32", "e4m3", "e5m2")


def _rename(e: Expr, old: str, new: str) -> Expr:
    return substitute(e, {Var(old): Var(new)})


def _wrapped(names: list[str], width: int = 110) -> list[str]:
    lines, line = [], INDENT
    for name in names:
        if len(line) + len(name) > width:
            lines.append(line.rstrip())
            line = INDENT
        line += f"{name}, "
    return [*lines, line.rstrip()]
