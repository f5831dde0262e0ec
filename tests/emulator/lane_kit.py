"""One instruction on one wave, with no kernel around it."""

import numpy as np

from tilec.targets.gfx942.emulator.decode import decode_one
from tilec.targets.gfx942.emulator.findings import Finding
from tilec.targets.gfx942.emulator.memory import Memory
from tilec.targets.gfx942.emulator.operands import operand
from tilec.targets.gfx942.emulator.wave import Wave, mask_of
from tilec.targets.gfx942.emulator.workgroup import Code, Log, Workgroup
from tilec.targets.gfx942.listing import Listing, read_instruction


class Lane:
    """A wave whose registers are set and read by name: `v3` 64 numbers, `s4` or `vcc` one."""

    def __init__(self, lds=0, waves=1):
        self.memory, self.log = Memory(), Log()
        self.group = Workgroup(Code([], {}, 0), self.memory, lds, (0, 0, 0), 0, self.log)
        self.group.waves = [Wave(self.group, n) for n in range(waves)]
        self.wave = self.group.waves[0]

    def set(self, **values):
        for name, value in values.items():
            x = operand(name)
            if x.vector:
                self.wave.u[x.first][...] = np.asarray(value).view(np.uint32) if np.ndim(value) else bits(value)
            elif x.count == 2:
                self.wave.put64(x.first, value)
            else:
                self.wave.put(x.first, value)
        return self

    def exec(self, lanes):
        self.wave.set_exec(mask_of(np.asarray(lanes, bool)))
        return self

    def run(self, *texts, wave=0):
        w = self.group.waves[wave]
        with np.errstate(all="ignore"):
            for n, t in enumerate(texts):
                decode_one(read_instruction(t, 4 * n)).run(w)
        return self

    def vector(self, number, dtype=np.uint32):
        return self.wave.u[number].view(dtype).copy()


def bits(value):
    if isinstance(value, float):
        return np.float32(value).view(np.uint32)
    return np.uint32(value & 0xFFFFFFFF)


def listing_of(*texts):
    """A program from its lines, 4 bytes each."""
    return Listing(tuple(read_instruction(t, 4 * n) for n, t in enumerate(texts)))


def program(
    *texts, waves=1, lds=0, memory=None, set_up=lambda w: None, seed=None, known=True, limit=10_000, trace=False
):
    """Runs lines of assembly as a workgroup; every register counts as written where `known`.  Returns (group, log)."""
    from tilec.targets.gfx942.emulator.decode import decode

    listing, log = listing_of(*texts), Log()
    group = Workgroup(Code(decode(listing), listing.at, 0), memory or Memory(), lds, (0, 0, 0), 0, log)

    def begin(w):
        if known:
            w.undefined = [0] * len(w.undefined)
            w.undefined_bits = [0] * len(w.undefined_bits)
            w.unknown = 0
        w.v[...] = 0
        w.s[:102] = [0] * 102
        set_up(w)

    with np.errstate(all="ignore"):
        group.run(waves, begin, seed, limit, trace=trace)
    return group, log


def found(log):
    """(kind, text) of the findings."""
    assert all(isinstance(f, Finding) for f in log.findings.values())
    return sorted((f.kind, f.text) for f in log.findings.values())
