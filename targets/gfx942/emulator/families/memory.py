"""Vector memory: global, flat, buffer and scratch instructions, loads into LDS, atomics.

AMD Instinct MI300 ISA reference, "Vector memory buffer instructions", "Flat memory instructions".  A buffer's bounds check
is of offset register and immediate, without the scalar offset, a dword at a time: loads out of range give zeros, stores
are dropped.  LDS-DMA puts 4 bytes a lane at M0 + immediate + 4 * lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilec.targets.gfx942.emulator.families import Builder, Family
from tilec.targets.gfx942.emulator.lds import Access
from tilec.targets.gfx942.emulator.operands import M0, Operand, Unsupported
from tilec.targets.gfx942.emulator.scoreboard import Outstanding, issue_vm
from tilec.targets.gfx942.emulator.step import M0_BIT, Flow, Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import LANES, Array, Wave
from tilec.targets.gfx942.listing import Instruction

RAW_STRIDE = 0x3FFF << 16  # stride field of a resource's second dword


class Target:
    """Where a memory instruction's lanes go: `at` gives addresses, and which lanes take part (a buffer's range check)."""

    def __init__(self, x: Instruction, srcs: list[Operand]) -> None:
        self.offset = x.number("offset")
        self.buffer = x.name.startswith("buffer_")
        self.srcs, self.text = srcs, x.text
        self.offen, self.idxen = "offen" in x.modifiers, "idxen" in x.modifiers

    @property
    def mask(self) -> int:
        """The set of address registers."""
        return union(*self.srcs)

    def at(self, w: Wave) -> tuple[Array, Array]:
        """Addresses (uint64) and, for buffers, bytes from each address to the end of the range (else a large number)."""
        return self._buffer(w) if self.buffer else self._global(w)

    def _global(self, w: Wave) -> tuple[Array, Array]:
        address, base = self.srcs
        if base.kind == "s":
            at = np.uint64(w.get64(base.first)) + w.u[address.first].astype(np.uint64)
        else:
            at = w.u[address.first].astype(np.uint64) | w.u[address.first + 1].astype(np.uint64) << np.uint64(32)
        return at + np.uint64(self.offset & (1 << 64) - 1), np.full(LANES, 1 << 40)

    def _buffer(self, w: Wave) -> tuple[Array, Array]:
        address, resource, scalar = self.srcs
        r = resource.first
        if w.s[r + 1] & RAW_STRIDE or self.idxen:
            raise Unsupported(f"a structured buffer: `{self.text}`")
        offset = np.full(LANES, self.offset, np.int64)
        if self.offen:
            offset += w.u[address.first]
        base = w.s[r] | (w.s[r + 1] & 0xFFFF) << 32
        more = w.s[scalar.first] if scalar.kind == "s" else scalar.bits
        return (offset + base + more).astype(np.uint64), w.s[r + 2] - offset


def split(x: Instruction) -> tuple[list[Operand], list[Operand]]:
    """(data operands, address operands) of an instruction."""
    found = operands_of(x)
    n = 3 if x.name.startswith("buffer_") else 2
    if x.name.startswith("flat_"):
        stores = "store" in x.name or ("atomic" in x.name and len(found) == 2)
        return ([found[1]], [found[0], Operand("o")]) if stores else (found[:1], [found[1], Operand("o")])
    if x.name.startswith("buffer_"):
        return found[:-n], found[-n:]
    if "load" in x.name:
        return found[:-2], found[-2:]
    *into, address, data, base = found
    return [*into, data], [address, base]


def _load(size: int, *, part: str = "") -> Builder:
    def build(x: Instruction) -> Step:
        data, where = split(x)
        if "lds" in x.modifiers or "_lds_" in x.name:
            return _to_lds(x, where)
        target, dst = Target(x, where), data[0]
        reads = target.mask | (dst.mask if part == "high" else 0)
        step = Step(x, "vmem", lambda w: None, reads, dst.mask, target.mask, "load", dst=dst, counter="vm", loads=True)
        rows = range(dst.first, dst.first + max(1, size // 4))

        def run(w: Wave) -> None:
            values = fetch(w, step, target, size)
            for k, r in enumerate(rows):
                w.write(r, _placed(values[:, k], size, part, w.u[r]) if part else values[:, k])
            issue_vm(w, Outstanding(dst.mask, x.address))

        step.run = run
        return step

    return build


def fetch(w: Wave, step: Step, target: Target, size: int) -> Array:
    """`size` bytes a lane as dwords [64, words]; zeros out of range."""
    at, room = target.at(w)
    want = w.lanes & (room >= min(size, 4)) if target.buffer else w.lanes
    octets, found = w.group.memory.gather(at, want & (room >= size), size)
    short = want & (room < size)
    for n in np.flatnonzero(short):  # a range that ends inside of what the lane loads
        inside = int(room[n]) // 4 * 4
        one, ok = w.group.memory.gather(at[n : n + 1], np.ones(1, np.bool_), inside)
        octets[n, :inside], found[n] = one[0], ok[0]
    lost(w, step, at, want & ~found)
    padded = np.zeros((LANES, max(4, size)), np.uint8)
    padded[:, :size] = octets
    return padded.view(np.uint32)


def lost(w: Wave, step: Step, at: Array, lanes: Array) -> None:
    """Reports lanes whose bytes are in no buffer."""
    if lanes.any():
        first = int(np.flatnonzero(lanes)[0])
        w.group.report("bounds", w, step, f"lane {first}: {w.group.memory.describe(int(at[first]))}")


def _placed(value: Array, size: int, part: str, old: Array) -> Any:
    if part == "signed":
        top = np.uint32(1 << (8 * size - 1))
        return (value ^ top) - top
    if part == "low":
        return old & np.uint32(0xFFFF0000) | value
    return old & np.uint32(0xFFFF) | value << np.uint32(16)


def _to_lds(x: Instruction, where: list[Operand]) -> Step:
    size = {"dword": 4, "ushort": 2, "sshort": 2, "ubyte": 1, "sbyte": 1}[x.name.rpartition("_")[2]]
    if size != 4:
        raise Unsupported(f"LDS-DMA of less than a dword: `{x.text}`")
    target = Target(x, where)
    step = Step(x, "vmem", lambda w: None, target.mask | M0_BIT, 0, target.mask | M0_BIT, "none", counter="vm")

    def run(w: Wave) -> None:
        values = fetch(w, step, target, size)[:, 0]
        base = (w.s[M0] & 0xFFFF) + x.number("offset")
        lds = w.group.lds
        lanes = w.lanes & (base + 4 * np.arange(LANES) + 4 <= lds.size)
        if base % 4 or (w.lanes & ~lanes).any():
            w.group.report("bounds", w, step, f"LDS-DMA to byte {base:#x} of the block's {lds.size}")
        at = (base // 4 + np.arange(LANES))[lanes]
        access = Access(w, at, True, True, True, x.address)
        complaint = lds.begin(access)
        if complaint:
            w.group.report("race", w, step, complaint)
        lds.words[at] = values[lanes]
        lds.written_words[at] = 0x01010101
        issue_vm(w, Outstanding(0, x.address, accesses=(access,)))

    step.run = run
    return step


def _store(size: int, *, high: bool = False) -> Builder:
    def build(x: Instruction) -> Step:
        data, where = split(x)
        target, value = Target(x, where), data[0]
        mask = target.mask | value.mask
        step = Step(x, "vmem", lambda w: None, mask, 0, mask, "none", counter="vm")
        rows = slice(value.first, value.first + max(1, size // 4))

        def run(w: Wave) -> None:
            at, room = target.at(w)
            words = np.ascontiguousarray(w.v[rows].T) >> np.uint32(16 if high else 0)
            octets = words.view(np.uint8)[:, :size]
            whole = w.lanes & (room >= size)
            done = w.group.memory.scatter(at, whole, octets)
            for n in np.flatnonzero(w.lanes & (room < size) & (room >= 4)):
                inside = int(room[n]) // 4 * 4
                done[n] = w.group.memory.scatter(at[n : n + 1], np.ones(1, np.bool_), octets[n : n + 1, :inside])[0]
                whole[n] = True
            lost(w, step, at, whole & ~done)
            issue_vm(w, Outstanding(0, x.address))

        step.run = run
        return step

    return build


def _pair_add(dtype: Any) -> Callable[[Array, Array], Array]:
    def add(a: Array, b: Array) -> Array:
        one, two = a.view(dtype).astype(np.float32), b.view(dtype).astype(np.float32)
        total: Array = (one + two).astype(dtype).view(np.uint32)
        return total

    return add


def _atomic(f: Callable[[Array, Array], Array], size: int = 4) -> Builder:
    """Lane after lane: memory = f(memory, data); with sc0 the old value comes back."""

    def build(x: Instruction) -> Step:
        data, where = split(x)
        returns = "sc0" in x.modifiers
        target, value = Target(x, where), data[-1]
        writes = data[0].mask if returns else 0
        sinks = target.mask | value.mask
        flow: Flow = "load" if returns else "none"
        step = Step(x, "vmem", lambda w: None, sinks, writes, sinks, flow, counter="vm", loads=returns)
        step.dst = data[0] if returns else None
        words = size // 4

        def run(w: Wave) -> None:
            at, room = target.at(w)
            lanes = w.lanes & (room >= size)
            sent = np.ascontiguousarray(w.v[value.first : value.first + words].T)
            old, missing = np.zeros((LANES, words), np.uint32), np.zeros(LANES, np.bool_)
            for n in np.flatnonzero(lanes):
                one = slice(n, n + 1)
                octets, found = w.group.memory.gather(at[one], np.ones(1, np.bool_), size)
                old[n] = octets.view(np.uint32)[0]
                new = np.ascontiguousarray(f(old[n], sent[n]))
                w.group.memory.scatter(at[one], np.ones(1, np.bool_), new.view(np.uint8).reshape(1, size))
                missing[n] = not found[0]
            lost(w, step, at, missing)
            if returns:
                for k in range(words):
                    w.write(data[0].first + k, old[:, k])
            issue_vm(w, Outstanding(writes, x.address))

        step.run = run
        return step

    return build


def _scratch(size: int, *, stores: bool) -> Builder:
    """Private memory of a lane: a whole number of dwords at a fixed or scalar offset."""

    def build(x: Instruction) -> Step:
        found = operands_of(x)
        data = found[1] if stores else found[0]
        address, base = (found[0], found[2]) if stores else (found[1], found[2])
        if address.kind != "o":
            raise Unsupported(f"scratch memory at an offset of each lane: `{x.text}`")
        words, offset = size // 4, x.number("offset")
        reads = base.mask | (data.mask if stores else 0)
        flow: Flow = "none" if stores else "load"
        step = Step(
            x,
            "vmem",
            lambda w: None,
            reads,
            0 if stores else data.mask,
            base.mask,
            flow,
            counter="vm",
            loads=not stores,
        )

        def run(w: Wave) -> None:
            at = (offset + (w.s[base.first] if base.kind == "s" else 0)) // 4
            if at < 0 or at + words > len(w.scratch):
                w.group.report("bounds", w, step, f"scratch dword {at} of {len(w.scratch)}")
            else:
                for k in range(words):
                    if stores:
                        np.copyto(w.scratch[at + k], w.u[data.first + k], where=w.lanes)
                    else:
                        w.write(data.first + k, w.scratch[at + k])
            issue_vm(w, Outstanding(step.writes, x.address))

        step.run = run
        return step

    return build


def _maintenance(x: Instruction) -> Step:
    """Writes back or invalidates caches, of which there are none here."""
    return Step(x, "vmem", lambda w: issue_vm(w, Outstanding(0, x.address)), flow="none", counter="vm")


LOADS: Family = {
    "ubyte": _load(1),
    "sbyte": _load(1, part="signed"),
    "ushort": _load(2),
    "sshort": _load(2, part="signed"),
    "ubyte_d16": _load(1, part="low"),
    "ubyte_d16_hi": _load(1, part="high"),
    "short_d16": _load(2, part="low"),
    "short_d16_hi": _load(2, part="high"),
    "dword": _load(4),
    "dwordx2": _load(8),
    "dwordx3": _load(12),
    "dwordx4": _load(16),
}
STORES: Family = {
    "byte": _store(1),
    "byte_d16_hi": _store(1, high=True),
    "short": _store(2),
    "short_d16_hi": _store(2, high=True),
    "dword": _store(4),
    "dwordx2": _store(8),
    "dwordx3": _store(12),
    "dwordx4": _store(16),
}
ATOMICS: Family = {
    "add": _atomic(lambda a, b: a + b),
    "umax": _atomic(np.maximum),
    "umin": _atomic(np.minimum),
    "add_f32": _atomic(lambda a, b: (a.view(np.float32) + b.view(np.float32)).view(np.uint32)),
    "pk_add_f16": _atomic(_pair_add(np.float16)),
    "pk_add_bf16": _atomic(_pair_add(ml_dtypes.bfloat16)),
    "add_x2": _atomic(lambda a, b: (a.view(np.uint64) + b.view(np.uint64)).view(np.uint32), 8),
}
KINDS = ("global", "flat", "buffer")
MEMORY: Family = {
    **{f"{k}_load_{n}": b for k in KINDS for n, b in LOADS.items()},
    **{f"{k}_store_{n}": b for k in KINDS for n, b in STORES.items()},
    **{f"{k}_atomic_{n}": b for k in KINDS for n, b in ATOMICS.items()},
    "global_load_lds_dword": _load(4),
    **{f"scratch_load_dword{n}": _scratch(s, stores=False) for n, s in (("", 4), ("x2", 8), ("x3", 12), ("x4", 16))},
    **{f"scratch_store_dword{n}": _scratch(s, stores=True) for n, s in (("", 4), ("x2", 8), ("x3", 12), ("x4", 16))},
    "buffer_inv": _maintenance,
    "buffer_wbl2": _maintenance,
}
