"""Where elements of a tile lie: over the lanes of a wave as MFMA has them, and in rows of shared memory with exchanged units.

`fragment(mma = m32n32k8, operand = A, run = 8)` and `xor(unit = 16, rows = 8, step = 1, fold = 1)` are layouts of the text form;
this says what they mean.  Source of the register maps: AMD Instinct MI300 ISA reference, section 7.1.4.2; AMD matrix instruction
calculator, cdna3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilec.ir.nodes import Layout

WAVE = 64
GROUP = 4  # rows of an accumulator that a lane has together, and elements of an operand in one instruction


@dataclass(frozen=True)
class Fragment:
    """`n` x `n` over `k` in one instruction; `run` neighbours along the contracted axis in a lane."""

    n: int
    k: int
    operand: str
    run: int

    @property
    def across(self) -> int:
        """Lanes that share a row of the queries."""
        return WAVE // self.n

    @property
    def held(self) -> int:
        """Elements of an accumulator that a lane has of one instruction."""
        return self.n * self.n // WAVE

    def row_of(self, lane: int, register: int) -> int:
        """Row of an accumulator's element (its column is lane % n); `register` counts on over the instructions down a tile."""
        tile, r = divmod(register, self.held)
        return tile * self.n + r // GROUP * GROUP * self.across + lane // self.n * GROUP + r % GROUP

    def depth_of(self, lane: int, item: int) -> int:
        """Position along the contracted axis of an operand's element (its row or column is lane % n); items count on over the
        instructions along it."""
        run, e = divmod(item, self.run)
        return (run * self.across + lane // self.n) * self.run + e


def fragment(layout: Layout | None) -> Fragment | None:
    """The fragment that a layout describes, or None for another layout."""
    if layout is None or layout.kind != "fragment":
        return None
    params = dict(layout.params)
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", str(params.get("mma")))
    if found is None or found[1] != found[2] or "run" not in params:
        return None
    return Fragment(int(found[1]), int(found[3]), str(params["operand"]), int(params["run"]))


@dataclass(frozen=True)
class Exchange:
    """Unit u of row r lies at place u ^ key(r): units of `unit` bytes, keys below `rows`."""

    unit: int
    rows: int
    step: int
    fold: int

    def key(self, row: int) -> int:
        """What the row's unit numbers are exchanged by."""
        up = row // self.step
        return up % self.rows ^ up // self.rows % self.fold


def exchange(layout: Layout | None) -> Exchange | None:
    """The exchange that a layout describes, or None for another layout."""
    if layout is None or layout.kind != "xor":
        return None
    p = {n: v for n, v in layout.params if isinstance(v, int)}
    return Exchange(p["unit"], p["rows"], p["step"], p["fold"])
