"""Statements over a lane's elements: Compute with reductions, loads element by element, and stores."""

from __future__ import annotations

from functools import partial

from tilec.backends.cpp.expressions import CPP, named
from tilec.backends.hip import copies
from tilec.backends.hip.expressions import ROW, Lanes
from tilec.backends.hip.writer import Writer
from tilec.ir.build import all_of, conjuncts
from tilec.ir.expr import Expr, Fetch, Iota, Op, Read, Reduce, children, walk
from tilec.ir.nodes import Compute, Load, Store

CHUNK = 4  # neighbours that a lane has of an accumulator
JOINED = {"max": "max", "min": "min", "+": "sum"}
STEP = {"max": "__builtin_fmaxf({}, {})", "min": "__builtin_fminf({}, {})", "sum": "{} + {}"}


def compute(w: Writer, s: Compute, depth: int) -> None:
    """Prints a Compute.  Raises ValueError for what lanes cannot do."""
    b = w.x.registers.get(s.dst.buffer)
    if b is None or s.dst.windows or s.during:
        raise ValueError(f"{s.dst.buffer}: a computation fills a whole buffer of registers")
    axes, name = tuple(a.name for a in b.axes), w.x.names.buffer(b.name)
    if axes == (w.x.row,):
        prepare(w, s.value, depth, parts=b.name if in_parts(w, b.name) else "")
        w.line(depth, f"{name} = {w.x.show(s.value, ROW)};")
        return
    prepare(w, s.value, depth)
    found = w.operand(b)
    if found is not None:
        if found.operand != "B" or found.run != 4 or axes[1] != w.x.row:
            raise ValueError(f"{b.name} is no operand that is computed where it is")
        steps, _ = w.shape(b, found)
        pairs = [
            f"pack_{b.dtype}({', '.join(w.x.show(s.value, Lanes('tile', axes[0], f'({CHUNK} * g + {e})')) for e in (n, n + 1))})"
            for n in (0, 2)
        ]
        at = name if s.dst.stage is None else f"{name}[{s.dst.stage}]"
        w.loop(depth, "g", 0, steps)
        w.line(depth + 1, f"{at}[g] = u32x2{{{', '.join(pairs)}}};")
        w.line(depth, "}")
        return
    if s.unless is not None:
        w.line(depth, f"if (any_lane(!{w.x.text(s.unless, ROW).at(100)})) {{")
    inner = depth + (s.unless is not None)
    w.loop(inner, "e", 0, w.count(b))
    to = w.x.register(b.name, s.dst.stage, "e")
    w.line(inner + 1, f"{to} = {w.x.show(s.value, Lanes('tile', axes[0], 'e'))};")
    w.line(inner, "}")
    if s.unless is not None:
        w.line(depth, "}")


def load(w: Writer, s: Load, depth: int) -> None:
    """Prints a Load: of an operand, of blocks, or of what a lane needs, element by element, where it is live."""
    b = w.x.registers.get(s.dst.buffer)
    if b is None:
        raise ValueError(f"{s.dst.buffer}: the hip backend fills shared memory by copies")
    if copies.is_staged(b):
        copies.stage(w, s, depth)
    elif w.operand(b) is not None:
        copies.load_rows(w, s, depth)
    elif s.queue is not None:
        raise ValueError(f"{b.name} is loaded element by element, and not asynchronously")
    else:
        value: Expr = Fetch(s.tensor, s.index)
        if s.where is not None:
            value = Op("where", (s.where, value, s.other))
        compute(w, Compute(s.dst, value), depth)


# ---------------------------------------------------------------------------------------------- reductions


def prepare(w: Writer, value: Expr, depth: int, parts: str = "") -> None:
    """Makes the reductions in `value` printable, and the reads of rows of which lanes hold parts, as values made here: all lanes
    take part in an exchange.  A computation of `parts` keeps to each lane's own."""
    op = _joined(value)
    if op is not None:
        if value not in w.x.reduced:
            w.x.reduced[value] = partial(named, _reduce(w, value, op, depth, across=not parts))
        return
    if isinstance(value, Read) and value.buffer != parts and in_parts(w, value.buffer) and value not in w.x.reduced:
        w.fresh += 1
        name = f"whole_{w.fresh}"
        w.line(depth, f"const float {name} = across_sum<{w.like.n}>({w.x.names.buffer(value.buffer)});")
        w.x.reduced[value] = partial(named, name)
    for x in children(value):
        prepare(w, x, depth, parts)


def _joined(e: Expr) -> str | None:
    """The one reduction that `e` is, of one tile or of several."""
    match e:
        case Reduce(op, _, _):
            return op
        case Op(name, (a, b)) if name in JOINED and _joined(a) == _joined(b) == JOINED[name]:
            return JOINED[name]
    return None


def _reduce(w: Writer, e: Expr, op: str, depth: int, *, across: bool) -> str:
    """Name of the value of the lane's row, or of the lane's part of it."""
    w.fresh += 1
    name, parts = f"reduced_{w.fresh}", [x for x in walk(e) if isinstance(x, Reduce)]
    for n, part in enumerate(parts):
        count, text = _elements(w, part)
        if not n:
            w.line(depth, f"float {name} = {text('0')};")
        w.loop(depth, "e", 0 if n else 1, count)
        w.line(depth + 1, f"{name} = {STEP[op].format(name, text('e'))};")
        w.line(depth, "}")
    if across:
        w.line(depth, f"{name} = across_{op}<{w.like.n}>({name});")
    return name


def _elements(w: Writer, r: Reduce) -> tuple[int, partial[str]]:
    """How many elements of the lane a reduction has, and the text of one."""
    tiles = [x for x in walk(r.x) if isinstance(x, Read) and len(w.x.registers[x.buffer].axes) == 2]
    if not tiles or any(w.x.registers[x.buffer].axes[0].name != r.axis for x in tiles):
        raise ValueError(f"{r} is no reduction of a tile along its rows of registers")
    count = w.count(w.x.registers[tiles[0].buffer])
    return count, partial(_element, w, r)


def _element(w: Writer, r: Reduce, at: str) -> str:
    return w.x.text(r.x, Lanes("tile", r.axis, at)).at(6)


def in_parts(w: Writer, name: str) -> bool:
    """Whether lanes hold parts of a row's value."""
    b = w.x.registers.get(name)
    return b is not None and b.layout is not None and b.layout.kind == "parts"


# ---------------------------------------------------------------------------------------------- to device memory


def store(w: Writer, s: Store, depth: int) -> None:
    """Prints a Store of one value per row, or of rows of features.  Raises ValueError for others."""
    t = w.program.tensor(s.tensor)
    if not s.axes or s.axes[0] != w.x.row:
        raise ValueError(f"the hip backend stores rows of {w.x.row} only")
    prepare(w, s.value, depth)
    if len(s.axes) == 1 and t.dtype == "f32":
        live = f"lane < {w.like.n}" + ("" if s.where is None else f" && {w.x.text(s.where, ROW).at(3)}")
        place = f"{w.x.names.pointer(s.tensor)}[{w.x.offset(s.tensor, s.index, ROW)}]"
        w.line(depth, f"if ({live}) {place} = {w.x.show(s.value, ROW)};")
    elif len(s.axes) == 2 and t.dtype in ("bf16", "f16", "f32"):
        _store_features(w, s, depth)
    else:
        raise ValueError(f"the hip backend does not store {t.dtype} over {', '.join(s.axes)}")


def _store_features(w: Writer, s: Store, depth: int) -> None:
    """Each lane its row, 4 neighbouring features at once."""
    t, (row, column) = w.program.tensor(s.tensor), s.axes
    sizes = {w.size(b, 0) for b in w.x.registers.values() if b.name in w.x.sums and b.axes[0].name == column}
    width = w.constant(t.dims[-1])
    if len(sizes) != 1 or width % CHUNK or width > max(sizes):
        raise ValueError(f"{width} features of {s.tensor} are no multiple of {CHUNK} that lanes hold")
    live = all_of(*(x for x in conjuncts(s.where) if x is not Op("<", (Iota(column), t.dims[-1]))))
    if s.index[-1] is not Iota(column) or any(Iota(column) in walk(e) for e in (*s.index[:-1], live)):
        raise ValueError(f"rows of {s.tensor} are stored whole")
    w.line(depth, f"if ({w.x.show(live, ROW)}) {{")
    head = w.x.offset(s.tensor, s.index[:-1], ROW)
    w.line(depth + 1, f"{CPP[t.dtype]}* to = {w.x.names.pointer(s.tensor)} + {head} + low;")
    w.loop(depth + 1, "g", 0, max(sizes) // (CHUNK * w.like.across))
    values = [w.x.show(s.value, Lanes("tile", column, f"({CHUNK} * g + {e})")) for e in range(CHUNK)]
    if t.dtype == "f32":
        kind, text = "f32x4", f"f32x4{{{', '.join(values)}}}"
    else:
        packed = (f"pack_{t.dtype}({values[n]}, {values[n + 1]})" for n in (0, 2))
        kind, text = "u32x2", f"u32x2{{{', '.join(packed)}}}"
    inside = f"if ({w.x.down(f'{CHUNK} * g')} + low < {width}) " if width < max(sizes) else ""
    w.line(depth + 2, f"{inside}*({kind}*)(to + {w.x.down(f'{CHUNK} * g')}) = {text};")
    w.line(depth + 1, "}")
    w.line(depth, "}")
    assert row == w.x.row
