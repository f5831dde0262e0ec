"""Copies from device memory to shared tiles, by TMA.

A tile of 16-bit values lies in panels of 64 columns (128 bytes), 128-byte swizzled.  A tensor of whole panels comes in one
box of a rank-5 map over (64 columns, rows, panels, other dimensions); another one panel by panel, in boxes of a map over
(columns, rows, other dimensions).  What is outside the tensor is filled with zeros, which count as bytes.

Rows that are positions of several heads come in boxes with the heads before the positions.  Rows of a residue class come in boxes
of the map of their class.
A tile in pages comes in such boxes of the rows that lie in one page for certain: each lane looks one up and copies its boxes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from tilec.backends.cuda.expressions import SCALAR
from tilec.backends.cuda.writer import Box, Writer
from tilec.ir.axes import constant, stage_bytes
from tilec.ir.build import add, conjuncts, floordiv, mul, sub
from tilec.ir.classes import class_of
from tilec.ir.expr import ZERO, Expr, Float, Int, Iota, Op, Read, Var, transform, walk
from tilec.ir.groups import groups_of
from tilec.ir.nodes import Buffer, Compute, Copy
from tilec.ir.pages import Pages, at_lane, pages_of

PANEL = 64  # 16-bit columns of 128 bytes
ROW = 128  # bytes of a panel's row
PERIOD = 8  # maps of a tensor, for queries, keys and values each
CHUNK = "box of a tile"  # a scalar that no program has


def copy(w: Writer, s: Copy, depth: int) -> None:
    """Prints a Copy.  Raises ValueError for one that is not a box of rows of a tensor, signalled by an mbarrier."""
    part = part_of(w, s)
    box = box_of(w, s, part)
    name = map_of(w, s, box)
    if s.signal is None or w.role.unit != "warp":
        raise ValueError(f"{s.dst.buffer}: the cuda backend copies from a warp, with an mbarrier to signal")
    signal, bar = w.barrier(s.signal)
    to, tile = w.x.address(s.dst.buffer, s.dst.stage), w.x.shared[s.dst.buffer]
    pages = pages_of(s.index)
    if pages is not None:
        if s.dst.windows:
            raise ValueError(f"part of a tile of {s.tensor}, which lies in pages")
        copy_pages(w, s, box, pages, name, bar, depth)
        return
    if part.offset is not ZERO:
        to = f"{to} + {w.x.text(part.offset, SCALAR).at(6)}"
    function = "copy_box"
    if s.multicast:
        cluster = w.kernel.program.grid.cluster
        if signal.arrivals != cluster or part.share != cluster:
            raise ValueError(
                f"{s.signal.name} is not completed by an equal part of {tile.name} from each CTA of the cluster"
            )
        function = f"copy_box_everywhere<{cluster}>"
    every = class_of(s.index)
    index = (
        s.index if every is None else tuple(every.number if n == every.position else i for n, i in enumerate(s.index))
    )
    start = [w.x.show(transform(i, _without_lanes)) for i in index[:-1]]
    others = [start[n] for n in reversed(range(len(start))) if n not in (box.axis, *box.heads[:1])]
    first = [start[n] for n in (*box.heads[:1], box.axis)]
    w.line(depth, "if (lane == 0) {")
    w.line(depth + 1, f"const unsigned bar = {bar};")
    w.line(depth + 1, f"expect(bar, {stage_bytes(tile, w.x.constants)});")
    if box.single:
        w.loop(depth + 1, "p", 0, part.panels)
        column = f"{PANEL} * p" if part.panel is ZERO else f"{PANEL} * ({w.x.show(part.panel)} + p)"
        place = ", ".join(_five(column, *first, *others))
        w.line(depth + 2, f"{function}({to} + {ROW * w.size(tile, 0)} * p, {name}, bar, {place});")
        w.line(depth + 1, "}")
    else:
        place = ", ".join(_five("0", *first, w.x.show(part.panel), *others))
        w.line(depth + 1, f"{function}({to}, {name}, bar, {place});")
    w.line(depth, "}")


def map_of(w: Writer, s: Copy, box: Box) -> str:
    """The map that a copy reads through: one for each residue class, of which the rows' is picked."""
    boxes = [replace(box, first=n) for n in range(box.period)]
    names = [w.kernel.boxes.setdefault(b, w.x.names.map(b.tensor, b)) for b in boxes]
    every = class_of(s.index)
    if every is None:
        return names[0]
    residue = w.x.text(every.residue, SCALAR).at(5)
    return "(" + "".join(f"{residue} == {n} ? {name} : " for n, name in enumerate(names[:-1])) + names[-1] + ")"


def copy_pages(w: Writer, s: Copy, box: Box, pages: Pages, name: str, bar: str, depth: int) -> None:
    """Prints a Copy of a tile that lies in pages."""
    tile, to = w.x.shared[s.dst.buffer], w.x.address(s.dst.buffer, s.dst.stage)
    lane, rows, row = tile.axes[0].name, w.size(tile, 0), ROW
    number, here = w.x.names("box", "scalar", CHUNK), Var(CHUNK)
    w.x.signs.scalars.add(CHUNK)
    index = [at_lane(i, lane, mul(here, box.rows)) for i in s.index]
    coordinates = {n: w.x.show(index[n]) for n in range(len(index) - 1)}
    others = [n for n in reversed(coordinates) if n != box.axis]
    w.line(depth, f"if (lane == 0) expect({bar}, {stage_bytes(tile, w.x.constants)});")
    w.line(depth, "__syncwarp();")
    w.line(depth, f"for (int {number} = lane; {number} < {rows // box.rows}; {number} += 32) {{")
    w.line(depth + 1, f"const unsigned bar = {bar}, to = {to} + {box.rows * row} * {number};")
    w.line(depth + 1, f"const int page = {coordinates[pages.page]};")
    coordinates[pages.page] = "page"
    w.loop(depth + 1, "p", 0, _room(w, tile) // PANEL)
    place = ", ".join(_five(f"{PANEL} * p", coordinates[box.axis], *(coordinates[n] for n in others)))
    w.line(depth + 2, f"copy_box(to + {rows * row} * p, {name}, bar, {place});")
    w.line(depth + 1, "}")
    w.line(depth, "}")


@dataclass(frozen=True)
class Part:
    """What a copy brings of a tile: `rows`, and `panels` of them from number `panel` on, to `offset` bytes from its start; 1 /
    `share` of it."""

    rows: int
    panels: int
    panel: Expr = ZERO
    offset: Expr = ZERO
    share: int = 1


def part_of(w: Writer, s: Copy) -> Part:
    """The part that the window of a copy's slot is: whole panels, or rows of all panels.  Raises ValueError for others."""
    buffer = w.x.shared[s.dst.buffer]
    whole = Part(w.size(buffer, 0), _room(w, buffer) // PANEL)
    if not s.dst.windows:
        return whole
    window, size = s.dst.windows[0], constant(s.dst.windows[0].size, w.x.constants)
    by_rows = window.axis == buffer.axes[0].name
    lanes = w.size(buffer, 0 if by_rows else 1)
    if len(s.dst.windows) > 1 or size is None or lanes % size or size % (8 if by_rows else PANEL):
        raise ValueError(f"a copy into {s.dst} is of no whole panels, and no rows of all panels")
    if by_rows:
        return replace(whole, rows=size, offset=mul(ROW, window.start), share=lanes // size)
    start = floordiv(window.start, PANEL)
    return Part(whole.rows, size // PANEL, start, mul(ROW * whole.rows, start), lanes // size)


def _five(*coordinates: str) -> list[str]:
    return [*coordinates, *["0"] * (5 - len(coordinates))]


def box_of(w: Writer, s: Copy, part: Part) -> Box:
    """The box that a Copy brings.  Raises ValueError where there is none."""
    tensor, buffer = w.kernel.program.tensor(s.tensor), w.x.shared[s.dst.buffer]
    panelled(w, s.dst.buffer)
    if tensor.dtype != buffer.dtype:
        raise ValueError(f"a copy fills {buffer.name} with values of the dtype of {tensor.name}")
    rows, columns = (a.name for a in buffer.axes)
    columns_from = next((x.start for x in s.dst.windows if x.axis == columns), ZERO)
    last = add(columns_from, Iota(columns))
    along = [n for n, i in enumerate(s.index) if Iota(rows) in walk(i)]
    pages, groups, every, height = pages_of(s.index), groups_of(s.index), class_of(s.index), part.rows
    position = s.index[along[0]] if along else Int(0)
    if pages is not None:
        along, height, position = [pages.row], gcd(pages.size, height), pages.position
    elif groups is not None:
        along, position = [groups.position], groups.row
    elif every is not None:
        position = every.number
    if (
        len(along) != 1
        or len(s.index) > 5
        or s.index[-1] is not last
        or any(Iota(columns) in walk(i) for i in s.index[:-1])
        or _sign(position, Iota(rows)) != 1
    ):
        raise ValueError(f"the copy of {tensor.name} is not rows of it, whole, along one of at most five dimensions")
    axis, width, lanes = along[0], constant(tensor.dims[-1], w.x.constants), w.size(buffer, 1)
    heads = () if groups is None else (groups.head, groups.box(height)[0])
    outside = {Op("<", (i, tensor.dims[n])) for n, i in enumerate(s.index) if n in (axis, len(s.index) - 1, *heads[:1])}
    if any(guard not in outside for guard in conjuncts(s.where)):
        raise ValueError(f"a copy of {tensor.name} leaves out other elements than those outside of it: {s.where}")
    if width is None or not width <= lanes < width + PANEL:
        raise ValueError(f"a row of {buffer.name} has {lanes} columns, and one of {tensor.name} {tensor.dims[-1]}")
    if height > 256:
        raise ValueError(f"a box has at most 256 rows, and {buffer.name} has {height}")
    if pages is not None and (height % 8 or constant(tensor.dims[axis], w.x.constants) != pages.size):
        raise ValueError(
            f"rows of {tensor.name} that lie in one page are no multiple of 8, or its pages have other sizes"
        )
    period = 1 if every is None else every.period
    if period > PERIOD:
        raise ValueError(f"{tensor.name} has a map for each of at most {PERIOD} residue classes, not {period}")
    if width % PANEL or len(s.index) > 4 or pages is not None or height < w.size(buffer, 0):
        return Box(tensor.name, axis, height, PANEL, single=True, heads=heads, period=period)
    return Box(tensor.name, axis, height, PANEL * part.panels, heads=heads, period=period)


def _room(w: Writer, b: Buffer) -> int:
    """Columns that a row of a shared tile has room for."""
    columns = dict(b.layout.params).get("columns") if b.layout else None
    return w.size(b, 1) if columns is None else int(columns)


def clear(w: Writer, s: Compute, depth: int) -> None:
    """Prints `tile = where(first + lane < end, tile, 0)` over the rows of a shared tile, by a warp: from row end - first on
    there are zeros.  Raises ValueError for another computation."""
    panelled(w, s.dst.buffer)
    b = w.x.shared[s.dst.buffer]
    lane = Iota(b.axes[0].name)
    match s.value:
        case Op("where", (Op("<", (position, end)), Read(name, stage), Float(0.0))) if (
            w.role.unit == "warp"
            and (name, stage) == (s.dst.buffer, s.dst.stage)
            and _sign(position, lane) == 1
            and not any(isinstance(x, Iota) for x in walk(end))
        ):
            first = sub(end, transform(position, _without_lanes))
        case _:
            raise ValueError(f"{b.name}: the cuda backend writes zeros into rows of a shared tile, and nothing else")
    rows, panels = w.size(b, 0), _room(w, b) // PANEL
    w.line(depth, f"clear_rows<{rows}, {panels}>({w.x.address(b.name, s.dst.stage)}, {w.x.show(first)});")


def panelled(w: Writer, name: str) -> None:
    """Raises ValueError unless a shared tile lies in 128-byte swizzled panels of its last axis."""
    b = w.x.shared[name]
    swizzled = b.layout is not None and b.layout.kind == "swizzle" and dict(b.layout.params).get("bytes") == 128
    if (
        len(b.axes) != 2
        or b.layout is None
        or not swizzled
        or dict(b.layout.params).get("major") != b.axes[1].name
        or b.dtype not in ("bf16", "f16")
        or _room(w, b) % PANEL
        or w.size(b, 0) % 8
    ):
        raise ValueError(f"{name} does not lie in 128-byte swizzled panels of 64 16-bit columns")


def _without_lanes(e: Expr) -> Expr | None:
    """The index of lane 0."""
    match e:
        case Iota():
            return Int(0)
        case Op("+", (x, Int(0))) | Op("+", (Int(0), x)) | Op("-", (x, Int(0))):
            return x
    return None


def _sign(e: Expr, lane: Expr) -> int:
    """1 where `e` is a sum with `lane` once, else 0."""
    match e:
        case Op("+", (x, y)):
            return _sign(x, lane) + _sign(y, lane)
        case Op("-", (x, y)) if lane not in walk(y):
            return _sign(x, lane)
        case _:
            return int(e is lane)


def load_rows(w: Writer, dst: str, source: str, stage: Expr | None, depth: int) -> None:
    """A fragments of a whole shared tile of 64 rows, by ldmatrix.  Raises ValueError for other tiles."""
    panelled(w, source)
    b, tile = w.x.registers[dst], w.x.shared[source]
    same = [(a.name, w.size(b, n)) for n, a in enumerate(b.axes)] == [
        (a.name, w.size(tile, n)) for n, a in enumerate(tile.axes)
    ]
    if not same or b.dtype != tile.dtype:
        raise ValueError(f"{dst} is not the fragment of a stage of {source}")
    steps = w.registers(b) // 4
    address = w.x.address(source, stage)
    w.line(depth, f"load_rows<{steps}>({w.x.names.buffer(dst)}, {address});")
