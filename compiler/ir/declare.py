"""What a tile program declares and refers to: grid, buffers, barriers, tensors, and parts of them.

Their meaning is that of the program around them: see `ir.nodes`, which also gives these names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tilec.ir.attention import Dtype
from tilec.ir.expr import Expr, Int

Space = Literal["register", "shared"]


@dataclass(frozen=True)
class Axis:
    """A tile axis.  `size` is a constant expression: an integer, or over the program's tile constants (`TQ`)."""

    name: str
    size: Expr


@dataclass(frozen=True)
class Layout:
    """How a buffer lies in shared memory or over lanes, as data: `swizzle(bytes=128, major=d)`, `xor(unit=16, rows=8)`,
    `fragment(mma=m64n128, operand=C)`.  Parameters are (name, value) pairs; values are integers or words.  `columns`: what a
    row has room for where that is more than the lanes of the last axis; what lies beyond them is never read."""

    kind: str
    params: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True)
class Buffer:
    """A tile per stage.  No axes: one scalar.  `alias`: the buffer whose memory this one reuses."""

    name: str
    space: Space
    dtype: Dtype
    axes: tuple[Axis, ...]
    stages: int = 1
    layout: Layout | None = None
    alias: str | None = None


@dataclass(frozen=True)
class Barrier:
    """`arrivals` complete one phase; `tx`: a Copy's bytes count too (its completion is one of the arrivals)."""

    name: str
    kind: Literal["mbarrier", "named"]
    arrivals: int
    stages: int = 1
    tx: bool = False


@dataclass(frozen=True)
class Global:
    """A tensor in device memory; `dims` are extents in elements, over the program's extents.

    The last dimension of `in` and `out` tensors is contiguous, tables are contiguous, a `param` has any strides,
    a `row` is a param whose last dimension is contiguous."""

    name: str
    mode: Literal["in", "param", "row", "out", "table", "counter"]
    dtype: Dtype
    dims: tuple[Expr, ...]


@dataclass(frozen=True)
class Window:
    """Part of a tile: lanes `start` … `start + size` of an axis."""

    axis: str
    start: Expr
    size: Expr


@dataclass(frozen=True)
class Slot:
    """A buffer's stage, or windows of it, as source or destination of a tile operation."""

    buffer: str
    stage: Expr | None = None
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Bar:
    """One barrier of an array of them."""

    name: str
    stage: Expr = field(default_factory=lambda: Int(0))


@dataclass(frozen=True)
class Grid:
    """`tiles` units of work on `ctas` blocks.  `coords`: the tile coordinates and their extents, whose product `tiles` is
    (fewer real tiles may exist: packed storage).  `order` names the block map, which is written out in the cluster `map`
    that opens each role: `let` lines from `cta` to the coordinates.  `numbers` are the map's own, as (name, value) pairs:
    `order linear_xcd8(chunk = 4)`.

    `cluster`: how many consecutive CTAs run at the same time and reach each other's shared memory; a unit of work is then a
    cluster's, and `ctas` a multiple of it.  `rank` names a CTA's number in its cluster.

    `early`: CTAs may begin before the launch in front of this one has ended, and set themselves up; they touch no tensor until
    it has, and this launch lets the next one begin as early.  (PTX: griddepcontrol.)"""

    tiles: Expr
    ctas: Expr
    order: str
    coords: tuple[tuple[str, Expr], ...] = ()
    cluster: int = 1
    rank: str | None = None
    numbers: tuple[tuple[str, int | str], ...] = ()
    early: bool = False

    @property
    def title(self) -> str:
        """The block map with its numbers, for comments and reports."""
        return self.order + (f"({', '.join(f'{n} = {v}' for n, v in self.numbers)})" if self.numbers else "")
