"""Matrix products: MFMA of 32 x 32 over 8 or 16 x 16 over 16, both operands in registers."""

from __future__ import annotations

from tilec.backends.hip.writer import Writer
from tilec.ir.nodes import Mma


def mma(w: Writer, s: Mma, depth: int) -> None:
    """Prints a Mma.  Of an output whose last rows are padding the compiler leaves out those instructions that nothing but padding
    comes of, and they do not count.  Raises ValueError for operands that are no fragments of one instruction."""
    dst, a, b = (w.x.registers.get(x.buffer) for x in (s.dst, s.a, s.b))
    if (
        dst is None
        or a is None
        or b is None
        or s.queue is not None
        or s.dst.windows
        or s.b.windows
        or s.a.stage is not None
    ):
        raise ValueError(f"{s.dst.buffer}: products are of whole tiles in registers, and synchronous")
    left, right = w.operand(a), w.operand(b)
    if left is None or right is None or (left.operand, right.operand) != ("A", "B") or left.run != right.run:
        raise ValueError(f"{s.a.buffer} and {s.b.buffer} are no operands of one instruction")
    (row, count), (along, deep) = ((w.constant(x), n) for x, n in (w.window(s.a, a, n) for n in (0, 1)))
    group = left.run * left.across
    tiles, steps = count // left.n, deep // group
    if w.count(dst) != tiles * left.held or w.shape(b, right)[0] != steps or row % left.n or along % group:
        raise ValueError(f"{s.a.buffer} does not fit a product that makes {s.dst.buffer}")
    to = _staged(w, dst.name, s.dst.stage, dst.stages)
    from_ = _staged(w, b.name, s.b.stage, b.stages)
    name = w.x.names.buffer(a.name)
    if not s.accumulate:
        w.loop(depth, "t", 0, tiles)
        w.line(depth + 1, f"{to}[t] = 0.0f;")
        w.line(depth, "}")
    w.loop(depth, "s", 0, steps)
    w.loop(depth + 1, "t", 0, tiles)
    first = f"[t{f' + {row // left.n}' if row else ''}][s{f' + {along // group}' if along else ''}]"
    for half in (".xy", ".zw") if left.run == 8 else ("",):
        w.line(depth + 2, f"{to}[t] = mma_{a.dtype}_{left.n}({name}{first}{half}, {from_}[s]{half}, {to}[t]);")
    w.line(depth + 1, "}")
    w.line(depth, "}")
    w.matrices += min(tiles, -(-w.stored.get(dst.axes[0].name, count) // left.n)) * steps * left.run // 4


def _staged(w: Writer, name: str, stage: object, stages: int) -> str:
    base = w.x.names.buffer(name)
    return f"{base}[{stage}]" if stages > 1 else base
