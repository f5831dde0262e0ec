"""Parameters of a generated kernel, those that it uses.

For each tensor a pointer and the strides of all dimensions but the last, which is contiguous (a param and an LSE have one for
the last as well), or else a tensor map that fetches boxes; the call's extents; tile constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilec.backends.triton.names import Names
from tilec.backends.triton.wrap import INDENT, WIDTH
from tilec.ir.expr import Expr, Int, Iota, Var
from tilec.ir.expr import walk as expressions
from tilec.ir.nodes import Global, Load, Program, Store, walk


@dataclass(frozen=True)
class Parameter:
    """A runtime argument: `of` is the tensor, or the extent; `dimension` of a stride.  A box is a tensor map."""

    name: str
    kind: Literal["pointer", "box", "stride", "extent"]
    of: str
    dimension: int = 0


def contiguous(program: Program) -> frozenset[str]:
    """Tensors whose last dimension has stride 1: tables, and what is read or written as rows of features."""
    vectors = {s.tensor for s in walk(program.roles[0].body) if isinstance(s, Store) and len(s.axes) < 2}
    return frozenset(t.name for t in program.tensors if t.mode != "param" and t.name not in vectors)


def strided_dimensions(t: Global, rows: frozenset[str]) -> range:
    """Dimensions whose stride is an argument, all but the last of tensors in `rows`."""
    return range(len(t.dims) - (t.name in rows))


def boxes_of(program: Program) -> dict[str, list[int]]:
    """Tensors that are read as boxes, and the extents of a box, one per dimension."""
    sizes = dict(program.tile)
    boxes: dict[str, list[int]] = {}
    for role in program.roles:
        tiles = {b.name: {a.name: a.size for a in b.axes} for b in role.buffers}
        for s in walk(role.body):
            if isinstance(s, Load) and s.box:
                lanes = [next((x.axis for x in expressions(i) if isinstance(x, Iota)), None) for i in s.index]
                axes = tiles[s.dst.buffer]
                boxes[s.tensor] = [1 if a is None else _size(axes[a], sizes) for a in lanes]
    return boxes


def _size(e: Expr, sizes: dict[str, int]) -> int:
    assert isinstance(e, Int | Var)
    return e.value if isinstance(e, Int) else sizes[e.name]


def parameters_of(program: Program, names: Names, boxes: dict[str, list[int]], rows: frozenset[str]) -> list[Parameter]:
    """All that the kernel could use; their names come before any other."""
    out = [
        Parameter(names.box(t.name), "box", t.name)
        if t.name in boxes
        else Parameter(names.pointer(t.name), "pointer", t.name)
        for t in program.tensors
    ]
    for t in program.tensors:
        out += [Parameter(names.stride(t.name, n), "stride", t.name, n) for n in strided_dimensions(t, rows)]
    return out + [Parameter(names.scalar(e), "extent", e) for e in program.extents]


def filled(names: list[str]) -> list[str]:
    """A group of parameters, on lines of its own."""
    lines, line = [], INDENT
    for name in names:
        if len(line) + len(name) > WIDTH:
            lines.append(line.rstrip())
            line = INDENT
        line += f"{name}, "
    return [*lines, line.rstrip()] if names else []
