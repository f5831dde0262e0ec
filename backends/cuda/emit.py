"""Prints a tile program of concurrent roles as CUDA C++.

Nothing is decided here: roles, barriers, stages, the block map, the order of products and every expression come from the program.
The source is self-contained and includes no header, so NVRTC compiles it as it is; machine instructions that C++ lacks are
functions of a line of PTX in front of the kernel.

A warp role takes warps of the first warpgroup, whose other warps end at once; each instance of a warpgroup role takes a
warpgroup of its own.  Where a role of warps is the only one, they are all the block has, and its registers say how many blocks
a multiprocessor holds.  Parameters of the kernel, those that it uses: a tensor map per box that copies bring, pointers, strides
(64-bit, in elements), extents and scalars of the call (32-bit).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tilec.backends.cpp.expressions import CPP
from tilec.backends.cpp.lines import STEP, WIDTH, filled_comment
from tilec.backends.cpp.signs import signs
from tilec.backends.cuda import roles
from tilec.backends.cuda.expressions import Expressions
from tilec.backends.cuda.names import Names
from tilec.backends.cuda.prelude import FUNCTIONS, prelude
from tilec.backends.cuda.shared import arrivals, extent, place, warps_of
from tilec.backends.cuda.writer import Box, Kernel, Writer
from tilec.ir.nodes import Program, Role

REGISTERS = 65536  # of a multiprocessor
MAPS = 28  # of 128 bytes each, beside the other parameters, in 4 KB: CUDA C++ programming guide, function parameters
TYPES = frozenset({"TensorMap", "INF", "DEVICE", "max", "min", "abs"})


@dataclass(frozen=True)
class Parameter:
    """An argument of the kernel: `of` is the tensor, or the extent or scalar; `dimension` of a stride.  A map has its `box`."""

    name: str
    kind: Literal["map", "pointer", "stride", "extent"]
    of: str
    dimension: int = 0
    box: Box | None = None


@dataclass(frozen=True)
class Printed:
    """A translation unit with one kernel; `shared`: bytes of dynamic shared memory."""

    text: str
    function: str
    parameters: tuple[Parameter, ...]
    threads: int
    shared: int


def emit(program: Program) -> Printed:
    """The source of `program`.  Raises ValueError for a program with statements, layouts or roles that have no text here."""
    return _Emitter(program).unit()


class _Emitter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.function = re.sub(r"\W", "_", program.name)
        self.names = Names(frozenset({self.function, *FUNCTIONS, *TYPES}))
        rank = () if program.grid.rank is None else (program.grid.rank,)
        for name in (*program.extents, *(n for n, _ in (*program.scalars, *program.tile)), "cta", *rank):
            self.names.scalar(name)
        self.kernel = Kernel(program, place(program))
        self.signs = signs(program)
        self.alone = len(program.roles) == 1 and program.roles[0].unit == "warp"
        if self.alone:  # every warp of the block is an instance of one role
            self.threads = 32 * program.roles[0].count
            return
        warps = [r for r in program.roles if warps_of(r) == 1]
        self.order = [*warps, *(r for r in program.roles if warps_of(r) == 4)]
        if sum(r.count for r in warps) > 4 or len({r.registers for r in warps}) > 1:
            raise ValueError("the warp roles of a program share one warpgroup and its registers")
        self.first = 4 if warps else 0  # first warp of the warpgroup roles
        self.threads = 32 * self.first + 128 * sum(r.count for r in program.roles if warps_of(r) == 4)
        if not self.threads <= 1024:
            raise ValueError(f"the roles take {self.threads} threads, and a block has at most 1024")

    def unit(self) -> Printed:
        body = self.body()
        used = _words(body)
        parameters = [p for p in self.parameters() if p.name in used]
        maps = sum(p.kind == "map" for p in parameters)
        if maps > MAPS:
            raise ValueError(f"the kernel has {maps} tensor maps, of which its parameters hold {MAPS}")
        declared = [STEP + line for line in self.declarations(used)]
        p = self.program
        head = [f"// {p.name}, for {p.target}.", "//"]
        head += [f"// tile    {', '.join(f'{c} = {n}' for c, n in p.tile)}"]
        head += [f"// blocks  {p.grid.ctas} for {p.grid.tiles} tiles, order {p.grid.title}"]
        head += [line for note in p.notes for line in filled_comment(note, "")]
        cluster = f"__cluster_dims__({p.grid.cluster}, 1, 1) " if p.grid.cluster > 1 else ""
        kernel = [
            f'extern "C" __global__ void {cluster}__launch_bounds__({self.threads}, {self.resident()}) {self.function}(',
            *_filled([self.parameter(q) for q in parameters]),
            ") {",
            *declared,
            *body,
            "}",
            "",
        ]
        text = "\n".join(kernel)
        functions = prelude(text, self.kernel.products)
        unit = "\n".join([*head, "", functions, text])
        return Printed(unit, self.function, tuple(parameters), self.threads, self.kernel.memory.total)

    def resident(self) -> int:
        """Blocks whose registers a multiprocessor has at once: where roles trade registers, one."""
        registers = self.program.roles[0].registers if self.alone else None
        return max(1, REGISTERS // (self.threads * -(-registers // 8) * 8)) if registers else 1

    # ------------------------------------------------------------------------------------------ declarations

    def parameters(self) -> list[Parameter]:
        """All that the kernel could use."""
        p, names = self.program, self.names
        out = [Parameter(name, "map", box.tensor, box=box) for box, name in self.kernel.boxes.items()]
        out += [Parameter(names.pointer(t.name), "pointer", t.name) for t in p.tensors]
        out += [Parameter(names.stride(t.name, n), "stride", t.name, n) for t in p.tensors for n in range(len(t.dims))]
        return out + [Parameter(names.scalar(e), "extent", e) for e in (*p.extents, *(n for n, _ in p.scalars))]

    def parameter(self, p: Parameter) -> str:
        match p.kind:
            case "map":
                return f"const __grid_constant__ TensorMap {p.name}"
            case "stride":
                return f"long long {p.name}"
            case "extent":
                return f"int {p.name}"
        t = self.program.tensor(p.of)
        return f"{'' if t.mode in ('out', 'counter') else 'const '}{CPP[t.dtype]}* {p.name}"

    def declarations(self, used: set[str]) -> list[str]:
        """Tile constants, offsets in shared memory, and numbers of named barriers, those that `used` has."""
        memory, names = self.kernel.memory, self.names
        out = []
        for c, n in self.program.tile:
            if names.scalar(c) in used:
                out.append(f"constexpr int {names.scalar(c)} = {n};")
        for b, place_ in memory.buffers.items():
            if names.buffer(b) in used:
                stage = f", {names.stage(b)} = {place_.stage}" if names.stage(b) in used else ""
                out.append(f"constexpr unsigned {names.buffer(b)} = {place_.offset}{stage};")
        offsets = [f"{names.barrier(b)} = {q.offset}" for b, q in memory.barriers.items()]
        if "scratch" in used:
            offsets.append(f"scratch = {memory.scratch}")
        out += [f"constexpr unsigned {', '.join(offsets)};"] if offsets else []
        out += [f"constexpr int {names.barrier(b)} = {n};" for b, n in memory.numbers.items()]
        return [line for text in out for line in _wrapped(text)]

    # ------------------------------------------------------------------------------------------ body

    def body(self) -> list[str]:
        cta = self.names.scalar("cta")
        roles_text = self.roles()
        used = _words(roles_text)
        head = [
            "extern __shared__ __align__(1024) unsigned char shared[];",
            "const unsigned smem = (unsigned)__cvta_generic_to_shared(shared);",
            "const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;",
        ]
        if "row0" in used or "col0" in used:
            first = "lane / 4" if self.alone else "warp % 4 * 16 + lane / 4"
            head.append(f"const int row0 = {first}, col0 = lane % 4 * 2;")
        if cta in used:
            head.append(f"const int {cta} = blockIdx.x;")
        rank = self.program.grid.rank
        if rank is not None:
            head.append(f"const int {self.names.scalar(rank)} = blockIdx.x % {self.program.grid.cluster};")
        return [STEP + line if line else "" for line in [*head, *self.barriers(), ""]] + roles_text

    def barriers(self) -> list[str]:
        """Their initialisation, and what comes between it and the first access to a tensor."""
        inits: list[str] = []
        for b in self.program.barriers:
            if b.kind == "mbarrier":
                at, count = f"smem + {self.names.barrier(b.name)}", arrivals(self.program, b)
                inits += [f"{STEP}barrier_init({at}{f' + {8 * n}' if n else ''}, {count});" for n in range(b.stages)]
        inits = [f"{STEP}prefetch_map({name});" for name in self.kernel.boxes.values()] + inits
        ready = "barriers" if self.program.grid.rank is None else "cluster"
        after = ["launch_early();"] if self.program.grid.early else []
        return ["", "if (threadIdx.x == 0) {", *inits, "}", f"{ready}_ready();", *after] if inits else after

    def roles(self) -> list[str]:
        """The branches over warps."""
        if self.alone:
            (role,) = self.program.roles
            named = [] if role.var is None else [f"{STEP}const int {self.names.scalar(role.var)} = warp;"]
            return [*named, *self.text(role, 1)]
        lines: list[str] = []
        begin = self.first
        warp_roles = [r for r in self.order if warps_of(r) == 1]
        keyword = "if"
        if warp_roles:
            lines += [f"{STEP}if (warp < 4) {{", *self.trade(warp_roles[0])]
            number = 0
            for r in warp_roles:
                lines += self.role(r, number, number + r.count, 2)
                number += r.count
            lines.append(f"{STEP}}}")
            keyword = "else if"
        for r in self.order[len(warp_roles) :]:
            end = begin + 4 * r.count
            open_ = f"{keyword} (warp < {end}) {{"
            lines[-1:] = [f"{STEP}}} {open_}"] if keyword == "else if" else [*lines[-1:], STEP + open_]
            lines += self.trade(r)
            if r.var is not None:
                start = f" - {begin // 4}" if begin else ""
                lines.append(f"{STEP * 2}const int {self.names.scalar(r.var)} = warp / 4{start};")
            lines += self.text(r, 2)
            lines.append(f"{STEP}}}")
            begin, keyword = end, "else if"
        return lines

    def role(self, r: Role, first: int, last: int, depth: int) -> list[str]:
        """Instances of a warp role on the warps from `first` to before `last`."""
        test = f"warp == {first}" if last == first + 1 else f"warp >= {first} && warp < {last}"
        lines = [f"{STEP * depth}if ({test}) {{"]
        if r.var is not None:
            lines.append(f"{STEP * (depth + 1)}const int {self.names.scalar(r.var)} = warp - {first};")
        return [*lines, *self.text(r, depth + 1), f"{STEP * depth}}}"]

    def trade(self, r: Role) -> list[str]:
        """Registers given up or taken."""
        if r.registers is None:
            return []
        launched = min(255, REGISTERS // self.threads // 8 * 8)
        if r.registers % 8 or not 24 <= r.registers <= 256:
            raise ValueError(f"role {r.name} has {r.registers} registers: a multiple of 8 from 24 to 256 is needed")
        return [f"{STEP * 2}registers_{'down' if r.registers <= launched else 'up'}<{r.registers}>();"]

    def rows(self, r: Role) -> int:
        """Rows of a register tile that a thread has a part of.  Raises ValueError for a warp of other than 16 or 32."""
        if r.unit != "warp" or not any(len(b.axes) == 2 for b in r.buffers):
            return 2
        (height,) = {extent(b, 0, dict(self.program.tile)) for b in r.buffers if len(b.axes) == 2}
        if height not in (16, 32):
            raise ValueError(f"a warp of role {r.name} has {height} rows, not 16 or 32")
        return height // 8

    def text(self, r: Role, depth: int) -> list[str]:
        p = self.program
        x = Expressions(
            self.names,
            {t.name: t for t in p.tensors},
            {b.name: b for b in r.buffers},
            {b.name: b for b in p.buffers},
            dict(p.tile),
            self.signs,
            rows=self.rows(r),
        )
        rows = {b.axes[0].name for b in r.buffers if len(b.axes) == 2}
        if len(rows) > 1:
            raise ValueError(f"register tiles of role {r.name} have several row axes: {', '.join(sorted(rows))}")
        w = Writer(x, self.kernel, r, next(iter(rows), None))
        w.comment(depth, f"role {r.name}")
        roles.body(w, depth)
        return w.lines


def _words(lines: list[str]) -> set[str]:
    """Words of the text, comments left out."""
    return {word for line in lines for word in re.findall(r"\w+", line.partition("//")[0])}


def _filled(parts: list[str]) -> list[str]:
    """Parameters in lines."""
    lines = [STEP * 2]
    for n, part in enumerate(parts):
        piece = part + (", " if n + 1 < len(parts) else "")
        if len(lines[-1]) + len(piece) > WIDTH:
            lines.append(STEP * 2)
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _wrapped(text: str) -> list[str]:
    """A declaration in lines, broken after commas."""
    lines: list[str] = []
    line = ""
    for part in text.split(", "):
        if line and len(line) + len(part) + 4 > WIDTH:
            lines.append(line + ",")
            line = STEP * 2 + part
        else:
            line = f"{line}, {part}" if line else part
    return [*lines, line]
