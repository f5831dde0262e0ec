"""Device memory: named buffers in one address space with wide gaps between them, so that a stray access meets nothing."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from tilec.targets.gfx942.emulator.wave import Array

BASE = 0x7F0000000000
GAP = 1 << 32  # bytes, more than a 32-bit offset reaches


@dataclass(frozen=True)
class Buffer:
    """`data` is a view of the caller's bytes: stores go there."""

    name: str
    base: int
    data: Array
    writable: bool


class Memory:
    """Buffers by address.  Loads from nowhere give zeros, stores to nowhere are dropped; both are told to the caller."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.bases: list[int] = []

    def place(self, name: str, array: Array, *, writable: bool = True, base: int | None = None) -> int:
        """Gives an array an address, and returns it; the same memory again has the same address.

        Any shape, strides that reach every byte once; ValueError else."""
        data = _flat(array)
        for known in self.buffers:
            if known.data.ctypes.data == data.ctypes.data and len(known.data) == len(data) and len(data):
                return known.base
        if base is None:
            base = BASE + GAP * (len(self.buffers) + 1)
        buffer = Buffer(name, base, data, writable)
        at = bisect_right(self.bases, base)
        self.buffers.insert(at, buffer)
        self.bases.insert(at, base)
        return base

    def find(self, address: int) -> Buffer | None:
        """The buffer that holds an address."""
        at = bisect_right(self.bases, address) - 1
        if at < 0:
            return None
        found = self.buffers[at]
        return found if address < found.base + len(found.data) else None

    def gather(self, addresses: Array, lanes: Array, size: int) -> tuple[Array, Array]:
        """`size` bytes at the addresses (uint64) of the lanes that are true: bytes [64, size], and which lanes found them."""
        out, found = np.zeros((len(addresses), size), np.uint8), np.zeros(len(addresses), np.bool_)
        for buffer, where in self._split(addresses, lanes, size):
            at = (addresses[where] - np.uint64(buffer.base)).astype(np.int64)
            out[where] = buffer.data[at[:, None] + np.arange(size)]
            found[where] = True
        return out, found

    def scatter(self, addresses: Array, lanes: Array, values: Array) -> Array:
        """Stores bytes [64, size] of the lanes that are true; returns which lanes were stored."""
        size, found = values.shape[1], np.zeros(len(addresses), np.bool_)
        for buffer, where in self._split(addresses, lanes, size):
            if buffer.writable:
                at = (addresses[where] - np.uint64(buffer.base)).astype(np.int64)
                buffer.data[at[:, None] + np.arange(size)] = values[where]
                found[where] = True
        return found

    def _split(self, addresses: Array, lanes: Array, size: int) -> list[tuple[Buffer, Array]]:
        """The lanes by the buffer that holds all their bytes."""
        out, left = [], np.array(lanes)
        while left.any():
            first = int(addresses[left][0])
            buffer = self.find(first)
            if buffer is None:
                left[left & (addresses == np.uint64(first))] = False
                continue
            base, end = np.uint64(buffer.base), buffer.base + len(buffer.data) - size
            if end < buffer.base:
                left[left & (addresses == np.uint64(first))] = False
                continue
            inside = left & (addresses >= base) & (addresses <= np.uint64(end))
            if inside.any():
                out.append((buffer, inside))
            left &= ~inside & (addresses != np.uint64(first))
        return out

    def describe(self, address: int) -> str:
        """An address in words: where it lies from the buffer nearest to it."""
        at = bisect_right(self.bases, address)
        near = min(self.buffers[max(0, at - 1) : at + 1], key=lambda b: abs(address - b.base))
        how = "" if near.writable else ", which is read-only"
        return (
            f"address {address:#x} is byte {address - near.base} of buffer `{near.name}` of {len(near.data)} bytes{how}"
        )

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes at one address; None where not all of them are in one buffer."""
        buffer = self.find(address)
        if buffer is None or address + size > buffer.base + len(buffer.data):
            return None
        return buffer.data[address - buffer.base : address - buffer.base + size].tobytes()


def _flat(array: Array) -> Array:
    """The array's bytes in the order of memory, as a view."""
    order = np.argsort(
        [-abs(s) if n > 1 else 0 for s, n in zip(array.strides, array.shape, strict=True)], kind="stable"
    )
    view = array.transpose(order) if array.ndim else array
    if not view.flags.c_contiguous:
        raise ValueError("an array with gaps cannot be a buffer: pass the array that holds its memory")
    return view.reshape(-1).view(np.uint8)
