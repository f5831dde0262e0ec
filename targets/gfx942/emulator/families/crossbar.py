"""Permutations of lanes through the LDS crossbar.  AMD Instinct MI300 ISA reference, ds_permute, ds_bpermute, ds_swizzle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilec.targets.gfx942.emulator.families import Family
from tilec.targets.gfx942.emulator.operands import Unsupported
from tilec.targets.gfx942.emulator.scoreboard import Outstanding, issue_lgkm
from tilec.targets.gfx942.emulator.step import Step, operands_of, union
from tilec.targets.gfx942.emulator.wave import LANES, Array, Wave
from tilec.targets.gfx942.listing import Instruction


def _gather(x: Instruction) -> Step:
    """ds_bpermute: each lane reads the lane that its address register names, in bytes."""
    dst, address, data = operands_of(x)
    where, what, first = address.first, data.first, dst.first
    reads = union(address, data)
    step = Step(x, "lds", lambda w: None, reads, dst.mask, address.mask, "lanes", dst=dst, counter="lgkm", loads=True)

    def takes(w: Wave) -> Array:
        lane: Array = (w.u[where] + np.uint32(x.number("offset")) >> np.uint32(2) & 63).astype(np.int64)
        return lane

    def run(w: Wave) -> None:
        lane = takes(w)
        w.write(first, w.u[what][lane] if w.full else np.where(w.lanes[lane], w.u[what][lane], np.uint32(0)))
        w.extra += 2
        issue_lgkm(w, Outstanding(dst.mask, x.address))

    step.run, step.takes = run, takes
    return step


def _send(x: Instruction) -> Step:
    """ds_permute: each lane writes to the lane that its address register names; the highest sender wins."""
    dst, address, data = operands_of(x)
    reads = union(address, data)
    step = Step(x, "lds", lambda w: None, reads, dst.mask, address.mask, "lanes", dst=dst, counter="lgkm", loads=True)

    def run(w: Wave) -> None:
        lane = (w.u[address.first] + np.uint32(x.number("offset")) >> np.uint32(2) & 63).astype(np.int64)
        out = np.zeros(LANES, np.uint32)
        out[lane[w.lanes]] = w.u[data.first][w.lanes]
        w.write(dst.first, out)
        w.extra += 2
        issue_lgkm(w, Outstanding(dst.mask, x.address))

    step.run = run
    return step


SWIZZLE = re.compile(r"swizzle\((\w+),\s*(.+)\)")


def swizzled(text: str) -> Any:
    """The lane that each lane reads, of ds_swizzle's offset as the disassembler writes it."""
    lane, found = np.arange(LANES), SWIZZLE.fullmatch(text)
    if found is None:
        raise Unsupported(f"swizzle `{text}`")
    mode, rest = found.groups()
    if mode == "SWAP":
        return lane ^ int(rest)
    if mode == "REVERSE":
        return lane ^ (int(rest) - 1)
    if mode == "QUAD_PERM":
        return lane // 4 * 4 + np.array([int(t) for t in rest.split(",")])[lane % 4]
    if mode == "BROADCAST":
        size, at = (int(t) for t in rest.split(","))
        return lane // size * size + at
    if mode == "BITMASK_PERM":
        bits = [c for c in rest if c in "01pi"]
        out = lane // 32 * 32
        for n, c in enumerate(reversed(bits)):
            bit = lane >> n & 1
            out = out | ({"0": 0 * bit, "1": 0 * bit + 1, "p": bit, "i": 1 - bit}[c] << n)
        return out
    raise Unsupported(f"swizzle `{text}`")


def _swizzle(x: Instruction) -> Step:
    dst, data = operands_of(x)
    take = swizzled(x.modifiers["offset"])

    def run(w: Wave) -> None:
        values = w.u[data.first][take]
        w.write(dst.first, values if w.full else np.where(w.lanes[take], values, np.uint32(0)))
        w.extra += 2
        issue_lgkm(w, Outstanding(dst.mask, x.address))

    step = Step(x, "lds", run, data.mask, dst.mask, flow="lanes", dst=dst, counter="lgkm", loads=True)
    step.takes = lambda w: take
    return step


CROSSBAR: Family = {
    "ds_bpermute_b32": _gather,
    "ds_permute_b32": _send,
    "ds_swizzle_b32": _swizzle,
}
