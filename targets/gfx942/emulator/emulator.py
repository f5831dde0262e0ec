"""Launches kernels of a code object on NumPy arrays.

    run = Emulator(read(data)).launch("attention", grid=(4, 8, 1), block=(512, 1, 1), args=[q, k, v, o, 1024])
    run.findings                 what is wrong with the code
    run.bank_cycles              LDS clocks by instruction
    run.executed                 instructions of all waves

Pointer arguments are arrays, read and written in place; None is a null pointer.  Registers, waits, barriers and LDS are as
the machine has them; time is not, and other blocks run before or after, never beside.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tilec.targets.gfx942.codeobject import PRELOADED_ENTRY, Argument, CodeObject, Kernel, waves_of
from tilec.targets.gfx942.emulator.decode import decode
from tilec.targets.gfx942.emulator.definedness import set_bits, set_lanes
from tilec.targets.gfx942.emulator.findings import Finding
from tilec.targets.gfx942.emulator.memory import Memory
from tilec.targets.gfx942.emulator.operands import EXEC
from tilec.targets.gfx942.emulator.wave import ALL, LANES, POISON, Array, Wave, mask_of
from tilec.targets.gfx942.emulator.workgroup import Block, Code, Log, Workgroup
from tilec.targets.gfx942.listing import Instruction, Listing, disassemble, parse

CODE_BASE = 0x10000000
LIMIT = 5_000_000  # instructions of a wave
LDS_MOST = 65536
SIMDS = 4
XCCS = 8


@dataclass(frozen=True)
class Pointer:
    """A pointer argument that is not to an array's first byte.  `name` is the buffer's in findings."""

    array: Array
    offset: int = 0  # bytes
    name: str = ""


Value = Array | Pointer | int | float | bytes | None


@dataclass(frozen=True)
class BankCycles:
    """LDS accesses of one instruction: clocks they take, and would without conflicts."""

    instruction: Instruction
    times: int
    cycles: int
    ideal: int


@dataclass(frozen=True)
class Run:
    """What a launch did.  `trace[block, wave]`: (number of the instruction, LDS clocks or whether a branch was taken).
    `resident`: blocks that a compute unit has registers, wave slots and LDS for."""

    listing: Listing
    findings: tuple[Finding, ...]
    bank_cycles: tuple[BankCycles, ...]
    executed: int
    trace: dict[tuple[Block, int], list[tuple[int, int]]] = field(default_factory=dict)
    resident: int = 1

    @property
    def ok(self) -> bool:
        return not self.findings


class BadArguments(Exception):
    """The arguments do not fit the kernel's; the message says which."""


class Emulator:
    """A code object, decoded once.  `listing` stands for its disassembly where that was edited."""

    def __init__(self, code: CodeObject, listing: Listing | None = None) -> None:
        self.code = code
        self.listing = parse(disassemble(code.data)) if listing is None else listing

    @cached_property
    def _code(self) -> Code:
        return Code(decode(self.listing), self.listing.at, CODE_BASE)

    def launch(
        self,
        kernel: str,
        grid: Block,
        block: Block,
        args: Sequence[Value],
        *,
        lds: int = 0,
        order_seed: int | None = None,
        only_blocks: Iterable[Block] | None = None,
        trace: bool = False,
        limit: int = LIMIT,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Run:
        """Runs a kernel.  `grid` is in blocks, `block` in threads, `lds` bytes of dynamic LDS beside the kernel's own.

        `only_blocks`: these alone.  `progress` is told how many blocks are done.  Raises BadArguments, and Unsupported for an
        instruction that the emulator does not know."""
        k = self.code.kernels[kernel]
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= k.most_threads:
            raise BadArguments(f"{threads} threads of a block: `{kernel}` takes up to {k.most_threads}")
        if k.lds + lds > LDS_MOST:
            raise BadArguments(f"{k.lds + lds} bytes of LDS of {LDS_MOST}")
        memory = Memory()
        memory.place("code", np.frombuffer(self.code.image, np.uint8), writable=False, base=CODE_BASE)
        packed = _pack(k, args, memory, grid, block)
        packet = memory.place("dispatch packet", _packet(grid, block, k, k.lds + lds), writable=False)
        where = memory.place("kernel arguments", packed, writable=False)
        log = Log()
        every = ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))
        for done, place in enumerate(every if only_blocks is None else only_blocks):
            progress(done)
            linear = place[0] + grid[0] * (place[1] + grid[1] * place[2])
            group = Workgroup(self._code, memory, k.lds + lds, place, linear % XCCS, log)

            def begin(w: Wave, place: Block = place) -> None:
                self._set_up(w, k, place, block, where, packet, packed)

            with np.errstate(all="ignore"):
                group.run(-(-threads // LANES), begin, order_seed, limit, trace=trace)
        banks = tuple(
            BankCycles(self.listing.instructions[self.listing.at[a]], *row) for a, row in sorted(log.banks.items())
        )
        return Run(
            self.listing,
            tuple(log.findings.values()),
            banks,
            log.executed,
            log.traces,
            resident(k, threads, k.lds + lds),
        )

    def _set_up(self, w: Wave, k: Kernel, place: Block, block: Block, args: int, packet: int, packed: Array) -> None:
        """Initial registers (LLVM, "User Guide for AMDGPU Backend", Initial Kernel Execution State)."""
        known = {"kernarg": args, "dispatch_ptr": packet, "private_segment_size": k.scratch}
        at = 0

        def put(value: int) -> None:
            nonlocal at
            w.put(at, value)
            set_bits(w, at, 0)
            at += 1

        for name in k.user_sgprs:
            what, _, word = name.partition(".")
            put(known.get(what, 0) >> (32 * int(word)))
        first, count = k.preload
        for n in range(first, first + count):
            put(int.from_bytes(packed[4 * n : 4 * n + 4].tobytes(), "little"))
        for wanted, number in zip(k.group_ids, place, strict=True):
            if wanted:
                put(number)
        if k.group_info:
            put(0)
        if k.scratch_offset:
            put(0)
        for n in (EXEC, EXEC + 1):
            set_bits(w, n, 0)
        thread = w.number * LANES + np.arange(LANES)
        x, y, z = thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])
        w.u[0][...] = x | y << 10 | z << 20
        set_lanes(w, 0, 0)
        live = mask_of(thread < block[0] * block[1] * block[2])
        w.set_exec(live & ALL)
        w.scratch = np.full((k.scratch // 4, LANES), POISON, np.uint32)
        w.pc = self.listing.at[k.entry + (PRELOADED_ENTRY if count else 0)]


def resident(k: Kernel, threads: int, lds: int) -> int:
    """Blocks of a kernel that fit a compute unit beside each other, at least one."""
    needed = waves_of(k.vgprs)
    blocks = SIMDS * needed // -(-threads // LANES)
    return max(1, min(blocks, LDS_MOST // lds if lds else blocks))


def spread(blocks: int, most: int) -> list[int]:
    """Numbers of at most `most` blocks, evenly spread, with the first and the last among them."""
    if blocks <= most:
        return list(range(blocks))
    return [n * (blocks - 1) // (most - 1) for n in range(most)] if most > 1 else [0]


def _pack(k: Kernel, args: Sequence[Value], memory: Memory, grid: Block, block: Block) -> Array:
    """The kernel arguments' bytes; arrays get addresses."""
    explicit = [a for a in k.arguments if not a.kind.startswith("hidden_")]
    if len(explicit) != len(args):
        raise BadArguments(f"`{k.name}` takes {len(explicit)} arguments, not {len(args)}")
    out = np.zeros((k.kernarg_size + 15) // 16 * 16, np.uint8)
    for n, (a, value) in enumerate(zip(explicit, args, strict=True)):
        name = a.name or f"argument {n}"
        if isinstance(value, np.ndarray):
            value = Pointer(value)
        if isinstance(value, Pointer):
            value = memory.place(value.name or name, value.array) + value.offset
        data = _bytes(name, a, value)
        out[a.offset : a.offset + a.size] = np.frombuffer(data, np.uint8)
    hidden: dict[str, int] = {}
    for n, axis in enumerate("xyz"):
        hidden |= {f"hidden_block_count_{axis}": grid[n], f"hidden_group_size_{axis}": block[n]}
    hidden["hidden_grid_dims"] = 3
    for a in k.arguments:
        if a.kind.startswith("hidden_"):
            said = hidden.get(a.kind, 0).to_bytes(8, "little")[: a.size].ljust(a.size, b"\0")
            out[a.offset : a.offset + a.size] = np.frombuffer(said, np.uint8)
    return out


def _bytes(name: str, a: Argument, value: int | float | bytes | None) -> bytes:
    if value is None:
        return bytes(a.size)
    if isinstance(value, float):
        return struct.pack("<f" if a.size == 4 else "<d", value)
    if isinstance(value, int):
        return (value & (1 << 8 * a.size) - 1).to_bytes(a.size, "little")
    if len(value) != a.size:
        raise BadArguments(f"{name}: {len(value)} bytes of {a.size}")
    return value


def _packet(grid: Block, block: Block, k: Kernel, lds: int) -> Array:
    """The dispatch packet of the HSA runtime specification, as far as kernels read it."""
    items = [g * b for g, b in zip(grid, block, strict=True)]
    data = struct.pack("<HHHHHHIIIIIQQQQ", 0, 3, *block, 0, *items, k.scratch, lds, 0, 0, 0, 0)
    return np.frombuffer(data, np.uint8)
