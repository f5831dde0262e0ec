"""Statements over the lanes of a register tile: Compute, with reductions and what stands in its middle, and Store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilec.backends.cpp.expressions import CPP, named
from tilec.backends.cuda import mma_sync
from tilec.backends.cuda.copies import clear, load_rows
from tilec.backends.cuda.expressions import SCALAR, Lanes
from tilec.backends.cuda.writer import Writer, over_lanes
from tilec.ir.axes import constant
from tilec.ir.build import all_of, conjuncts
from tilec.ir.expr import Expr, Fetch, Iota, Op, Read, Reduce, walk
from tilec.ir.nodes import Buffer, Compute, Load, Stmt, Store

CHUNK = 8  # 16-bit features of 16 bytes: what one lane stores at once
QUAD = 4  # lanes that hold a row
Block = Callable[[tuple[Stmt, ...], int], None]


def compute(w: Writer, s: Compute, depth: int, block: Block) -> None:
    """Prints a Compute; `block` prints the statements in the middle.  Raises ValueError for what fragments cannot do."""
    if s.dst.windows:
        raise ValueError(f"{s.dst.buffer}: a computation fills a whole buffer")
    if s.during and not _is_tile(w, s.dst.buffer):
        raise ValueError(f"{s.dst.buffer}: statements stand in the middle of an accumulator's computation only")
    if s.dst.buffer in w.x.shared:
        (clear if w.x.shared[s.dst.buffer].axes else store_scalar)(w, s, depth)
        return
    b = w.x.registers[s.dst.buffer]
    name, count = w.x.names.buffer(b.name), w.registers(b)
    if isinstance(s.value, Read) and s.value.buffer in w.x.shared and len(b.axes) == 2:
        if w.role.unit == "warp":
            mma_sync.load(w, b, s.value.buffer, s.value.stage, depth)
        else:
            load_rows(w, b.name, s.value.buffer, s.value.stage, depth)
    elif len(b.axes) == 1 and b.axes[0].name == w.row:
        prepare(w, s.value, depth, inline=True, parts=b.name if _in_parts(w, b.name) else "")
        w.loop(depth, "i", 0, count)
        at = Lanes("rows", b.axes[0].name, at="i")
        exchanged(w, s.value, at, depth + 1)
        w.line(depth + 1, f"{name}[i] = {w.x.show(s.value, at)};")
        w.line(depth, "}")
    elif over_lanes(b):
        vector(w, b, s.value, depth)
    elif len(b.axes) == 1:
        w.loop(depth, "x", 0, count)
        w.line(depth + 1, f"{name}[x] = {w.x.show(s.value, Lanes('columns', column=b.axes[0].name, at='x'))};")
        w.line(depth, "}")
    elif w.holds(b) != "unsigned":
        prepare(w, s.value, depth, inline=False)
        if s.unless is None:
            tile(w, s, depth, block)
        else:
            w.line(depth, f"if (any_lane(!({unless(w, s.unless)}))) {{")
            tile(w, s, depth + 1, block)
            w.line(depth, "}")
    else:
        prepare(w, s.value, depth, inline=False)
        low, high = (w.x.show(s.value, lanes(b, at)) for at in ("2 * a", "2 * a + 1"))
        w.loop(depth, "a", 0, count)
        w.line(depth + 1, f"{name}[a] = pack_{b.dtype}({low}, {high});")
        w.line(depth, "}")


def vector(w: Writer, b: Buffer, value: Expr, depth: int) -> None:
    """A vector over the lanes of each warp, each of which has its own elements."""
    text = w.x.show(value, Lanes("lanes", column=b.axes[0].name, at="x"))
    size = w.size(b, 0)
    w.loop(depth, "x", 0, w.registers(b))
    if size % 32:
        text = f"lane + 32 * x < {size} ? {text} : 0"
    w.line(depth + 1, f"{w.x.names.buffer(b.name)}[x] = {text};")
    w.line(depth, "}")


def passed_on(w: Writer, value: Expr, c: str, depth: int) -> None:
    """What lanes pass on of vectors that lie over them, for the elements of `value` in column `c`, less the thread's first."""
    for r in dict.fromkeys(x for x in walk(value) if isinstance(x, Read) and x not in w.x.reduced):
        b = w.x.registers.get(r.buffer)
        if b is not None and over_lanes(b):
            w.fresh += 1
            name, type_ = f"passed_{w.fresh}", w.holds(b)
            w.line(depth, f"const {type_} {name} = from_lanes({w.x.names.buffer(b.name)}, {c}, col0);")
            w.x.reduced[r] = partial(named, name)


def reads_lanes(w: Writer, value: Expr) -> bool:
    """Whether a value reads a vector that lies over the lanes of each warp."""
    found = (w.x.registers.get(x.buffer) for x in walk(value) if isinstance(x, Read))
    return any(b is not None and over_lanes(b) for b in found)


def unless(w: Writer, e: Expr) -> str:
    """Whether `e` holds for all rows of a thread.  Raises ValueError for what is no condition of whole rows."""
    if any(isinstance(x, Read) and _in_parts(w, x.buffer) for x in walk(e)):
        raise ValueError(f"`unless {e}` reads a row that lanes hold parts of")
    rows = [w.x.text(e, Lanes("rows", w.row or "", at=str(i))).at(3) for i in range(w.rows)]
    return " && ".join(rows)


def load(w: Writer, s: Load, depth: int) -> None:
    """Prints a Load into registers: each thread reads the elements that it holds, where they are live."""
    if s.dst.buffer not in w.x.registers:
        raise ValueError(f"{s.dst.buffer}: the cuda backend fills shared memory by copies")
    value: Expr = Fetch(s.tensor, s.index)
    if s.where is not None:
        value = Op("where", (s.where, value, s.other))
    compute(w, Compute(s.dst, value), depth, lambda _, __: None)


def lanes(b: Buffer, at: str) -> Lanes:
    """Register `at` of a tile like `b`."""
    return Lanes("tile", b.axes[0].name, b.axes[1].name, at)


def _is_tile(w: Writer, name: str) -> bool:
    b = w.x.registers.get(name)
    return b is not None and len(b.axes) == 2 and b.dtype == "f32"


def tile(w: Writer, s: Compute, depth: int, block: Block) -> None:
    """All of an accumulator; with statements after some of its (row, 8 columns) groups, row 0 of the thread before row 1."""
    b = w.x.registers[s.dst.buffer]
    name, count = w.x.names.buffer(b.name), w.registers(b)
    if not s.during:
        elements(w, b, name, s.value, depth)
        return
    groups = count // 2
    if not 0 <= s.after <= s.of or not s.of or groups * s.after % s.of:
        raise ValueError(f"{b.name} has {groups} groups of elements: {s.after} of {s.of} is no whole number of them")
    before = groups * s.after // s.of
    if before:
        _groups(w, depth, s, 0, before)
        per_row = groups // 2
        sums = [f"row_sum<{n}>({name}, {i})" for i, n in ((0, min(before, per_row)), (1, before - per_row)) if n > 0]
        w.line(depth, f"pin({' + '.join(sums)}, smem + scratch);")
    block(s.during, depth)
    if before < groups:
        _groups(w, depth, s, before, groups)


def elements(w: Writer, b: Buffer, name: str, value: Expr, depth: int) -> None:
    """`name[e] = value` for the registers of a tile like `b`; column by column where lanes pass on what is needed of one."""
    made = dict(w.x.reduced)
    if not reads_lanes(w, value):
        w.loop(depth, "e", 0, w.registers(b))
        w.line(depth + 1, f"{name}[e] = {w.x.show(value, lanes(b, 'e'))};")
    else:
        w.loop(depth, "x", 0, w.registers(b) // w.rows)
        passed_on(w, value, "x / 2 * 8 + x % 2", depth + 1)
        w.loop(depth + 1, "i", 0, w.rows)
        w.line(depth + 2, f"const int e = x / 2 * {2 * w.rows} + 2 * i + x % 2;")
        w.line(depth + 2, f"{name}[e] = {w.x.show(value, lanes(b, 'e'))};")
        w.line(depth + 1, "}")
    w.line(depth, "}")
    w.x.reduced = made


def _groups(w: Writer, depth: int, s: Compute, first: int, last: int) -> None:
    b, made = w.x.registers[s.dst.buffer], dict(w.x.reduced)
    w.loop(depth, "x", 2 * first, 2 * last)
    w.line(depth + 1, f"const int e = by_rows<{w.registers(b)}>(x);")
    passed_on(w, s.value, w.x.of("column", "e"), depth + 1)
    w.line(depth + 1, f"{w.x.names.buffer(b.name)}[e] = {w.x.show(s.value, lanes(b, 'e'))};")
    w.line(depth, "}")
    w.x.reduced = made


def prepare(w: Writer, value: Expr, depth: int, *, inline: bool, parts: str = "") -> None:
    """Makes the reductions in `value` printable, and the reads of rows in parts: `inline` per row, else as values of both rows
    made here.  A computation of `parts` keeps to each lane's own."""
    for r in walk(value):
        if r in w.x.reduced:
            continue
        if isinstance(r, Reduce):
            text = _reduction(w, r, depth, "" if parts else f"quad_{r.op}")
        elif isinstance(r, Read) and r.buffer != parts and _in_parts(w, r.buffer):
            text = partial(_whole, w.x.names.buffer(r.buffer))
        else:
            continue
        if inline:
            w.x.reduced[r] = text
            continue
        w.fresh += 1
        made = f"reduced_{w.fresh}"
        values = ", ".join(text(replace(SCALAR, at=str(i))) for i in range(w.rows))
        w.line(depth, f"const float {made}[{w.rows}] = {{{values}}};")
        w.x.reduced[r] = partial(_made, w, made)


def _in_parts(w: Writer, name: str) -> bool:
    b = w.x.registers.get(name)
    return b is not None and b.layout is not None and b.layout.kind == "parts"


def _reduction(w: Writer, r: Reduce, depth: int, over_quad: str) -> Callable[[Lanes], str]:
    """The thread's part of a row, or the row's value by `over_quad`."""
    source = _source(w, r, depth)
    if r.chains not in (0, 2) or (r.chains and r.op == "max"):
        raise ValueError(f"the cuda backend has no {r.op} in {r.chains} chains")
    rows = [] if w.rows == 2 else [w.rows]
    given = [*([source.count // (2 * w.rows)] if r.op == "sum" else []), *rows]
    groups = f"<{', '.join(map(str, given))}>" if given else ""
    own = f"row_{r.op}{'_in_two' if r.chains else ''}{groups}({source.name}, "
    return lambda at: f"{over_quad}({own}{at.at}))" if over_quad else f"{own}{at.at})"


def _whole(name: str, at: Lanes) -> str:
    """The value of a row that lanes hold parts of."""
    return f"quad_sum({name}[{at.at}])"


def _made(w: Writer, name: str, at: Lanes) -> str:
    """The value of a row that `prepare` computed."""
    return f"{name}[{w.x.of('row', at.at)}]"


def exchanged(w: Writer, value: Expr, at: Lanes, depth: int) -> None:
    """What lanes of a quad exchange for `value`, in front of it where not every lane evaluates all of it: all must take part."""
    if not any(isinstance(x, Op) and x.name in ("where", "and", "or") for x in walk(value)):
        return
    for r in dict.fromkeys(x for x in walk(value) if x in w.x.reduced):
        w.fresh += 1
        name = f"reduced_{w.fresh}"
        w.line(depth, f"const float {name} = {w.x.reduced[r](at)};")
        w.x.reduced[r] = partial(named, name)


class _Source:
    """An accumulator by its C++ name, and its registers."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count


def _source(w: Writer, r: Reduce, depth: int) -> _Source:
    """The tile that a reduction reads; what is no whole tile is computed into one first."""
    tiles = [b for b in w.x.registers.values() if _is_tile(w, b.name) and b.axes[1].name == r.axis]
    if not tiles:
        raise ValueError(f"there is no accumulator along {r.axis} to reduce")
    if isinstance(r.x, Read) and any(b.name == r.x.buffer for b in tiles):
        return _Source(w.x.names.buffer(r.x.buffer), w.registers(w.x.registers[r.x.buffer]))
    count = w.registers(tiles[0])
    w.fresh += 1
    name = f"operand_{w.fresh}"
    w.line(depth, f"float {name}[{count}];")
    elements(w, tiles[0], name, r.x, depth)
    return _Source(name, count)


def store_scalar(w: Writer, s: Compute, depth: int) -> None:
    """One integer to shared memory, by the instance's first thread."""
    b = w.x.shared[s.dst.buffer]
    if b.dtype != "i32":
        raise ValueError(f"{b.name}: scalars of shared memory are integers")
    thread = "lane == 0" if w.role.unit == "warp" else "threadIdx.x % 128 == 0"
    w.line(depth, f"if ({thread}) store_int({w.x.address(b.name, s.dst.stage)}, {w.x.show(s.value)});")


# ---------------------------------------------------------------------------------------------- to device memory


def store(w: Writer, s: Store, depth: int) -> None:
    """Prints a Store of one value per row, or of rows of features.  Raises ValueError for others."""
    t = w.kernel.program.tensor(s.tensor)
    if not s.axes or s.axes[0] != w.row:
        raise ValueError(f"the cuda backend stores rows of {w.row} only")
    if len(s.axes) == 1 and t.dtype == "f32":
        store_rows(w, s, depth)
    elif len(s.axes) == 2 and t.dtype in ("bf16", "f16", "f32"):
        store_features(w, s, depth)
    else:
        raise ValueError(f"the cuda backend does not store {t.dtype} over {', '.join(s.axes)}")


def store_rows(w: Writer, s: Store, depth: int) -> None:
    """One lane of each quad writes."""
    prepare(w, s.value, depth, inline=True)
    at = Lanes("rows", s.axes[0], at="i")
    live = "lane % 4 == 0" if s.where is None else f"lane % 4 == 0 && {w.x.text(s.where, at).at(3)}"
    place = f"{w.x.names.pointer(s.tensor)}[{w.x.offset(s.tensor, s.index, at)}]"
    w.loop(depth, "i", 0, w.rows)
    exchanged(w, s.value, at, depth + 1)
    w.line(depth + 1, f"const {CPP['f32']} value = {w.x.show(s.value, at)};")
    w.line(depth + 1, f"if ({live}) {place} = value;")
    w.line(depth, "}")


def store_features(w: Writer, s: Store, depth: int) -> None:
    """Rows of an accumulator: of f32 each lane writes the two neighbours that it has, so that a quad fills 32 bytes; of 16 bits
    four lanes exchange, so that each writes 16 bytes at a time."""
    t = w.kernel.program.tensor(s.tensor)
    row, column = s.axes
    b = next((b for b in w.x.registers.values() if _is_tile(w, b.name) and b.axes[1].name == column), None)
    if b is None:
        raise ValueError(f"features of {s.tensor} are stored from an accumulator")
    width = constant(t.dims[-1], w.x.constants)
    if width is None or width % CHUNK or not width <= w.size(b, 1):
        raise ValueError(f"{s.tensor} has {t.dims[-1]} features, which are no multiple of {CHUNK} that {b.name} holds")
    live = all_of(*(x for x in conjuncts(s.where) if x is not Op("<", (Iota(column), t.dims[-1]))))
    if s.index[-1] is not Iota(column) or any(Iota(column) in walk(e) for e in (*s.index[:-1], live)):
        raise ValueError(f"rows of {s.tensor} are stored whole")
    prepare(w, s.value, depth, inline=False)
    at = Lanes("rows", row, at="i")
    w.loop(depth, "i", 0, w.rows)
    head = w.x.offset(s.tensor, s.index[:-1], at)
    own = 2 if t.dtype == "f32" else CHUNK
    w.line(depth + 1, f"{CPP[t.dtype]}* to = {w.x.names.pointer(s.tensor)} + {head} + lane % 4 * {own};")
    w.line(depth + 1, f"const bool live = {w.x.show(live, at)};")
    low, high = (w.x.show(s.value, lanes(b, e)) for e in ("e", "e + 1"))
    if t.dtype == "f32":
        w.loop(depth + 1, "g", 0, width // CHUNK)
        w.line(depth + 2, f"const int e = {2 * w.rows} * g + 2 * i;")
        w.line(depth + 2, f"if (live) store_8(to + {CHUNK} * g, {low}, {high});")
        w.line(depth + 1, "}")
        w.line(depth, "}")
        return
    value, stored = f"pack_{t.dtype}({low}, {high})", "live"
    if width % (QUAD * CHUNK):
        value, stored = f"e < {width * w.rows // 4} ? {value} : 0u", f"live && 32 * g + lane % 4 * 8 < {width}"
    w.loop(depth + 1, "g", 0, -(-width // (QUAD * CHUNK)))
    w.line(depth + 2, "unsigned v[4];")
    w.loop(depth + 2, "y", 0, QUAD)
    w.line(depth + 3, f"const int e = {8 * w.rows} * g + {2 * w.rows} * y + 2 * i;")
    w.line(depth + 3, f"v[y] = {value};")
    w.line(depth + 2, "}")
    w.line(depth + 2, "quad_transpose(v);")
    w.line(depth + 2, f"if ({stored}) store_16(to + 32 * g, v);")
    w.line(depth + 1, "}")
    w.line(depth, "}")
