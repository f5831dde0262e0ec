"""Matrix products of a warp: `mma.sync` of 16 x 8 over 16, operands from shared memory by `ldmatrix`.

The left operand is an A fragment in registers or a shared tile of the warp's rows; the right one a shared tile, either of rows
that become columns (`Q . K`: contracted along its columns) or of contracted rows (`P . V`), read transposed.  A warp of 32
rows uses each fragment of the right operand twice.
"""

from __future__ import annotations

from tilec.backends.cuda.cp_async import UNIT, Panels, panels
from tilec.backends.cuda.writer import Writer
from tilec.ir.expr import Expr
from tilec.ir.nodes import Buffer, Mma

K = 16  # contracted by one instruction
TILE = 16  # its rows
PAIR = 16  # columns of two of them, whose right operands one ldmatrix brings
LANE = "lane % 16, lane / 16"  # row and unit of a lane's part of four matrices: 16 rows, then the same of the next unit
COLUMNS = "lane % 8 + lane / 16 * 8, lane / 8 % 2"  # 8 rows, the same of the next unit, then 8 more


def mma(w: Writer, s: Mma, depth: int) -> None:
    """Prints a Mma.  Raises ValueError for operands that `mma.sync` does not take."""
    if s.queue is not None or s.dst.windows or s.a.windows or s.b.windows:
        raise ValueError(f"{s.dst.buffer}: warps multiply whole tiles, and wait for each product")
    dst, b = w.x.registers[s.dst.buffer], w.x.shared.get(s.b.buffer)
    if b is None:
        raise ValueError(f"the right operand {s.b.buffer} of a product must lie in shared memory")
    lie = panels(w, b)
    wide = dst.axes[1].name
    transposed = b.axes[1].name == wide
    contracted, columns = (w.size(b, 0), w.size(b, 1)) if transposed else (w.size(b, 1), w.size(b, 0))
    if wide not in (a.name for a in b.axes) or columns != w.size(dst, 1) or contracted % K or columns % PAIR:
        raise ValueError(f"{s.b.buffer} does not fit a product that makes {s.dst.buffer}")
    d, count = w.x.names.buffer(dst.name), w.registers(dst)
    tiles = w.rows // 2
    w.line(depth, "{")
    inner = depth + 1
    lanes = LANE if transposed else COLUMNS
    w.line(inner, f"const unsigned right = {w.x.address(b.name, s.b.stage)} + unit_at<{lie.units}>({lanes});")
    left = w.x.shared.get(s.a.buffer)
    if left is not None:
        base = f"{w.x.address(left.name, s.a.stage)} + unit_at<{panels(w, left).units}>({LANE})"
        w.line(inner, f"const unsigned left = {base};")
    if not s.accumulate:
        w.loop(inner, "e", 0, count)
        w.line(inner + 1, f"{d}[e] = 0.0f;")
        w.line(inner, "}")
    w.loop(inner, "s", 0, contracted // K)
    inner += 1
    w.line(inner, f"unsigned a[{tiles}][4];")
    w.loop(inner, "i", 0, tiles)
    for text in _left(w, s, left, contracted, dst):
        w.line(inner + 1, text)
    w.line(inner, "}")
    w.loop(inner, "g", 0, columns // PAIR)
    load, units, rows = ("load_transposed", "g", "s") if transposed else ("load_matrices", "s", "g")
    w.line(inner + 1, "unsigned v[4];")
    w.line(inner + 1, f"{load}(v, {address('right', lie, units, rows)});")
    w.loop(inner + 1, "i", 0, tiles)
    block = 2 * w.rows  # registers of eight columns
    for n in range(2):
        to = f"{d} + {2 * block} * g{f' + {block}' if n else ''} + 4 * i"
        w.line(inner + 2, f"mma_{b.dtype}({to}, a[i], v[{2 * n}], v[{2 * n + 1}]);")
    w.line(inner + 1, "}")
    w.line(inner, "}")
    w.line(inner - 1, "}")
    w.line(depth, "}")


def address(base: str, lie: Panels, unit: str, row: str) -> str:
    """Of a lane's part of two units from number 2 `unit`, 16 rows from number 16 `row` on."""
    per_panel = lie.units // 2
    moved = f"({base} ^ {unit} % {per_panel} * {2 * UNIT})" if per_panel > 1 else base
    panel = f"{unit} / {per_panel}" if per_panel > 1 else unit
    return f"{moved} + {panel} * {lie.size} + {row} * {TILE * lie.units * UNIT}"


def _left(w: Writer, s: Mma, tile: Buffer | None, contracted: int, dst: Buffer) -> list[str]:
    """Fills a[i] for step s."""
    if tile is not None:
        lie = panels(w, tile)
        if w.size(tile, 0) != w.size(dst, 0) or w.size(tile, 1) != contracted:
            raise ValueError(f"{s.a.buffer} does not fit a product with {s.b.buffer}")
        return [f"load_matrices(a[i], {address('left', lie, 's', 'i')});"]
    held = w.x.registers[s.a.buffer]
    if w.holds(held) != "unsigned" or w.registers(held) * 8 != contracted * w.rows:
        raise ValueError(f"{s.a.buffer} does not fit a product with {s.b.buffer}")
    return [
        f"a[i][{2 * half + row}] = {w.x.names.buffer(held.name)}[{2 * w.rows} * s + {w.rows * half + row} + 2 * i];"
        for half in range(2)
        for row in range(2)
    ]


def load(w: Writer, dst: Buffer, source: str, stage: Expr | None, depth: int) -> None:
    """A fragments of a whole shared tile of the warp's rows."""
    tile = w.x.shared[source]
    lie = panels(w, tile)
    if w.holds(dst) != "unsigned" or (w.size(dst, 0), w.size(dst, 1)) != (w.size(tile, 0), w.size(tile, 1)):
        raise ValueError(f"{dst.name} is not the fragment of a stage of {source}")
    name = w.x.names.buffer(dst.name)
    w.line(depth, "{")
    w.line(depth + 1, f"const unsigned left = {w.x.address(source, stage)} + unit_at<{lie.units}>({LANE});")
    w.loop(depth + 1, "s", 0, w.size(tile, 1) // K)
    w.loop(depth + 2, "i", 0, w.rows // 2)
    w.line(depth + 3, "unsigned a[4];")
    w.line(depth + 3, f"load_matrices(a, {address('left', lie, 's', 'i')});")
    for half in range(2):
        for row in range(2):
            to = f"{name}[{2 * w.rows} * s + {w.rows * half + row} + 2 * i]"
            w.line(depth + 3, f"{to} = a[{2 * half + row}];")
    w.line(depth + 2, "}")
    w.line(depth + 1, "}")
    w.line(depth, "}")
