"""Tiles on their way: from memory to shared memory, with and without registers between, and from there to operands.

Addresses in shared memory are a part that belongs to the lane, in which a constant of each register is exchanged by `^`, and
constants; see `ir.fragments` for where elements lie.
"""

from __future__ import annotations

from tilec.backends.hip.expressions import SCALAR
from tilec.backends.hip.rows import rows
from tilec.backends.hip.writer import Writer
from tilec.ir.attention import BYTES
from tilec.ir.expr import Int
from tilec.ir.fragments import WAVE, Exchange, Fragment
from tilec.ir.nodes import Buffer, Copy, Load, Move

LINE = 256  # bytes of one asynchronous copy: 4 to each lane
BLOCK = 4


def key(row: str, lie: Exchange) -> str:
    """What the units of a row are exchanged by, as text; `row` binds like a product."""
    up = row if lie.step == 1 else f"{row} / {lie.step}"
    low = f"{up} % {lie.rows}"
    return low if lie.fold == 1 else f"({low} ^ {up} / {lie.rows} % {lie.fold})"


def split_key(lie: Exchange, a: int, b: int) -> None:
    """ValueError unless rows `a * x` and less than `b` more exchange by what both do together."""
    for x in range(2 * lie.rows * lie.fold * lie.step // a + 1):
        for y in range(b):
            if lie.key(a * x + y) != lie.key(a * x) ^ lie.key(y):
                raise ValueError(f"units of rows {a} apart are not exchanged alike")


# ---------------------------------------------------------------------------------------------- keys


def copy(w: Writer, s: Copy, depth: int) -> None:
    """Prints a Copy of a window of rows, 256 bytes at a time.  Raises ValueError for others."""
    b, lie, width = w.exchanged(s.dst.buffer)
    start, count = w.window(s.dst, b, 0)
    row, column = (a.name for a in b.axes)
    if s.queue is None or lie.unit != 16 or lie.fold != 1 or count * width % LINE or width % (16 * lie.rows):
        raise ValueError(f"{b.name} is not filled by lines of {LINE} bytes")
    source = rows(w, s.tensor, s.index, s.where, (row, column), count)
    base = w.x.names.lane(f"{b.name}_copy")
    first = w.x.text(start, SCALAR).at(7)
    w.line(depth, "{")
    w.line(depth + 1, f"const i32x4 from = settled({source.resource});")
    w.line(depth + 1, f"const unsigned step = {source.step}, to = {w.base(s.dst)} + {first} * {width};")
    period = lie.rows * lie.step
    if LINE % width == 0:
        each = LINE // width  # rows of a line
        lanes = WAVE // each
        split_key(lie, each, each)
        unit = f"lane % {lanes} / 4" if each > 1 else "lane / 4"
        turned = f" ^ {key(f'lane / {lanes}', lie)}" if each > 1 else ""
        column = f"{base} ^ {key(f'i * {each}', lie)} * 16"
        down = f"{f'(i * {each} + lane / {lanes})' if each > 1 else 'i'} * step"
    elif width % LINE == 0:
        parts = width // LINE  # lines of a row
        unit, turned = "lane / 4", ""
        column = f"({base} ^ {key(f'i / {parts}', lie)} * 16) + i % {parts} * {LINE}"
        down = f"i / {parts} * step"
    else:
        place = f"({LINE} * i + 4 * lane)"
        row = f"{place} / {width}" if start is Int(0) or not count % period else f"({first} + {place} / {width})"
        column = f"({place} % {width} / 16 ^ {key(row, lie)}) * 16 + lane % 4 * 4"
        down, unit, turned, base = f"{place} / {width} * step", "", "", ""
    if base and count % period and start is not Int(0):
        split_key(lie, count, count)
        turned += f" ^ {key(f'({first})', lie)}"
    if base:
        w.bases[base] = f"({unit}{turned}) * 16 + lane % 4 * 4"
        w.recompute(depth + 1, base)
    w.loop(depth + 1, "i", 0, count * width // LINE)
    w.line(depth + 2, f"copy_lines(to + {LINE} * i, from, {source.inside(f'({column})')} + {down});")
    w.line(depth + 1, "}")
    w.line(depth, "}")


# ---------------------------------------------------------------------------------------------- values


def stage(w: Writer, s: Load, depth: int) -> None:
    """Prints a Load into blocks of 4 x 4."""
    b = w.x.registers[s.dst.buffer]
    count, features = w.size(b, 0), w.size(b, 1)
    row, column = (a.name for a in b.axes)
    if BYTES[b.dtype] != 2 or count % BLOCK or features % BLOCK or s.dst.windows:
        raise ValueError(f"{b.name} is no tile of blocks of {BLOCK} x {BLOCK} values of 16 bits")
    source = rows(w, s.tensor, s.index, s.where, (row, column), count)
    base, wide = w.x.names.lane(f"{s.tensor}_load"), features // BLOCK
    w.bases[base] = f"lane / {wide} * {BLOCK} * {source.step} + {source.inside(f'lane % {wide} * {2 * BLOCK}')}"
    w.line(depth, "{")
    w.line(depth + 1, f"const i32x4 from = {source.resource};")
    w.line(depth + 1, f"const unsigned step = {source.step};")
    at = f"{base} + i * step"
    if WAVE % wide == 0:
        w.recompute(depth + 1, base)
        more = f" + {WAVE // wide * BLOCK} * t * step" if w.blocks(b) > 1 else ""
        at += more
    else:
        block = f"(lane + {WAVE} * t)"
        at = f"({block} / {wide} * {BLOCK} + i) * step + {source.inside(f'{block} % {wide} * {2 * BLOCK}')}"
        del w.bases[base]
    w.loop(depth + 1, "t", 0, w.blocks(b))
    w.loop(depth + 2, "i", 0, BLOCK)
    w.line(depth + 3, f"{w.x.names.buffer(b.name)}[t][i] = load_8(from, {at});")
    w.line(depth + 2, "}")
    w.line(depth + 1, "}")
    w.line(depth, "}")


def turn(w: Writer, s: Move, depth: int) -> None:
    """Prints a Move of blocks to shared memory, columns first."""
    from_, (b, lie, width) = w.x.registers[s.src.buffer], w.exchanged(s.dst.buffer)
    start, count = w.window(s.dst, b, 1)
    features = w.size(b, 0)
    held = from_.layout is not None and from_.layout.kind == "blocks"
    if not held or lie.unit != 2 * BLOCK or count != w.size(from_, 0) or s.src.windows or s.dst.buffer == s.src.buffer:
        raise ValueError(f"{b.name} is not filled from blocks of {BLOCK} x {BLOCK}")
    wide, total = features // BLOCK, features * count // BLOCK**2
    split_key(lie, BLOCK, BLOCK)
    first = w.x.text(start, SCALAR).at(7)
    w.line(depth, "{")
    for t in range(w.blocks(from_)):
        block = f"(lane + {WAVE * t})" if t else "lane"
        at, column = w.x.names.lane(f"{b.name}_store{t or ''}"), f"{block} % {wide}"
        unit = f"({first} / {BLOCK} + {block} / {wide})"
        w.bases[at] = f"{column} * {BLOCK * width} + ({unit} ^ {key(f'({column} * {BLOCK})', lie)}) * {lie.unit}"
        w.recompute(depth + 1, at)
        inner = depth + 1
        if WAVE * (t + 1) > total:
            w.line(inner, f"if ({block} < {total}) {{")
            inner += 1
        w.loop(inner, "i", 0, BLOCK)
        turned = f"{at} ^ {key('i', lie)} * {lie.unit}"
        value = f"column_of({w.x.names.buffer(from_.name)}[{t}], i)"
        w.line(inner + 1, f"write_8(lds + {w.base(s.dst)} + ({turned}) + i * {width}, {value});")
        w.line(inner, "}")
        if inner > depth + 1:
            w.line(depth + 1, "}")
    w.line(depth, "}")


# ---------------------------------------------------------------------------------------------- operands


def fetch(w: Writer, s: Move, depth: int) -> None:
    """Prints a Move from shared memory into a left operand.  Raises ValueError for other tiles."""
    to, (b, lie, width) = w.x.registers[s.dst.buffer], w.exchanged(s.src.buffer)
    found = w.operand(to)
    same = [a.name for a in to.axes] == [a.name for a in b.axes]
    if found is None or found.operand != "A" or not same or lie.unit != 2 * found.run:
        raise ValueError(f"{to.name} is no left operand whose runs are units of {b.name}")
    (row, count), (along, depth_) = ((w.constant(x), n) for x, n in (w.window(s.src, b, n) for n in (0, 1)))
    deep = found.run * found.across
    if row % found.n or count % found.n or along % deep or depth_ % deep:
        raise ValueError(f"a window of {b.name} is no whole instructions' operand")
    w.shape(to, found)
    at = w.x.names.lane(f"{b.name}_read")
    w.bases[at] = f"lane % {found.n} * {width} + (lane / {found.n} ^ {key(f'(lane % {found.n})', lie)}) * {lie.unit}"
    read = "read_16" if found.run == 8 else "read_8"
    w.line(depth, "{")
    w.recompute(depth + 1, at)
    w.loop(depth + 1, *_outer(found, row, count, along, depth_))
    w.loop(depth + 2, *_inner(found, row, count, along, depth_))
    place = f"{w.base(s.src)} + {_turned(at, found, lie, width)} + t * {found.n * width}"
    w.line(depth + 3, f"{w.x.names.buffer(to.name)}[t][s] = {read}(lds + {place});")
    w.line(depth + 2, "}")
    w.line(depth + 1, "}")
    w.line(depth, "}")


def _outer(found: Fragment, row: int, count: int, along: int, depth: int) -> tuple[str, int, int]:
    """The outer loop of the order in which products take an operand: keys row by row, values step by step."""
    if found.run == 8:
        return "t", row // found.n, (row + count) // found.n
    return "s", along // (found.run * found.across), (along + depth) // (found.run * found.across)


def _inner(found: Fragment, row: int, count: int, along: int, depth: int) -> tuple[str, int, int]:
    if found.run == 8:
        return "s", along // (found.run * found.across), (along + depth) // (found.run * found.across)
    return "t", row // found.n, (row + count) // found.n


def _turned(at: str, found: Fragment, lie: Exchange, width: int) -> str:
    """A lane's part of an address for rows of instruction t at step s: units that keys do not exchange are added."""
    split_key(lie, found.n, found.n)
    turn = lie.rows * lie.unit
    if width % turn or turn % (found.across * lie.unit):
        raise ValueError(f"rows of {width} bytes are no whole turns of {lie.rows} units, {found.across} at once")
    above = found.n // lie.step // lie.rows
    if any(lie.key(found.n * t) != above * t % lie.fold for t in range(16)):
        raise ValueError(f"rows {found.n} apart are not exchanged alike")
    units = f"s * {found.across * lie.unit} % {turn}"
    if lie.fold > 1 and above % lie.fold:
        units = f"({units} ^ t * {above} % {lie.fold} * {lie.unit})"
    added = f" + s / {turn // (found.across * lie.unit)} * {turn}" if width > turn else ""
    return f"({at} ^ {units}){added}"


def load_rows(w: Writer, s: Load, depth: int) -> None:
    """Prints a Load of a right operand: each lane its row, 16 bytes at once."""
    b = w.x.registers[s.dst.buffer]
    found = w.operand(b)
    if found is None or found.operand != "B" or found.run != 8 or b.axes[0].name != w.x.row or s.dst.windows:
        raise ValueError(f"{b.name} is no right operand with runs of 8")
    steps, _ = w.shape(b, found)
    row, column = (a.name for a in b.axes)
    source = rows(w, s.tensor, s.index, s.where, (row, column), found.n)
    w.line(depth, "{")
    w.line(depth + 1, f"const i32x4 from = {source.resource};")
    w.line(depth + 1, f"const unsigned row = own * {source.step}, at = lane / {found.n} * 16;")
    w.loop(depth + 1, "s", 0, steps)
    column = source.inside(f"at + {16 * found.across} * s")
    w.line(depth + 2, f"{w.x.names.buffer(b.name)}[s] = load_16(from, row + {column});")
    w.line(depth + 1, "}")
    w.line(depth, "}")


def move(w: Writer, s: Move, depth: int) -> None:
    """Prints a Move.  Raises ValueError for one that is not between registers and shared memory."""
    if s.src.buffer in w.x.shared and s.dst.buffer in w.x.registers:
        fetch(w, s, depth)
    elif s.dst.buffer in w.x.shared and s.src.buffer in w.x.registers:
        turn(w, s, depth)
    else:
        raise ValueError(f"{s.dst.buffer} = {s.src.buffer} is not between registers and shared memory")


def is_staged(b: Buffer) -> bool:
    """Whether a register tile is blocks."""
    return b.layout is not None and b.layout.kind == "blocks"
