"""LDS: reads, writes and atomics.  AMD Instinct MI300 ISA reference, "LDS", DS format.

Addresses, bank cycles and dword numbers are kept by the register's contents: loops repeat them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.targets.gfx942.emulator import banks
from tilec.targets.gfx942.emulator.definedness import set_lanes
from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.lds import Access
from tilec.targets.gfx942.emulator.operands import Operand
from tilec.targets.gfx942.emulator.scoreboard import Outstanding, issue_lgkm
from tilec.targets.gfx942.emulator.step import Flow, Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import LANES, Array, Wave, lanes_of, mask_of
from tilec.targets.gfx942.listing import Instruction

KEPT = 4096  # address patterns kept by an instruction
WRITTEN = np.uint32(0x01010101)


@dataclass(frozen=True)
class Place:
    """Where one access goes: `at` [words or bytes, active lanes], and what it costs."""

    at: Array
    words: bool
    cycles: int
    lanes: Array  # those inside of LDS
    outside: bool
    size: int  # bytes a lane


class Addresses:
    """One address operand with one offset."""

    def __init__(self, operand: Operand, offset: int, size: int, *, writes: bool) -> None:
        self.register, self.offset, self.size, self.writes = operand.first, offset, size, writes
        self.kept: dict[tuple[bytes, int, int], Place] = {}

    def place(self, w: Wave) -> Place:
        """The place for the current contents of the register."""
        row, limit = w.u[self.register], w.group.lds.size
        key = (row.tobytes(), w.exec_mask, limit)
        found = self.kept.get(key)
        if found is None:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            found = self.kept[key] = self._compute(row, w.lanes, limit)
        return found

    def _compute(self, row: Array, active: Array, limit: int) -> Place:
        base = row.astype(np.int64) + self.offset
        inside = active & (base >= 0) & (base + self.size <= limit)
        words = self.size >= 4 and not (base[inside] & 3).any()
        step = base[inside] // 4 if words else base[inside]
        at = step[None, :] + np.arange(self.size // 4 if words else self.size)[:, None]
        cost = banks.cycles(base, inside, self.size, writes=self.writes)
        return Place(at, words, cost, inside, bool((active & ~inside).any()), self.size)


def _offsets(x: Instruction, size: int, parts: int) -> list[int]:
    if parts == 1:
        return [x.number("offset")]
    unit = size * (64 if "st64" in x.name else 1)
    return [x.number("offset0") * unit, x.number("offset1") * unit]


def _begin(w: Wave, step: Step, place: Place, values: Array | None = None) -> Access:
    if place.outside:
        w.group.report("bounds", w, step, f"LDS access outside the block's {w.group.lds.size} bytes")
    writes = values is not None
    access = Access(w, place.at, place.words, writes, False, step.source.address)
    complaint = w.group.lds.begin(access, values)
    if complaint:
        w.group.report("race", w, step, complaint)
    w.group.bank(step, place.cycles, banks.ideal(place.size, writes=writes))
    w.extra += place.cycles
    return access


def _read(size: int, parts: int = 1, *, part: str = "") -> Builder:
    """`size` bytes a part; `part`: signed, low or high, of an element below 4 bytes."""

    def build(x: Instruction) -> Step:
        dst, address = operands_of(x)
        places = [Addresses(address, o, size, writes=False) for o in _offsets(x, size, parts)]
        reads = address.mask | (dst.mask if part == "high" else 0)
        step = Step(
            x, "lds", lambda w: None, reads, dst.mask, address.mask, "load", dst=dst, counter="lgkm", loads=True
        )
        each = max(1, size // 4)

        def run(w: Wave) -> None:
            spots = [a.place(w) for a in places]
            begun = tuple(_begin(w, step, p) for p in spots)
            for n, place in enumerate(spots):
                _fetch(w, step, place, range(dst.first + n * each, dst.first + (n + 1) * each), part)
            issue_lgkm(w, Outstanding(dst.mask, x.address, accesses=begun))

        step.run = run
        return step

    return build


def _fetch(w: Wave, step: Step, place: Place, rows: range, part: str) -> None:
    lds, lanes, size = w.group.lds, place.lanes, place.size
    full = w.full and not place.outside
    if place.words:
        values, known = lds.words[place.at], lds.written_words[place.at] == WRITTEN
    else:
        values, known = _joined(lds.data[place.at], size), lds.written[place.at] != 0
    if not known.all():
        unknown = np.zeros(LANES, np.bool_)
        unknown[lanes] = ~known.all(axis=0)
        mask = mask_of(unknown)
        for r in rows:
            set_lanes(w, r, w.undefined[r] | mask)
            w.origins[r] = f"LDS never written, read at {step.source.address:#x}"
    for k, r in enumerate(rows):
        row, value = w.u[r], values[k]
        if size < 4:
            value = _widened(value, size, part, row[lanes])
        if full:
            row[...] = value
        else:
            row[lanes] = value


def _joined(octets: Array, size: int) -> Array:
    """Bytes [size, lanes] as words [size / 4, lanes], low byte first."""
    padded = np.zeros((max(4, size), octets.shape[1]), np.uint32)
    padded[:size] = octets
    each = padded.reshape(-1, 4, octets.shape[1])
    shifted: Array = each[:, 0] | each[:, 1] << 8 | each[:, 2] << 16 | each[:, 3] << 24
    return shifted


def _widened(value: Array, size: int, part: str, old: Array) -> Any:
    if part == "signed":
        top = np.uint32(1 << (8 * size - 1))
        return (value ^ top) - top
    if part == "low":
        return old & np.uint32(0xFFFF0000) | value
    return old & np.uint32(0xFFFF) | value << np.uint32(16) if part == "high" else value


def _write(size: int, parts: int = 1, *, high: bool = False) -> Builder:
    def build(x: Instruction) -> Step:
        address, *data = operands_of(x)
        places = [Addresses(address, o, size, writes=True) for o in _offsets(x, size, parts)]
        step = Step(x, "lds", lambda w: None, union(address, *data), 0, address.mask, "none", counter="lgkm")
        parts_of = [range(d.first, d.first + max(1, size // 4)) for d in data]

        def run(w: Wave) -> None:
            begun = []
            for spot, rows in [(p.place(w), rows) for p, rows in zip(places, parts_of, strict=True)]:
                values = _values(w, spot, rows, high=high)
                begun.append(_begin(w, step, spot, values))
                _put(w, spot, rows, values)
            issue_lgkm(w, Outstanding(0, x.address, accesses=tuple(begun)))

        step.run = run
        return step

    return build


def _values(w: Wave, place: Place, rows: range, *, high: bool) -> Array:
    """What a write puts there: dwords [words, lanes] or bytes [bytes, lanes]."""
    values: Array = w.v[rows.start : rows.stop][:, place.lanes] >> np.uint32(16 if high else 0)
    if place.words:
        return values
    octets = values[:, None, :] >> np.array([0, 8, 16, 24], np.uint32)[None, :, None]
    cut: Array = octets.reshape(-1, values.shape[1])[: place.size].astype(np.uint8)
    return cut


def _put(w: Wave, place: Place, rows: range, values: Array) -> None:
    lds, lanes = w.group.lds, place.lanes
    unknown = 0
    for r in rows:
        unknown |= w.undefined[r]
    if place.words:
        lds.words[place.at] = values
        lds.written_words[place.at] = WRITTEN
    else:
        lds.data[place.at] = values
        lds.written[place.at] = 1
    if unknown & w.exec_mask:
        lost = lanes_of(unknown)[lanes]
        if place.words:
            lds.written_words[place.at[:, lost]] = 0
        else:
            lds.written[place.at[:, lost]] = 0


def _atomic(f: Callable[[Any, Any], Any], *, returns: bool = False) -> Builder:
    """Lane after lane: LDS = f(LDS, data), of dwords."""

    def build(x: Instruction) -> Step:
        *dst, address, data = operands_of(x)
        place_of = Addresses(address, x.number("offset"), 4, writes=True)
        writes = dst[0].mask if returns else 0
        reads, sinks = union(address, data), union(address, data)
        flow: Flow = "load" if returns else "none"
        step = Step(x, "lds", lambda w: None, reads, writes, sinks, flow, counter="lgkm", loads=returns)

        def run(w: Wave) -> None:
            place, lds = place_of.place(w), w.group.lds
            octets = (place_of.offset + w.u[address.first].astype(np.int64))[place.lanes][:, None] + np.arange(4)
            access = Access(w, octets, False, True, False, x.address, atomic=True)
            complaint = lds.begin(access)
            if complaint:
                w.group.report("race", w, step, complaint)
            if place.outside:
                w.group.report("bounds", w, step, f"LDS access outside the block's {lds.size} bytes")
            w.group.bank(step, place.cycles, place.cycles)
            w.extra += place.cycles
            for n, at in zip(np.flatnonzero(place.lanes), octets[:, 0], strict=True):
                cell = lds.data[at : at + 4].view(np.uint32)
                old = cell.copy()
                cell[...] = f(old, w.u[data.first][n : n + 1])
                if returns:
                    w.u[dst[0].first][n] = old[0]
            issue_lgkm(w, Outstanding(writes, x.address, accesses=(access,)))

        step.run = run
        return step

    return build


def _float_sum(a: Array, b: Array) -> Any:
    return (a.view(np.float32) + b.view(np.float32)).view(np.uint32)


ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "min": lambda a, b: np.minimum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
    "max": lambda a, b: np.maximum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
}


LDS: Family = {
    "ds_read_u8": _read(1),
    "ds_read_i8": _read(1, part="signed"),
    "ds_read_u16": _read(2),
    "ds_read_i16": _read(2, part="signed"),
    "ds_read_u8_d16": _read(1, part="low"),
    "ds_read_u8_d16_hi": _read(1, part="high"),
    "ds_read_u16_d16": _read(2, part="low"),
    "ds_read_u16_d16_hi": _read(2, part="high"),
    "ds_read_b32": _read(4),
    "ds_read_b64": _read(8),
    "ds_read_b96": _read(12),
    "ds_read_b128": _read(16),
    "ds_read2_b32": _read(4, 2),
    "ds_read2_b64": _read(8, 2),
    "ds_read2st64_b32": _read(4, 2),
    "ds_read2st64_b64": _read(8, 2),
    "ds_write_b8": _write(1),
    "ds_write_b8_d16_hi": _write(1, high=True),
    "ds_write_b16": _write(2),
    "ds_write_b16_d16_hi": _write(2, high=True),
    "ds_write_b32": _write(4),
    "ds_write_b64": _write(8),
    "ds_write_b96": _write(12),
    "ds_write_b128": _write(16),
    "ds_write2_b32": _write(4, 2),
    "ds_write2_b64": _write(8, 2),
    "ds_write2st64_b32": _write(4, 2),
    "ds_write2st64_b64": _write(8, 2),
    **{f"ds_{n}_u32": _atomic(ATOMICS[n]) for n in ("add", "sub")},
    **{f"ds_{n}_rtn_u32": _atomic(ATOMICS[n], returns=True) for n in ("add", "sub")},
    **{f"ds_{n}_i32": _atomic(ATOMICS[n]) for n in ("min", "max")},
    "ds_min_u32": _atomic(np.minimum),
    "ds_max_u32": _atomic(np.maximum),
    "ds_add_f32": _atomic(_float_sum),
    "ds_add_rtn_f32": _atomic(_float_sum, returns=True),
}
