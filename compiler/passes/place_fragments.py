"""place_fragments: how the tiles of waves lie over lanes and in shared memory, and whether they fit.

Contract.  In: the program of `ping_pong`.  Out: the same with a layout on every tile that a product or a move to or from shared
memory touches, and the sums as notes.  No result changes.

    FRAGMENT  operands and accumulators lie over lanes as MFMA has them: 32 x 32 over 8 for 32 rows to a wave, 16 x 16 over 16
              for 16 (AMD Instinct MI300 ISA reference, section 7.1; `ir.fragments` has the map).  `run`: neighbours along the
              contracted axis that a lane holds, 4 in one instruction; 8 where both operands come from memory, so that a lane
              reads 16 bytes at once: two instructions then contract the same elements in another order
    WEIGHTS   an accumulator rounded to 16 bits is a right operand with runs of 4 where it is
    BLOCKS    values on their way are blocks of 4 keys by 4 features to a lane, which it turns
    XOR       a row's units in shared memory are exchanged by their row, so that lanes that are served together find different
              banks: units of 16 bytes of keys, 8 of values (`ir.fragments.Exchange`)
    PARTS     see `place_buffers`; the lanes that share a row are 2 or 4
    BUDGET    32-bit registers of a lane that tiles take; E0812 with the sum if fewer than `RESERVE` are left.  Of operands
              from shared memory only what is read ahead counts
    SHARED    bytes of all shared tiles; E0803 with the sum if they exceed the target's
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilec.dsl.faults import ScheduleFault
from tilec.ir.attention import BYTES
from tilec.ir.axes import Lanes, buffer_lanes, constant
from tilec.ir.nodes import Buffer, Compute, Layout, Mma, Move, Program, Role
from tilec.ir.nodes import walk as statements
from tilec.passes.place_buffers import partial_rows, shared_note
from tilec.passes.scope import key_axes

WAVE = 64
REGISTER = 4  # bytes
RESERVE = 40  # addresses, counters, rows, and fragments between two instructions
SHAPES = {32: "m32n32k8", 16: "m16n16k16"}
KEYS, VALUES = 16, 8  # bytes of a unit in shared memory
BANKS = 128  # bytes


def place_fragments(program: Program) -> Program:
    """The program with layouts.  ScheduleFault E0803, E0812 for what does not fit."""
    q, _ = key_axes(program)
    (role,) = program.roles
    constants = dict(program.tile)
    lanes = buffer_lanes((*program.buffers, *role.buffers), constants)
    rows = next(dict(lanes[b.name])[q] for b in role.buffers if q in dict(lanes[b.name]))
    fragments = _fragments(role, lanes, SHAPES[rows])
    fragments |= dict.fromkeys(partial_rows(role), Layout("parts", (("lanes", WAVE // rows),)))
    fragments |= _staged(role, {b.name for b in program.buffers})
    buffers = tuple(replace(b, layout=fragments.get(b.name)) for b in role.buffers)
    read = {s.src.buffer: fragments.get(s.dst.buffer) for s in statements(role.body) if isinstance(s, Move)}
    shared = tuple(replace(b, layout=_xor(b, lanes[b.name], read.get(b.name))) for b in program.buffers)
    notes = (shared_note(program.with_(buffers=shared), constants), _register_note(role, lanes, rows))
    placed = replace(role, buffers=buffers)
    return program.with_(buffers=shared, roles=(placed,), notes=(*program.notes, *notes))


def _fragments(role: Role, lanes: dict[str, Lanes], shape: str) -> dict[str, Layout]:
    """Rules FRAGMENT and WEIGHTS."""
    computed = {s.dst.buffer for s in statements(role.body) if isinstance(s, Compute)}
    out: dict[str, Layout] = {}
    shapes: set[Lanes] = set()
    for s in statements(role.body):
        if isinstance(s, Mma):
            run = 4 if s.b.buffer in computed else 8
            for operand, name, held in (("C", s.dst.buffer, 4), ("A", s.a.buffer, run), ("B", s.b.buffer, run)):
                layout = Layout("fragment", (("mma", shape), ("operand", operand), ("run", held)))
                if out.setdefault(name, layout) != layout:
                    message = f"`{name}` is an operand of products that want it in different lanes"
                    raise ScheduleFault("E0811", message, hint="the portable backend takes it")
            shapes.add(lanes[s.dst.buffer])
    like = Layout("fragment", (("mma", shape), ("operand", "C"), ("run", 4)))
    for b in role.buffers:
        if lanes[b.name] in shapes:
            out.setdefault(b.name, like)
    return out


def _staged(role: Role, shared: set[str]) -> dict[str, Layout]:
    """Rule BLOCKS."""
    blocks = Layout("blocks", (("rows", 4), ("columns", 4)))
    found = {s.src.buffer for s in statements(role.body) if isinstance(s, Move) and s.dst.buffer in shared}
    return dict.fromkeys(found, blocks)


def _xor(b: Buffer, lanes: Lanes, fragment: Layout | None) -> Layout:
    """Rule XOR.  Rows of keys are read 16 bytes at once, by lanes of 8 rows together, two runs of 4 rows: of these 1 or 2, by
    the width, begin at different banks.  Of values, 16 neighbouring rows are read together, 8 bytes of each, and written
    together every fourth of 64: `step` rows lie in one line of all banks."""
    assert fragment is not None
    width = lanes[-1][1] * BYTES[b.dtype]
    if dict(fragment.params)["run"] == 8:
        step = 1 if width % BANKS == 0 else 2
        return Layout("xor", (("unit", KEYS), ("rows", 8 // step), ("step", step), ("fold", 1)))
    units, step = width // VALUES, max(1, BANKS // width)
    rows = min(16, units)
    return Layout("xor", (("unit", VALUES), ("rows", rows), ("step", step), ("fold", min(4, max(2, 4 // step)))))


# ---------------------------------------------------------------------------------------------- sums


def register_words(role: Role, lanes: dict[str, Lanes], rows: int) -> tuple[tuple[str, int], ...]:
    """Registers of a lane that each tile takes, and what is read ahead of the operands of one product at a time."""
    body = list(statements(role.body))
    moved = {s.dst.buffer for s in body if isinstance(s, Move)}
    own = {b.name: b for b in role.buffers}
    ahead = [s for s in body if isinstance(s, Move) and s.queue is not None and s.dst.buffer in own]
    parts = []
    for b in role.buffers:
        if len(lanes[b.name]) > 1 and b.name not in moved:
            parts.append(
                (b.name, b.stages * -(-prod(n for _, n in lanes[b.name]) * BYTES[b.dtype] // (WAVE * REGISTER)))
            )
        elif len(lanes[b.name]) == 1 and lanes[b.name][0][1] != rows:
            parts.append((b.name, b.stages * lanes[b.name][0][1] * rows // WAVE))
    sizes: dict[str, int] = {}
    for s in ahead:
        windows = {w.axis: constant(w.size, {}) or 0 for w in s.dst.windows}
        size = prod(windows.get(axis, n) for axis, n in lanes[s.dst.buffer]) * BYTES[own[s.dst.buffer].dtype]
        sizes[s.dst.buffer] = max(sizes.get(s.dst.buffer, 0), size // (WAVE * REGISTER))
    return (*parts, ("ahead", max(sizes.values(), default=0)))


def _register_note(role: Role, lanes: dict[str, Lanes], rows: int) -> str:
    """Rule BUDGET."""
    assert role.registers is not None
    parts = register_words(role, lanes, rows)
    total = sum(n for _, n in parts)
    terms = " + ".join(f"{name} {n}" for name, n in parts)
    text = f"{terms} = {total} registers of {role.registers}, which leave {RESERVE} for all else"
    if total + RESERVE > role.registers:
        hint = "16 rows to a wave, fewer keys, or `warps split_q(4)`"
        raise ScheduleFault("E0812", f"the tiles of {role.name} do not fit in registers", note=text, hint=hint)
    return text
