"""Rows of a tensor that a wave reads: as a buffer of hardware whose end is that of the live rows."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.backends.hip.expressions import SCALAR
from tilec.backends.hip.writer import Writer
from tilec.ir.attention import BYTES
from tilec.ir.axes import constant
from tilec.ir.build import add, conjuncts, floordiv, minimum, mul, sub, where
from tilec.ir.expr import Expr, Fetch, Int, Iota, Op, substitute, walk
from tilec.ir.pages import Pages, pages_of


@dataclass(frozen=True)
class Rows:
    """C++ text of the buffer, and of bytes between rows; `width`: bytes of a row, if the tile's rows are wider."""

    resource: str
    step: str
    width: int | None = None

    def inside(self, column: str) -> str:
        """Text of a place in a row, beyond the buffer's end if it is beyond the row's."""
        return column if self.width is None else f"inside({column}, {self.width})"


def rows(
    w: Writer, tensor: str, index: tuple[Expr, ...], guard: Expr | None, axes: tuple[str, str], count: int
) -> Rows:
    """`count` rows along the first of `axes`, whole along the second, from the first lane's on; those that the guard excludes are
    beyond the buffer's end, and so is what `Rows.inside` says of columns.  Raises ValueError for what is no such box.

    Rows in pages lie in one, whose number is looked up if any of them is live."""
    row, column = axes
    t, pages = w.program.tensor(tensor), pages_of(index)
    found = index
    if pages is not None:
        first = _in_one_page(w, pages, row, count, tensor)
        paged = {pages.page: Int(0), pages.row: add(Op("%", (first, Int(pages.size))), Iota(row))}
        index = tuple(paged.get(n, i) for n, i in enumerate(index))
    along = [n for n, i in enumerate(index) if Iota(row) in walk(i)]
    if index[-1] is not Iota(column) or len(along) != 1 or along[0] == len(index) - 1:
        raise ValueError(f"the tile of {tensor} is not rows of it")
    (dimension,) = along
    line = linear(index[dimension], row)
    others = (*index[:dimension], *index[dimension + 1 : -1])
    if line is None or any(Iota(a) in walk(i) for i in others for a in axes):
        raise ValueError(f"rows of {tensor} do not follow each other")
    start, apart = line
    live: Expr = Int(count)
    width, ends = w.constant(t.dims[-1]), Op("<", (Iota(column), t.dims[-1]))
    guards = conjuncts(guard)
    for e in guards:
        if e is not ends:
            live = _limited(live, e, row, column, tensor)
    corner = (*index[:dimension], start, *index[dimension + 1 : -1])
    size = BYTES[t.dtype]
    w.strided.add((tensor, dimension, w.constant(apart)))
    step = f"(unsigned){w.x.names.stride(tensor, dimension)} * {w.constant(apart) * size}"
    offset = w.x.offset(tensor, corner, SCALAR)
    if pages is not None:
        page = _page(w, substitute(found[pages.page], {pages.position: first}), live)
        offset += f" + (long long){page} * {w.x.names.stride(tensor, pages.page)}"
    text = f"resource({w.x.names.pointer(tensor)} + {offset}, {w.x.show(live)}, {step}, {width * size})"
    return Rows(text, step, width * size if ends in guards else None)


def _in_one_page(w: Writer, pages: Pages, row: str, count: int, tensor: str) -> Expr:
    """Position of the first of `count` rows, which is a multiple of as many, and so is the size of a page.  ValueError if not."""
    line = linear(pages.position, row)
    if line is None or line[1] is not Int(1) or pages.size % count or not _multiple(w, line[0], count):
        raise ValueError(f"{count} rows of {tensor} do not lie in one page of {pages.size}")
    return line[0]


def _multiple(w: Writer, e: Expr, n: int) -> bool:
    value = constant(e, dict(w.program.tile))
    match e:
        case _ if value is not None:
            return value % n == 0
        case Op("+", (a, b)):
            return _multiple(w, a, n) and _multiple(w, b, n)
        case Op("*", (a, b)):
            return _multiple(w, a, n) or _multiple(w, b, n)
    return False


def _page(w: Writer, page: Expr, live: Expr) -> str:
    """Text of a page's number."""
    if not isinstance(page, Fetch):
        raise ValueError(f"{page} is no page")
    text = f"looked_up({w.x.names.pointer(page.tensor)} + {w.x.offset(page.tensor, page.index, SCALAR)})"
    return text if isinstance(live, Int) else f"({w.x.text(live, SCALAR).at(4)} > 0 ? {text} : 0)"


def linear(e: Expr, axis: str) -> tuple[Expr, Expr] | None:
    """(value at the axis's first lane, how far lanes are apart) of a value that counts up along it; None for another."""
    if Iota(axis) not in walk(e):
        return e, Int(0)
    match e:
        case Iota():
            return Int(0), Int(1)
        case Op("+", (a, b)):
            x, y = linear(a, axis), linear(b, axis)
            return None if x is None or y is None else (add(x[0], y[0]), add(x[1], y[1]))
        case Op("*", (a, b)):
            x, y = linear(a, axis), linear(b, axis)
            if x is None or y is None or (x[1] is not Int(0) and y[1] is not Int(0)):
                return None
            (many, factor) = (x, y[0]) if y[1] is Int(0) else (y, x[0])
            return mul(many[0], factor), mul(many[1], factor)
    return None


def _limited(live: Expr, e: Expr, row: str, column: str, tensor: str) -> Expr:
    """Rows that are live under one more condition."""
    match e:
        case Op("<" | "<=" as symbol, (a, b)) if Iota(row) in walk(a) and Iota(row) not in walk(b):
            line = linear(a, row)
            if line is not None and isinstance(line[1], Int) and not _reads_lanes(line[0], row, column):
                end = b if symbol == "<" else add(b, 1)
                return minimum(live, floordiv(add(sub(end, line[0]), line[1].value - 1), line[1]))
        case _ if not _reads_lanes(e, row, column) and not any(isinstance(x, Fetch) for x in walk(e)):
            return where(e, live, Int(0))
    raise ValueError(f"`{e}` does not end the rows of {tensor}")


def _reads_lanes(e: Expr, row: str, column: str) -> bool:
    return any(x is Iota(row) or x is Iota(column) for x in walk(e))
