"""Copies from device memory to shared tiles that every lane makes a part of: `cp.async`, 16 bytes at a time.

A tile of 16-bit values lies in panels of U units of 16 bytes a row, exchanged within the row (`unit_at`).  A warp copies 32 / U
rows of a panel at once, neighbouring lanes neighbouring units.  Rows and features that are not live are filled with zeros and not
read.  One statement is one group of its queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.backends.cuda.expressions import SCALAR, Lanes
from tilec.backends.cuda.writer import Writer
from tilec.ir.attention import BYTES
from tilec.ir.expr import Expr, Fetch, Int, Iota, Op, walk
from tilec.ir.nodes import Buffer, Copy

QUEUE = "cp_async"
UNIT = 16  # bytes
LANES = 32


@dataclass(frozen=True)
class Panels:
    """`units` in a row of a panel, `count` panels of `rows` rows; `columns`: elements of a unit."""

    units: int
    count: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """Bytes of one panel."""
        return self.rows * self.units * UNIT


def panels(w: Writer, b: Buffer) -> Panels:
    """How a shared tile lies.  Raises ValueError unless in swizzled panels of 16-bit rows."""
    layout = dict(b.layout.params) if b.layout is not None and b.layout.kind == "swizzle" else {}
    width = layout.get("bytes")
    if len(b.axes) != 2 or BYTES[b.dtype] != 2 or not isinstance(width, int) or layout.get("major") != b.axes[1].name:
        raise ValueError(f"{b.name} does not lie in swizzled panels of rows of 16-bit values")
    columns = w.size(b, 1) * BYTES[b.dtype]
    if width < 2 * UNIT or columns % width or w.size(b, 0) % 8:
        raise ValueError(f"{b.name} does not lie in whole panels of {width} bytes")
    return Panels(width // UNIT, columns // width, w.size(b, 0), UNIT // BYTES[b.dtype])


def await_(w: Writer, pending: int, depth: int) -> None:
    """Prints an Await."""
    w.line(depth, f"copies_pending<{pending}>();")


def copy(w: Writer, s: Copy, depth: int) -> None:
    """Prints a Copy of a stage, or of a window of its rows.  Raises ValueError for others."""
    if w.role.unit != "warp":
        raise ValueError(f"{s.dst.buffer}: warps copy by cp.async, not a {w.role.unit}")
    b, tensor = w.x.shared[s.dst.buffer], w.kernel.program.tensor(s.tensor)
    lie = panels(w, b)
    row, column = (a.name for a in b.axes)
    if tensor.dtype != b.dtype or s.index[-1] is not Iota(column) or _has(s.index[:-1], column):
        raise ValueError(f"the copy of {s.tensor} is not rows of it, of {b.dtype}")
    rows, start = _window(w, s, b)
    live, features = _guards(s.where, column, lie)
    height = LANES // lie.units  # rows copied at once
    first = f"lane / {lie.units}"
    lane = f"unit_at<{lie.units}>({start}{first}, lane % {lie.units})"
    at = Lanes("copy", row, at="r")
    guard = None if live is None else w.x.show(live, at)
    w.line(depth, "{")
    w.line(depth + 1, f"const unsigned to = {w.x.address(b.name, s.dst.stage)};")
    line = _line(s, row)
    if line is not None:
        dimension, corner = line
        step = w.x.names.stride(s.tensor, dimension)
        scalars = (*s.index[:dimension], corner, *s.index[dimension + 1 : -1])
        offset = w.x.offset(s.tensor, scalars, SCALAR)
        lanes = f"{first} * {step} + lane % {lie.units} * {lie.columns}"
        w.line(depth + 1, f"const unsigned short* from = {w.x.names.pointer(s.tensor)} + {offset} + {lanes};")
    w.loop(depth + 1, "y", 0, -(-rows // height))
    inner = depth + 2
    if line is None or guard is not None or rows % height:
        w.line(inner, f"const int r = {first} + {height} * y;")
    if guard is not None:
        w.line(inner, f"const bool live = {guard};")
    if line is None:
        offset = w.x.offset(s.tensor, s.index[:-1], at)
        offset = f"(live ? {offset} : 0)" if guard is not None and _reads(s.index) else offset
        source = f"{w.x.names.pointer(s.tensor)} + {offset} + lane % {lie.units} * {lie.columns}"
        w.line(inner, f"const unsigned short* from = {source};")
    w.loop(inner, "g", 0, lie.count)
    tests = [] if guard is None else ["live"]
    if features is not None and features < lie.count * lie.units * lie.columns:
        tests.append(f"(lane % {lie.units} + {lie.units} * g) * {lie.columns} < {features}")
    place = f"({lane} ^ y % 2 * 64)" if lie.units == 8 else lane
    given = f"to + {place} + {height * lie.units * UNIT} * y + {lie.size} * g, from + {lie.units * lie.columns} * g"
    call = f"copy_live_unit({given}, {' && '.join(tests)});" if tests else f"copy_unit({given});"
    w.line(inner + 1, f"if (r < {rows}) {call}" if rows % height else call)
    w.line(inner, "}")
    if line is not None:
        w.line(inner, f"from += {height} * {step};")
    w.line(depth + 1, "}")
    w.line(depth + 1, "copies_commit();")
    w.line(depth, "}")


def _window(w: Writer, s: Copy, b: Buffer) -> tuple[int, str]:
    """Rows that this warp copies, and the text of the first one's number, to add to."""
    if not s.dst.windows:
        return w.size(b, 0), ""
    window, *more = s.dst.windows
    size = window.size
    if more or window.axis != b.axes[0].name or not isinstance(size, Int):
        raise ValueError(f"a window of {b.name} must be of a number of its rows")
    return size.value, f"{w.x.text(window.start, SCALAR).at(5)} + "


def _guards(where: Expr | None, column: str, lie: Panels) -> tuple[Expr | None, int | None]:
    """What a row must satisfy, and how many features there are."""
    rows: Expr | None = None
    features: int | None = None
    for e in _conjuncts(where):
        match e:
            case Op("<", (Iota(axis), Int(n))) if axis == column and n % lie.columns == 0:
                features = n
            case _ if Iota(column) in walk(e):
                raise ValueError(f"a copy brings whole units of {lie.columns} features, which {e} cuts")
            case _:
                rows = e if rows is None else Op("and", (rows, e))
    return rows, features


def _conjuncts(e: Expr | None) -> tuple[Expr, ...]:
    match e:
        case None:
            return ()
        case Op("and", (a, b)):
            return (*_conjuncts(a), *_conjuncts(b))
    return (e,)


def _line(s: Copy, row: str) -> tuple[int, Expr] | None:
    """The dimension along which rows follow each other, and the first row's index; None where they do not."""
    along = [n for n, i in enumerate(s.index[:-1]) if Iota(row) in walk(i)]
    if len(along) != 1:
        return None
    match s.index[along[0]]:
        case Op("+", (start, Iota(axis))) if axis == row and Iota(row) not in walk(start):
            return along[0], start
        case Iota():
            return along[0], Int(0)
    return None


def _has(index: tuple[Expr, ...], axis: str) -> bool:
    return any(Iota(axis) in walk(i) for i in index)


def _reads(index: tuple[Expr, ...]) -> bool:
    return any(isinstance(x, Fetch) for i in index for x in walk(i))
