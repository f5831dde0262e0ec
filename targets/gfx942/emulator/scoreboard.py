"""Outstanding memory operations of a wave, by the counters that `s_waitcnt` names.

vmcnt counts vector memory (LDS-DMA too) and lgkmcnt LDS and scalar memory.  Each falls in the order of issue, but that
scalar loads return in any order: with one under way, only lgkmcnt(0) says anything (AMD Instinct MI300 ISA reference,
"Data dependency resolution").  At most 63 and 15 are outstanding: the hardware waits before it issues one more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tilec.targets.gfx942.emulator.lds import Access
from tilec.targets.gfx942.emulator.wave import Wave

MOST_VM, MOST_LGKM = 63, 15


@dataclass(eq=False)
class Outstanding:
    """`registers`: the set that it will write; `accesses`: what it does to LDS."""

    registers: int
    address: int
    scalar: bool = False
    accesses: tuple[Access, ...] = ()


def issue_vm(w: Wave, entry: Outstanding) -> None:
    """A vector memory operation begins."""
    w.vm.append(entry)
    w.pending |= entry.registers
    if len(w.vm) > MOST_VM:
        _retire(w, w.vm, MOST_VM)


def issue_lgkm(w: Wave, entry: Outstanding) -> None:
    """An LDS or scalar memory operation begins."""
    w.lgkm.append(entry)
    w.pending |= entry.registers
    if len(w.lgkm) > MOST_LGKM and not any(e.scalar for e in w.lgkm):
        _retire(w, w.lgkm, MOST_LGKM)


def wait(w: Wave, vm: int, lgkm: int) -> None:
    """`s_waitcnt`: at most so many of each stay outstanding."""
    if len(w.vm) > vm:
        _retire(w, w.vm, vm)
    if len(w.lgkm) > lgkm and (lgkm == 0 or not any(e.scalar for e in w.lgkm)):
        _retire(w, w.lgkm, lgkm)


def _retire(w: Wave, queue: deque[Outstanding], keep: int) -> None:
    while len(queue) > keep:
        entry = queue.popleft()
        for access in entry.accesses:
            w.group.lds.finish(access)
    left = 0
    for e in w.vm:
        left |= e.registers
    for e in w.lgkm:
        left |= e.registers
    w.pending = left


def blocking(w: Wave, touched: int) -> Outstanding | None:
    """The oldest outstanding operation that writes a register of the set."""
    return next((e for q in (w.vm, w.lgkm) for e in q if e.registers & touched), None)
