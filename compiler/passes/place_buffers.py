"""place_buffers: how tiles lie in shared memory and in registers, and whether they fit.

Contract.  In: the program of `specialize`.  Out: the same with a layout on every shared tile and on every register tile that a
product reads or writes, and the sums as notes.  No result changes.

    SWIZZLE   rows of a shared tile are panels of 128 bytes along the last axis, 16-byte chunks exchanged within them, as
              wgmma's descriptors and tensor maps both can (PTX ISA, wgmma, shared memory matrix layout; `swizzle(bytes, major)`).
              The last panel is whole even where the tile fills a part of it: `columns` is what there is room for.  Where warps
              copy for themselves, panels may also be of 64 or 32 bytes, and fill the tile
    FRAGMENT  accumulators and first operands lie over lanes as wgmma has them (PTX ISA, register fragments); of an accumulator
              rounded to 16 bits, that is the operand's layout, so weights become an operand without moving between lanes
    KEYS      a vector of values per key lies over the lanes of each warp, value i in lane i % 32, so that few registers hold it
              while products run; where a tile meets it, lanes pass values on.  Of a vector per row a thread has its rows
    REUSE     see `reuse`
    SHARED    bytes of all shared tiles and barriers; E0803 with the sum if they exceed the target's
    PARTS     a row's sum that steps only scale by factors of the row and add sums to is kept as each lane's part, and added up
              over a quad's lanes where it is read: a step then exchanges maxima only
    BUDGET    32-bit registers of a consumer's thread that tiles take; E0812 with the sum if fewer than `RESERVE` are left.
              Fitted on an H200 to what spilled: of 240 registers, keys of 160 at head dim 128 but not of 144; of 160, keys of
              128 at head dim 64 but not of 112
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilec.dsl.faults import ScheduleFault
from tilec.ir.attention import BYTES
from tilec.ir.axes import Lanes, buffer_lanes, contracted, stage_bytes
from tilec.ir.expr import Expr, Float, Op, Read, Reduce, walk
from tilec.ir.nodes import (
    Buffer,
    Compute,
    For,
    Layout,
    Load,
    Mma,
    Program,
    Role,
    Unit,
)
from tilec.ir.nodes import walk as statements
from tilec.passes.reuse import in_place
from tilec.passes.scope import key_axes
from tilec.passes.tidy import read
from tilec.targets import target

WARP = 32  # threads
THREADS: dict[Unit, int] = {"warpgroup": 4 * WARP, "warp": WARP}
QUAD = 4  # threads that share a row
REGISTER = 4  # bytes
RESERVE = 16
BARRIER = 8
DEPTH = 32  # bytes of one step of a product along its contracted axis
COLUMNS, WIDEST = 8, 256
LANES = Layout("lanes", (("warp", WARP),))
PARTS = Layout("parts", (("lanes", 4),))  # of a quad: PTX ISA, wgmma, register fragments


def place_buffers(program: Program) -> Program:
    """The program with layouts.  ScheduleFault E0803, E0812 for what does not fit, E0812 for products without an instruction."""
    _, k = key_axes(program)
    program = program.with_(roles=tuple(in_place(r, k) for r in program.roles))
    constants = dict(program.tile)
    whole = any(r.unit == "warpgroup" for r in program.roles)
    shared = tuple(
        replace(b, layout=_swizzle(b, dict(buffer_lanes((b,), constants))[b.name], whole)) for b in program.buffers
    )
    notes = [shared_note(program.with_(buffers=shared), constants)]
    roles = []
    for role in program.roles:
        lanes = buffer_lanes((*shared, *role.buffers), constants)
        fragments = _fragments(role, shared, lanes)
        layouts = fragments | dict.fromkeys(partial_rows(role), PARTS) | dict.fromkeys(_vectors(role, k), LANES)
        buffers = tuple(replace(b, layout=layouts.get(b.name)) for b in role.buffers)
        if role.buffers and role.registers is not None:
            notes.append(_register_note(role, lanes))
        roles.append(replace(role, buffers=buffers))
    return program.with_(buffers=shared, roles=tuple(roles), notes=(*program.notes, *notes))


def _swizzle(b: Buffer, lanes: Lanes, whole: bool) -> Layout | None:
    """Rule SWIZZLE; `whole`: the last panel is of 128 bytes too, else panels are as wide as divides the tile."""
    if not lanes:
        return None
    axis, size = lanes[-1]
    width = next((n for n in (128, 64, 32) if whole or size * BYTES[b.dtype] % n == 0), 16)
    panel = width // BYTES[b.dtype]
    room = -(-size // panel) * panel
    return Layout("swizzle", (("bytes", width), ("major", axis), *((("columns", room),) if room != size else ())))


def _fragments(role: Role, shared: tuple[Buffer, ...], lanes: dict[str, Lanes]) -> dict[str, Layout]:
    """Rule FRAGMENT: the first product that has a tile decides; tiles shaped like an accumulator lie like it."""
    own = {b.name for b in role.buffers}
    everywhere = {b.name: b.dtype for b in (*shared, *role.buffers)}
    out: dict[str, Layout] = {}
    shapes: dict[Lanes, Layout] = {}
    for s in statements(role.body):
        if not isinstance(s, Mma):
            continue
        columns = next(n for axis, n in lanes[s.dst.buffer] if axis not in dict(lanes[s.a.buffer]))
        depth = DEPTH // BYTES[everywhere[s.b.buffer]]
        if role.unit == "warpgroup":
            _check_shape(s, lanes, columns, depth)
        shape = f"m64n{columns}k{depth}" if role.unit == "warpgroup" else f"m16n{COLUMNS}k{depth}"
        for operand, x in (("C", s.dst), ("A", s.a)):
            if x.buffer in own:
                layout = Layout("fragment", (("mma", shape), ("operand", operand)))
                out.setdefault(x.buffer, layout)
                if operand == "C":
                    shapes.setdefault(lanes[x.buffer], layout)
    for b in role.buffers:
        if lanes[b.name] in shapes:
            out.setdefault(b.name, shapes[lanes[b.name]])
    return out


def partial_rows(role: Role) -> list[str]:
    """Rule PARTS: row buffers that are linear in themselves and in sums, wherever they are written."""
    rows = {b.name for b in role.buffers if len(b.axes) == 1 and b.dtype == "f32"}
    linear = dict.fromkeys(rows, True)
    summed: set[str] = set()
    for s in statements(role.body):
        if isinstance(s, Compute | Load) and s.dst.buffer in rows:
            name = s.dst.buffer
            linear[name] &= isinstance(s, Compute) and not s.dst.windows and _linear(s.value, Read(name))
            if isinstance(s, Compute) and any(isinstance(x, Reduce) for x in walk(s.value)):
                summed.add(name)
    return [n for n in linear if linear[n] and n in summed]


def _vectors(role: Role, k: str) -> list[str]:
    """Rule KEYS."""
    return [b.name for b in role.buffers if role.unit in THREADS and [a.name for a in b.axes] == [k]]


def _linear(e: Expr, me: Read) -> bool:
    """Whether `e` is a sum of 0, sums along an axis, and `me` times what reads neither."""
    match e:
        case Float(0.0) | Reduce("sum"):
            return True
        case Op("+", (x, y)):
            return _linear(x, me) and _linear(y, me)
        case Op("*", (x, y)):
            plain = not any(z is me or isinstance(z, Reduce) for z in walk(y))
            return _linear(x, me) and plain
    return e is me


def _check_shape(s: Mma, lanes: dict[str, Lanes], columns: int, depth: int) -> None:
    """ScheduleFault E0812 for a product that wgmma has no shape for (PTX ISA, wgmma.mma_async: n of 8 … 256, k of 32 bytes)."""
    (axis,) = contracted(lanes[s.dst.buffer], lanes[s.a.buffer], lanes[s.b.buffer])
    deep = dict(lanes[s.a.buffer])[axis]
    if deep % depth or columns % COLUMNS or columns > WIDEST:
        message = f"a product with {columns} columns over {deep} of `{axis}` has no matrix instruction"
        note = f"it needs a multiple of {COLUMNS} up to {WIDEST}, over a multiple of {depth}"
        raise ScheduleFault("E0812", message, note=note, hint="the portable backend pads it")


# ---------------------------------------------------------------------------------------------- sums


def shared_note(program: Program, constants: dict[str, int]) -> str:
    """Rule SHARED."""
    parts = [(b.name, stage_bytes(b, constants), b.stages) for b in program.buffers]
    parts.append(("barriers", BARRIER, sum(b.stages for b in program.barriers if b.kind == "mbarrier")))
    total, limit = sum(size * count for _, size, count in parts), target(program.target).shared_memory
    terms = " + ".join(f"{name} {count} x {size:,}" for name, size, count in parts if count)
    text = f"{terms} = {total:,} of {limit:,} bytes of shared memory"
    if total > limit:
        hint = "fewer stages or smaller tiles"
        raise ScheduleFault("E0803", "the tiles do not fit in shared memory", note=text, hint=hint)
    return text


def register_words(role: Role, lanes: dict[str, Lanes]) -> tuple[tuple[str, int], ...]:
    """Registers of a consumer's thread that each of its tiles takes, and its rows together: a thread has two rows of each 16
    that its warp multiplies, whose values its quad shares out.  Empty without tiles."""
    threads = THREADS.get(role.unit, WARP)
    rounded = _rounded(role) if role.unit == "warp" else set()
    parts = []
    for b in role.buffers:
        size = prod(n for _, n in lanes[b.name]) * BYTES[b.dtype]
        if len(lanes[b.name]) > 1 and b.name not in rounded:
            parts.append((b.name, -(-size // (threads * REGISTER))))
    steps = [s for loop in statements(role.body) if isinstance(loop, For) for s in loop.body]
    carried = read(tuple(steps)) | {s.dst.buffer for s in statements(tuple(steps)) if isinstance(s, Compute)}
    tall = max((lanes[b.name][0][1] for b in role.buffers if len(lanes[b.name]) > 1), default=0)
    rows = tall * QUAD // threads * sum(len(lanes[b.name]) == 1 and b.name in carried for b in role.buffers)
    return (*parts, ("rows", rows)) if role.buffers else ()


def _register_note(role: Role, lanes: dict[str, Lanes]) -> str:
    """Rule BUDGET."""
    assert role.registers is not None
    parts = register_words(role, lanes)
    total = sum(n for _, n in parts)
    terms = " + ".join(f"{name} {n}" for name, n in parts)
    text = f"{terms} = {total} registers of {role.registers}, which leave {RESERVE} for addresses and counters"
    if total + RESERVE > role.registers:
        more = (
            "more warpgroups, or queries in shared memory"
            if role.unit == "warpgroup"
            else "or fewer rows for each warp"
        )
        hint = f"smaller tiles of keys, {more}"
        raise ScheduleFault("E0812", f"the tiles of {role.name} do not fit in registers", note=text, hint=hint)
    return text


def _rounded(role: Role) -> set[str]:
    """Operands that are a tile rounded: between synchronous products each takes the place of what it is rounded from, bit by
    bit."""
    return {
        s.dst.buffer
        for s in statements(role.body)
        if isinstance(s, Compute) and isinstance(s.value, Read) and s.value.stage is None and not s.dst.windows
    }
