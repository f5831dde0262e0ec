"""What the printers of statements share beside their lines: what is known of the role they stand in."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.backends.cpp.writer import CppWriter
from tilec.backends.cuda.expressions import SCALAR, Expressions
from tilec.backends.cuda.shared import SharedMemory, extent
from tilec.ir.expr import Int
from tilec.ir.nodes import Bar, Barrier, Buffer, Program, Role


@dataclass(frozen=True)
class Box:
    """What one copy brings of a tensor: `rows` along dimension `axis`, and of the last one `columns`: all of them as whole
    panels, or one panel of which a part may be outside the tensor (`single`).  `heads`: none, or the dimension along which
    rows come first, and how many do.  Rows are every `period`-th position from `first` on."""

    tensor: str
    axis: int
    rows: int
    columns: int
    single: bool = False
    heads: tuple[int, ...] = ()
    period: int = 1
    first: int = 0


@dataclass
class Kernel:
    """One kernel's declarations, and what its roles turn out to use: `boxes` (map names in order) and `products`
    (text of each matrix instruction)."""

    program: Program
    memory: SharedMemory
    boxes: dict[Box, str] = field(default_factory=dict)
    products: dict[str, str] = field(default_factory=dict)


@dataclass
class Writer(CppWriter):
    """Prints one role.  `row`: the axis along which register tiles hold 64 rows, None without tiles; `in_flight`: destinations of
    the products of each queue that nothing has awaited yet, oldest first."""

    x: Expressions
    kernel: Kernel
    role: Role
    row: str | None
    in_flight: dict[str, list[str]] = field(default_factory=dict)

    def size(self, b: Buffer, axis: int) -> int:
        return extent(b, axis, dict(self.kernel.program.tile))

    @property
    def rows(self) -> int:
        """Rows of a register tile that a thread has a part of: two for each 16 rows that a warp multiplies."""
        return self.x.rows

    def registers(self, b: Buffer) -> int:
        """32-bit registers of a thread that hold a register buffer.  Raises ValueError for a form that fragments do not have."""
        axes = tuple(a.name for a in b.axes)
        if len(axes) == 1 and axes[0] == self.row:
            return self.rows
        if len(axes) == 1 and over_lanes(b):
            return -(-self.size(b, 0) // 32)
        if len(axes) == 1 and self.role.unit == "warp" and self.size(b, 0) % 8 == 0:
            return self.size(b, 0) // 4
        height = 8 * self.rows * (4 if self.role.unit == "warpgroup" else 1)
        if len(axes) == 2 and axes[0] == self.row and self.size(b, 0) == height and b.stages == 1:
            columns, operand = self.size(b, 1), dict(b.layout.params).get("operand") if b.layout else None
            if operand == "C" and columns % 8 == 0 and columns <= 256:
                return self.rows * columns // 4
            if operand == "A" and b.dtype in ("bf16", "f16") and columns % 16 == 0:
                return self.rows * columns // 8
        raise ValueError(
            f"register buffer {b.name} is no fragment of a {height}-row product, and no vector of its rows or columns"
        )

    def holds(self, b: Buffer) -> str:
        """C++ type of a register buffer's elements: pairs of 16-bit values in an operand, else one value each."""
        if b.layout is not None and dict(b.layout.params).get("operand") == "A":
            return "unsigned"
        return "float" if b.dtype in ("f32", "bf16", "f16") else "int"

    def barrier(self, bar: Bar) -> tuple[Barrier, str]:
        """An mbarrier and its shared address, or a named barrier and its number."""
        b = next(b for b in self.kernel.program.barriers if b.name == bar.name)
        name = self.x.names.barrier(bar.name)
        base = name if b.kind == "named" else f"smem + {name}"
        if bar.stage is Int(0):
            return b, base
        stage = self.x.text(bar.stage, SCALAR)
        return b, f"{base} + {stage.at(5)}" if b.kind == "named" else f"{base} + 8 * {stage.at(7)}"


def over_lanes(b: Buffer) -> bool:
    """Whether a vector lies over the lanes of each warp."""
    return b.layout is not None and b.layout.kind == "lanes"
