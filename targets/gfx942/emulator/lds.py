"""A workgroup's LDS: bytes, which of them were written, and who touched what since the last barrier.

The rule of the race check: two accesses of one byte by different waves, one of them a write, need a barrier between
them, and the earlier one must be complete before its wave arrives there.  A barrier joins every wave of the workgroup,
so only accesses since the last barrier count, and those that were still under way at it.  Atomics do not race with each
other.  Two writes of the same values are no race: compilers let waves that hold the same part of a tile all store it.
LDS-DMA is a write that its own wave, too, must wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilec.targets.gfx942.emulator.wave import Array

if TYPE_CHECKING:
    from tilec.targets.gfx942.emulator.wave import Wave

ATOMIC = 255  # what marks bytes that atomics write, of whatever waves


@dataclass(eq=False)
class Access:
    """Bytes that one instruction of a wave touches: numbers of dwords where `words`, else of bytes."""

    wave: Wave
    at: Array
    words: bool
    writes: bool
    dma: bool
    address: int
    atomic: bool = False


class Lds:
    """Marks are kept a byte: the wave (from 1) that wrote it and a bit for each that read it, since the last barrier."""

    def __init__(self, size: int) -> None:
        self.size = size
        held = (size + 15) // 16 * 16
        self.data = np.zeros(held, np.uint8)
        self.words = self.data.view(np.uint32)
        self.written = np.zeros(held, np.uint8)  # ever
        self.written_words = self.written.view(np.uint32)
        self.writer = np.zeros(held, np.uint8)
        self.writer_words = self.writer.view(np.uint32)
        self.readers = np.zeros(held, np.uint16)
        self.readers_words = self.readers.view(np.uint64)
        self.arriving = np.zeros(held, np.uint8)  # by DMA under way: the wave that issued it
        self.arriving_any = 0
        self.marked_by: dict[int, int] = {}  # wave number -> address of its last write

    def begin(self, access: Access, values: Array | None = None) -> str:
        """Marks an access, of a write before it changes the bytes; returns the complaint of the race it makes, or nothing."""
        complaint = self._mark(access, values)
        if self.arriving_any and not complaint:
            own = self._bytes(access)
            if (self.arriving[own] == access.wave.number + 1).any():
                complaint = "LDS bytes that this wave's own DMA is still writing: no vmcnt wait"
        if access.dma:
            self.arriving[self._bytes(access)] = access.wave.number + 1
            self.arriving_any += 1
            complaint = complaint or self._overtakes(access)
        return complaint

    def finish(self, access: Access) -> None:
        """The access is complete: its wave has waited for it."""
        if access.dma:
            self.arriving[self._bytes(access)] = 0
            self.arriving_any -= 1

    def barrier(self, under_way: list[Access]) -> list[tuple[Access, str]]:
        """All waves have met: forgets what is complete.  Returns the races among what is not."""
        self.writer.fill(0)
        self.readers.fill(0)
        return [(a, c) for a in under_way if (c := self._mark(a))]

    def _mark(self, access: Access, values: Array | None = None) -> str:
        mine, at = ATOMIC if access.atomic else access.wave.number + 1, access.at
        own = 1 << access.wave.number
        writers, read_by = self._marks(access)
        writer, readers = writers[at], read_by[at]
        times = 4 if access.words else 1
        all_mine = writers.dtype.type(int.from_bytes(bytes([mine]) * times, "little"))
        bits = read_by.dtype.type(int.from_bytes(own.to_bytes(2, "little") * times, "little"))
        bad_writer = (writer != 0) & (writer != all_mine)
        if access.atomic:
            bad_writer &= writer != access.wave.number + 1
        if access.words and bad_writer.any() and not self._others_wrote(access):
            bad_writer[...] = False
        complaint = ""
        if values is not None and bad_writer.any():
            bad_writer &= (self.words if access.words else self.data)[at] != values
        if bad_writer.any():
            complaint = self._tell(access, int(np.argmax(bad_writer.reshape(-1))), "written")
        elif access.writes and (readers & ~bits).any():
            complaint = self._tell(access, int(np.argmax((readers & ~bits).reshape(-1) != 0)), "read")
        if access.writes:
            writers[at] = all_mine
            self.marked_by[access.wave.number] = access.address
        else:
            read_by[at] = readers | bits
        return complaint

    def _marks(self, access: Access) -> tuple[Array, Array]:
        """(writer, readers) by dword or by byte, as the access counts."""
        return (self.writer_words, self.readers_words) if access.words else (self.writer, self.readers)

    def _others_wrote(self, access: Access) -> bool:
        writer = self.writer[self._bytes(access)]
        return bool(((writer != 0) & (writer != access.wave.number + 1)).any())

    def _tell(self, access: Access, where: int, what: str) -> str:
        byte = int(access.at.reshape(-1)[where]) * (4 if access.words else 1)
        span = slice(byte, byte + (4 if access.words else 1))
        if what == "written":
            others = [int(n) - 1 for n in self.writer[span] if n not in (0, access.wave.number + 1)]
            by = "an atomic of another wave"
            if others and others[0] != ATOMIC - 1:
                by = f"wave {others[0]} (last write at {self.marked_by.get(others[0], 0):#x})"
        else:
            seen = int(np.bitwise_or.reduce(self.readers[span])) & ~(1 << access.wave.number)
            by = f"wave {(seen & -seen).bit_length() - 1}"
        does = "writes" if access.writes else "reads"
        return f"{does} LDS byte {byte:#x}, {what} by {by}, with no barrier between"

    def _bytes(self, access: Access) -> Array:
        if not access.words:
            return access.at.reshape(-1)
        return (access.at.reshape(-1)[:, None] * 4 + np.arange(4)).reshape(-1)

    def _overtakes(self, access: Access) -> str:
        own = self._bytes(access)
        for other in (a for entry in access.wave.lgkm for a in entry.accesses):
            if np.intersect1d(own, self._bytes(other)).size:
                return f"DMA to LDS bytes that `{other.address:#x}` of the same wave may still touch: no lgkmcnt wait"
        return ""
