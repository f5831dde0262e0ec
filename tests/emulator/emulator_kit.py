"""Small HIP kernels compiled for gfx942, code objects edited an instruction at a time, and launches of both."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tilec.targets.gfx942.codeobject import read
from tilec.targets.gfx942.emulator import Emulator
from tilec.targets.gfx942.listing import Listing, disassembler, read_instruction

KERNELS = Path(__file__).parent / "kernels"
COMPILER = next((p for v in (19, 20, 21) if (p := shutil.which(f"clang++-{v}"))), None)
FLAGS = ["--offload-arch=gfx942", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"]
FLAGS += ["-O3", "-std=c++20"]
MISSING = COMPILER is None or disassembler() is None
needs_clang = pytest.mark.skipif(MISSING, reason="no clang and llvm-objdump of LLVM 19 or later")


@cache
def compiled(source, *flags):
    """An emulator of a source text, or of a file in `kernels`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.hip")
        path.write_text((KERNELS / source).read_text() if source.endswith(".hip") else source)
        out = Path(folder, "kernel.hsaco")
        command = [COMPILER, "-x", "hip", *FLAGS, f"-I{KERNELS}", *flags, str(path), "-o", str(out)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return Emulator(read(out.read_bytes()))


def edited(emulator, change):
    """The same code with instructions changed: `change(instruction)` gives a new text, or None to leave it."""
    out = []
    for x in emulator.listing.instructions:
        text = change(x)
        out.append(x if text is None else read_instruction(text, x.address, x.size))
    return Emulator(emulator.code, Listing(tuple(out)))


def without(emulator, name, nth=0):
    """The code with the nth instruction of a name made a no-op."""
    found = [x for x in emulator.listing.instructions if x.name == name]
    return edited(emulator, lambda x: "s_nop 0" if x is found[nth] else None)


def kinds(run):
    return {f.kind for f in run.findings}


class Attention:
    """Inputs, a launch and the float64 result of `kernels/attention.hip`."""

    def __init__(self, rows, keys, seed=0):
        import ml_dtypes

        rng = np.random.default_rng(seed)
        self.bf16 = ml_dtypes.bfloat16
        self.q, self.k, self.v = (rng.standard_normal((n, 128)).astype(self.bf16) for n in (rows, keys, keys))
        self.o, self.lse = np.full((rows, 128), np.nan, self.bf16), np.full(rows, np.nan, np.float32)
        self.rows, self.keys = rows, keys

    def launch(self, emulator, **options):
        scale = float(np.log2(np.e) / np.sqrt(128))
        args = [self.q, self.k, self.v, self.o, self.lse, self.rows, self.keys, scale]
        return emulator.launch("attention", (-(-self.rows // 256), 1, 1), (512, 1, 1), args, **options)

    def errors(self):
        """(greatest error of O, of the LSE)."""
        q, k, v = (x.astype(np.float64) for x in (self.q, self.k, self.v))
        s = q @ k.T / np.sqrt(128)
        top = s.max(axis=1, keepdims=True)
        p = np.exp(s - top)
        exact = p @ v / p.sum(axis=1, keepdims=True)
        lse = np.log(p.sum(axis=1)) + top[:, 0]
        return np.abs(self.o.astype(np.float64) - exact).max(), np.abs(self.lse - lse).max()
