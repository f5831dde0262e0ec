"""What the printers of statements share beside their lines: what is known of the role they stand in."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tilec.backends.cpp.writer import CppWriter
from tilec.backends.hip.expressions import SCALAR, Expressions
from tilec.ir.attention import BYTES
from tilec.ir.axes import constant, stage_bytes
from tilec.ir.expr import Expr, Int
from tilec.ir.fragments import WAVE, Exchange, Fragment, exchange, fragment
from tilec.ir.nodes import Buffer, Program, Role, Slot, Store
from tilec.ir.nodes import walk as statements

WIDEST = 65_536  # bytes of shared memory: AMD CDNA 3 white paper


@dataclass(frozen=True)
class Place:
    """Offset of the first stage in shared memory, and bytes of one."""

    offset: int
    stage: int


def place(program: Program) -> tuple[dict[str, Place], int]:
    """Where shared tiles lie, and the bytes they take together.  Raises ValueError for what is no tile in exchanged units."""
    out: dict[str, Place] = {}
    total = 0
    for b in program.buffers:
        if exchange(b.layout) is None or len(b.axes) != 2 or b.alias is not None:
            raise ValueError(f"{b.name} does not lie in rows of exchanged units")
        stage = stage_bytes(b, dict(program.tile))
        out[b.name] = Place(total, stage)
        total += stage * b.stages
    return out, total


@dataclass
class Writer(CppWriter):
    """Prints one role.  `like`: the products' accumulators; `bases`: text of the parts of addresses that belong to the lane, by
    name; `matrices`: matrix instructions so far; `loops`: those that are open, `looped`: matrix instructions of each that was
    closed; `strided`: dimensions of tensors whose rows are addressed by 32 bits."""

    x: Expressions
    program: Program
    role: Role
    like: Fragment
    memory: dict[str, Place]
    bases: dict[str, str] = field(default_factory=dict)
    matrices: int = 0
    loops: int = 0
    looped: list[int] = field(default_factory=list)
    strided: set[tuple[str, int, int]] = field(default_factory=set)

    @cached_property
    def stored(self) -> dict[str, int]:
        """How much of an axis of features is stored."""
        found = (s for s in statements(self.role.body) if isinstance(s, Store) and len(s.axes) == 2)
        return {s.axes[1]: self.constant(self.program.tensor(s.tensor).dims[-1]) for s in found}

    def size(self, b: Buffer, axis: int) -> int:
        """Lanes of a buffer along its axis of that number."""
        return self.constant(b.axes[axis].size)

    def constant(self, e: Expr) -> int:
        """A number that is known.  Raises ValueError for another."""
        value = constant(e, dict(self.program.tile))
        if value is None:
            raise ValueError(f"{e} is no constant")
        return value

    def recompute(self, depth: int, base: str) -> None:
        """Inside a loop addresses are computed from their lane's part each time: kept around it they take as many registers as
        there are accesses."""
        if self.loops:
            self.line(depth, f"recomputed({base});")

    # ------------------------------------------------------------------------------------------ registers

    def operand(self, b: Buffer) -> Fragment | None:
        """The fragment that a buffer is as an operand; None for an accumulator and for other buffers."""
        found = fragment(b.layout)
        return found if found is not None and found.operand != "C" else None

    def is_row(self, name: str) -> bool:
        """Whether a buffer has one value for each row of the queries."""
        return tuple(a.name for a in self.x.registers[name].axes) == (self.x.row,)

    def count(self, b: Buffer) -> int:
        """Elements of a tile or a vector that a lane holds.  Raises ValueError for a form that lanes do not have."""
        axes = tuple(a.name for a in b.axes)
        if axes == (self.x.row,):
            return 1
        if len(axes) > 2 or (len(axes) == 2 and (axes[1] != self.x.row or self.size(b, 1) != self.like.n)):
            raise ValueError(f"register buffer {b.name} is no tile of features or keys by rows")
        rows = self.size(b, 0)
        if rows % self.like.n:
            raise ValueError(f"{rows} rows of {b.name} are no multiple of {self.like.n}")
        return rows * self.like.n // WAVE

    def declare(self, b: Buffer, sums: frozenset[str]) -> str:
        """A register buffer's declaration."""
        name, found = self.x.names.buffer(b.name), self.operand(b)
        stages = f"[{b.stages}]" if b.stages > 1 else ""
        if b.layout is not None and b.layout.kind == "blocks":
            return f"u32x2 {name}[{self.blocks(b)}][4];"
        if found is not None:
            along, across = self.shape(b, found)
            held = "u32x4" if found.run == 8 else "u32x2"
            return f"{held} {name}{stages}{f'[{across}]' if found.operand == 'A' else ''}[{along}];"
        if b.name in sums:
            return f"f32x{self.like.held} {name}{stages}[{self.count(b) // self.like.held}];"
        kind = "float" if b.dtype in ("f32", "bf16", "f16") else "int"
        return f"{kind} {name};" if self.count(b) == 1 else f"{kind} {name}{stages}[{self.count(b)}];"

    def shape(self, b: Buffer, found: Fragment) -> tuple[int, int]:
        """Of an operand: registers' groups along the contracted axis, and instructions across it.

        Raises ValueError for an operand of another form."""
        contracted = self.contracted(b, found)
        depth, width = self.size(b, contracted), self.size(b, 1 - contracted)
        deep = found.run * found.across
        if BYTES[b.dtype] != 2 or depth % deep or width % found.n or (found.operand == "B" and width != found.n):
            raise ValueError(f"{b.name} is no operand of {found.n} rows over multiples of {deep}")
        return depth // deep, width // found.n

    def contracted(self, b: Buffer, found: Fragment) -> int:
        """Number of an operand's contracted axis: of a right one the axis that is not the rows', of a left one the last."""
        if found.operand == "B":
            return 0 if b.axes[1].name == self.x.row else 1
        return 1

    def blocks(self, b: Buffer) -> int:
        """Blocks of 4 x 4 that a lane has of a staged tile, the last one perhaps not all lanes."""
        return -(-self.size(b, 0) * self.size(b, 1) // (16 * WAVE))

    # ------------------------------------------------------------------------------------------ shared memory

    def exchanged(self, name: str) -> tuple[Buffer, Exchange, int]:
        """A shared tile, how its units are exchanged, and bytes of a row."""
        b = self.x.shared[name]
        lie = exchange(b.layout)
        assert lie is not None
        return b, lie, self.size(b, 1) * BYTES[b.dtype]

    def base(self, s: Slot) -> str:
        """Offset of a slot's stage in shared memory."""
        place_ = self.memory[s.buffer]
        name = self.x.names.buffer(s.buffer)
        if s.stage is None or s.stage is Int(0):
            return name
        value = constant(s.stage, dict(self.program.tile))
        if value is not None:
            return f"{name} + {value * place_.stage}"
        return f"{name} + {self.x.names.stage(s.buffer)} * {self.x.text(s.stage, SCALAR).at(7)}"

    def window(self, s: Slot, b: Buffer, axis: int) -> tuple[Expr, int]:
        """First lane and number of lanes of a slot along an axis."""
        for w in s.windows:
            if w.axis == b.axes[axis].name:
                return w.start, self.constant(w.size)
        return Int(0), self.size(b, axis)
