"""Matrix products: warpgroup-wide `wgmma` of 64 rows.

The left operand is an A fragment in registers or a shared tile whose rows are the destination's; the right one a shared
tile, either of rows that become columns (`Q . K`: contracted along its columns) or of contracted rows (`P . V`), read
transposed.  One statement is one group of its queue.
"""

from __future__ import annotations

from tilec.backends.cuda.copies import PANEL, panelled
from tilec.backends.cuda.expressions import SCALAR
from tilec.backends.cuda.products import product
from tilec.backends.cuda.writer import Writer
from tilec.ir.nodes import Await, Mma

K = 16  # contracted by one instruction
ROW = 128  # bytes of a panel's row
UNUSED = 16  # what the panel distance is where the hardware ignores it
DEPTH = K * 2 // 16  # what the descriptor counts along the contracted columns, 16 bytes each


def mma(w: Writer, s: Mma, depth: int) -> None:
    """Prints an asynchronous Mma.  Raises ValueError for operands that `wgmma` does not take."""
    if s.queue is None or w.role.unit != "warpgroup":
        raise ValueError(f"{s.dst.buffer}: the cuda backend multiplies in warpgroups, asynchronously")
    if s.dst.windows or s.b.windows or s.dst.buffer not in w.x.registers:
        raise ValueError(f"a product fills a whole fragment: {s.dst.buffer}")
    dst, b = w.x.registers[s.dst.buffer], w.x.shared.get(s.b.buffer)
    if b is None or w.registers(dst) < 4:
        raise ValueError(f"the right operand {s.b.buffer} of a product must lie in shared memory")
    panelled(w, s.b.buffer)
    rows, columns = w.size(b, 0), w.size(b, 1)
    wide = dst.axes[1].name
    transposed = b.axes[1].name == wide
    contracted, n = (rows, columns) if transposed else (columns, rows)
    if wide not in (a.name for a in b.axes) or n != w.size(dst, 1) or contracted % K:
        raise ValueError(f"{s.b.buffer} does not fit a product that makes {s.dst.buffer}")

    d, in_registers = w.x.names.buffer(s.dst.buffer), s.a.buffer in w.x.registers
    name = f"product_{n}_{'registers' if in_registers else 'shared'}{'_transposed' if transposed else ''}_{b.dtype}"
    w.kernel.products[name] = product(name, n, b.dtype, in_registers, transposed)
    panel = rows * ROW
    right = w.x.address(s.b.buffer, s.b.stage)
    w.line(depth, "{")
    if in_registers:
        left = w.x.registers[s.a.buffer]
        if left.dtype != b.dtype or w.registers(left) * 4 != contracted:
            raise ValueError(f"{s.a.buffer} does not fit a product with {s.b.buffer}")
        a = f"{w.x.names.buffer(s.a.buffer)} + 4 * s"
    else:
        w.line(depth + 1, f"const unsigned long long a = descriptor({_left(w, s, contracted)}, {UNUSED});")
        a = f"a + {_along_columns(w.size(w.x.shared[s.a.buffer], 0) * ROW)}"
    w.line(depth + 1, f"const unsigned long long r = descriptor({right}, {panel if transposed else UNUSED});")
    w.line(depth + 1, f"settle({d});")
    w.line(depth + 1, "products_begin();")
    w.loop(depth + 1, "s", 0, contracted // K)
    step = f"s * {K * ROW // 16}" if transposed else _along_columns(panel)
    w.line(depth + 2, f"{name}({d}, {a}, r + {step}, {'true' if s.accumulate else 's > 0'});")
    w.line(depth + 1, "}")
    w.line(depth + 1, "products_commit();")
    w.line(depth, "}")
    w.in_flight.setdefault(s.queue, []).append(s.dst.buffer)


def _along_columns(panel: int) -> str:
    """Descriptor units to step s along the columns: 32 bytes in a row, then the next panel."""
    return f"(s / {PANEL // K} * {panel // 16} + s % {PANEL // K} * {DEPTH})"


def _left(w: Writer, s: Mma, contracted: int) -> str:
    """Address of a left operand in shared memory: a stage, or a window of 64 rows of it."""
    panelled(w, s.a.buffer)
    a = w.x.shared[s.a.buffer]
    if a.axes[0].name != w.row or w.size(a, 1) != contracted:
        raise ValueError(f"{s.a.buffer} does not fit a product with {s.b.buffer}")
    address = w.x.address(s.a.buffer, s.a.stage)
    if not s.a.windows:
        if w.size(a, 0) != 64:
            raise ValueError(f"a product has 64 rows, and {s.a.buffer} has {w.size(a, 0)}")
        return address
    window = s.a.windows[0]
    if len(s.a.windows) > 1 or window.axis != w.row or w.x.show(window.size) != "64":
        raise ValueError(f"a window of {s.a.buffer} must be of 64 rows")
    return f"{address} + {ROW} * {w.x.text(window.start, SCALAR).at(7)}"


def await_(w: Writer, s: Await, depth: int) -> None:
    """Prints an Await.  What is complete after it may be read and written again."""
    queue = w.in_flight.setdefault(s.queue, [])
    done, w.in_flight[s.queue] = (queue[: -s.pending], queue[-s.pending :]) if s.pending else (queue, [])
    w.line(depth, f"products_pending<{s.pending}>();")
    for name in dict.fromkeys(done):
        if name not in w.in_flight[s.queue]:
            w.line(depth, f"settle({w.x.names.buffer(name)});")
