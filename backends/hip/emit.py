"""Prints a tile program of waves as HIP C++.

Nothing is decided here: clusters, barriers, waits, priorities, the order of instructions, layouts, the block map and every
expression come from the program.  The source is self-contained and includes no header, so clang alone compiles it.  Parameters
of the kernel, those that it uses: pointers, strides (64-bit, in elements), extents (32-bit).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tilec.backends.cpp.expressions import CPP
from tilec.backends.cpp.lines import STEP, WIDTH, broken, filled_comment
from tilec.backends.cpp.signs import signs
from tilec.backends.hip.expressions import Expressions
from tilec.backends.hip.names import Names
from tilec.backends.hip.prelude import FUNCTIONS, prelude
from tilec.backends.hip.roles import block
from tilec.backends.hip.writer import WIDEST, Writer, place
from tilec.backends.runtime.settings import Rounding
from tilec.ir.fragments import WAVE, Fragment, fragment
from tilec.ir.nodes import For, Mma, Program, Role, Sync
from tilec.ir.nodes import walk as statements

SIMDS = 4  # of a compute unit, which holds one block: AMD CDNA 3 white paper
TYPES = frozenset({"INF", "DEVICE", "KERNEL", "SHARED"})


@dataclass(frozen=True)
class Parameter:
    """An argument of the kernel: `of` is the tensor, or the extent; `dimension` of a stride."""

    name: str
    kind: Literal["pointer", "stride", "extent"]
    of: str
    dimension: int = 0


@dataclass(frozen=True)
class Printed:
    """A translation unit with one kernel; `shared`: bytes of shared memory; `matrices`: matrix instructions in its text,
    `looped`: those of each loop; `waves`:
    of one SIMD; `strided`: (tensor, dimension, positions apart) of rows that are addressed
    by 32 bits."""

    text: str
    function: str
    parameters: tuple[Parameter, ...]
    threads: int
    waves: int
    shared: int
    matrices: int
    looped: tuple[int, ...]
    strided: tuple[tuple[str, int, int], ...]


def emit(program: Program, rounding: Rounding = "nearest") -> Printed:
    """The source of `program`; `rounding`: of floats to bf16.  Raises ValueError for a program with statements, layouts or roles
    that have no text here."""
    return _Emitter(program, rounding).unit()


class _Emitter:
    def __init__(self, program: Program, rounding: Rounding) -> None:
        if len(program.roles) != 1 or program.roles[0].unit != "wave":
            raise ValueError("the hip backend prints programs of one role of waves")
        if program.grid.cluster > 1 or any(t.mode == "counter" for t in program.tensors):
            raise ValueError("blocks do not meet, and claim no tiles")
        self.program, self.rounding, (self.role,) = program, rounding, program.roles
        self.function = re.sub(r"\W", "_", program.name)
        self.names = Names(frozenset({self.function, *FUNCTIONS, *TYPES}))
        for name in (*program.extents, *(n for n, _ in program.tile), "cta"):
            self.names.scalar(name)
        self.memory, self.shared = place(program)
        if self.shared > WIDEST:
            raise ValueError(f"{self.shared} bytes of shared memory, and a block has {WIDEST}")
        self.waves = -(-self.role.count // SIMDS)
        self.check_barriers()

    def check_barriers(self) -> None:
        """The one barrier of hardware counts all waves."""
        used = {s.bar.name for s in statements(self.role.body) if isinstance(s, Sync)}
        if any(b.kind != "named" or b.arrivals != self.role.count or b.stages > 1 for b in self.program.barriers):
            raise ValueError("a barrier is of all waves of a block")
        if len(used) > 1:
            raise ValueError("a block has one barrier")

    def unit(self) -> Printed:
        w = self.writer()
        block(w, self.role.body, 1, frozenset({self.role.var} if self.role.var else set()))
        body = [*self.opening(w), *w.lines]
        used = set(re.findall(r"\w+", "\n".join(body)))
        parameters = [p for p in self.parameters() if p.name in used]
        threads = WAVE * self.role.count
        kernel = [
            f"KERNEL({threads}, {self.waves}) {self.function}(",
            *_filled([self.parameter(p) for p in parameters]),
            ") {",
            *[STEP + line for line in self.declarations(used)],
            *body,
            "}",
            "",
        ]
        text = "\n".join(kernel)
        unit = "\n".join([*self.head(), "", prelude(text, self.rounding), text])
        return Printed(
            unit,
            self.function,
            tuple(parameters),
            threads,
            self.waves,
            self.shared,
            w.matrices,
            tuple(w.looped),
            tuple(sorted(w.strided)),
        )

    def head(self) -> list[str]:
        p = self.program
        return [
            f"// {p.name}, for {p.target}.",
            "//",
            f"// tile    {', '.join(f'{c} = {n}' for c, n in p.tile)}",
            f"// blocks  {p.grid.ctas} for {p.grid.tiles} tiles, order {p.grid.order}",
            *(line for note in p.notes for line in filled_comment(note, "")),
        ]

    # ------------------------------------------------------------------------------------------ declarations

    def parameters(self) -> list[Parameter]:
        """All that the kernel could use."""
        p, names = self.program, self.names
        out = [Parameter(names.pointer(t.name), "pointer", t.name) for t in p.tensors]
        out += [Parameter(names.stride(t.name, n), "stride", t.name, n) for t in p.tensors for n in range(len(t.dims))]
        return out + [Parameter(names.scalar(e), "extent", e) for e in p.extents]

    def parameter(self, p: Parameter) -> str:
        if p.kind != "pointer":
            return f"{'long long' if p.kind == 'stride' else 'int'} {p.name}"
        t = self.program.tensor(p.of)
        return f"{'' if t.mode == 'out' else 'const '}{CPP[t.dtype]}* __restrict__ {p.name}"

    def declarations(self, used: set[str]) -> list[str]:
        """Tile constants and offsets in shared memory, those that `used` has."""
        out = []
        for c, n in self.program.tile:
            if self.names.scalar(c) in used:
                out.append(f"constexpr int {self.names.scalar(c)} = {n};")
        for b, place_ in self.memory.items():
            stage = f", {self.names.stage(b)} = {place_.stage}" if self.names.stage(b) in used else ""
            out.append(f"constexpr unsigned {self.names.buffer(b)} = {place_.offset}{stage};")
        return out

    # ------------------------------------------------------------------------------------------ body

    def writer(self) -> Writer:
        p, role = self.program, self.role
        rows = next((s.proof.names[0] for s in statements(role.body) if isinstance(s, For) and s.proof), "")
        sums = {s.dst.buffer for s in statements(role.body) if isinstance(s, Mma)}
        like = self.like(role, sums)
        registers = {b.name: b for b in role.buffers}
        x = Expressions(
            self.names,
            {t.name: t for t in p.tensors},
            registers,
            {b.name: b for b in p.buffers},
            dict(p.tile),
            signs(p),
            row=rows,
            like=like,
            sums=frozenset(sums),
        )
        return Writer(x, p, role, like, self.memory)

    def like(self, role: Role, sums: set[str]) -> Fragment:
        """The accumulators' fragment, of which there is one."""
        found = {f for b in role.buffers if b.name in sums for f in (fragment(b.layout),)}
        if len(found) != 1 or None in found:
            raise ValueError("accumulators do not lie as one matrix instruction has them")
        (like,) = found
        assert like is not None
        return like

    def opening(self, w: Writer) -> list[str]:
        """Numbers of the wave and the lane, registers, and the parts of addresses that belong to a lane."""
        cta, n = self.names.scalar("cta"), w.like.n
        var = [] if self.role.var is None else [f"const int {self.names.scalar(self.role.var)} = wave;"]
        head = [
            f"__attribute__((shared)) static char shared[{self.shared}];",
            "SHARED char* const lds = (SHARED char*)shared;",
            "const int lane = __builtin_amdgcn_workitem_id_x() % 64, wave = uniform(__builtin_amdgcn_workitem_id_x() / 64);",
            f"const int own = lane % {n}, low = lane / {n} * 4;",
            f"const int {cta} = __builtin_amdgcn_workgroup_id_x();",
            *var,
            *(f"unsigned {name} = {text};" for name, text in w.bases.items()),
            *(w.declare(b, w.x.sums) for b in self.role.buffers),
            "",
        ]
        return [piece for line in head for piece in (broken(line, STEP) if line else [""])]


def _filled(parts: list[str]) -> list[str]:
    """Parameters, as many on a line as fit."""
    lines: list[str] = []
    for n, part in enumerate(parts):
        text = part + ("," if n + 1 < len(parts) else "")
        if lines and len(lines[-1]) + len(text) + 1 <= WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(2 * STEP + text)
    return lines
