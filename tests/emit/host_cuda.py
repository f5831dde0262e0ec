"""Generated CUDA C++ of warps that copy and multiply for themselves, run on the CPU: `host_cuda.h` has what PTX has there.

The kernel's own text is compiled as it is, with the functions in front of it that are plain C++; the others, a line of PTX each,
are the header's."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from tilec.backends.cuda.prelude import FUNCTIONS
from tilec.ir.expr import show

HEADER = Path(__file__).with_name("host_cuda.h")
COMPILER = shutil.which("g++")
CTYPES = {"stride": ctypes.c_longlong, "extent": ctypes.c_int, "pointer": ctypes.c_void_p}
CPP = {"stride": "long long", "extent": "int"}


def library(printed, folder):
    """The kernel as a function of an array of pointers to arguments."""
    kernel = printed.text[printed.text.index('extern "C"') :]
    kernel = re.sub(r"extern __shared__[^;]*;", "", kernel).replace("(unsigned)__cvta_generic_to_shared(shared)", "0u")
    header = HEADER.read_text(encoding="utf-8")
    own = [t for n, t in FUNCTIONS.items() if t in printed.text and not re.search(rf"\b{n}\(", header)]
    types = re.search(rf" {printed.function}\((.*?)\) {{", kernel, re.S)[1].split(",")
    given = ", ".join(f"*({t.strip().rpartition(' ')[0]}*)a[{n}]" for n, t in enumerate(types))
    call = f"host::run(blocks, {printed.threads}, {printed.shared}, [=] {{ {printed.function}({given}); }});"
    run = f'extern "C" void run(int blocks, void** a) {{ {call} }}'
    source = folder / f"{printed.function}.cpp"
    source.write_text("\n".join([f'#include "{HEADER}"', *own, kernel, run]), encoding="utf-8")
    out = source.with_suffix(".so")
    command = [COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(out))


def run(program, printed, folder, arrays, extents):
    """Runs the kernel on NumPy arrays of the tensors' dtypes; outputs are written in place."""
    blocks = int(eval(show(program.grid.ctas), {"min": min, "max": max, **extents, **dict(program.tile)}))
    held = []
    for p in printed.parameters:
        match p.kind:
            case "pointer":
                value = arrays[p.of].ctypes.data
            case "stride":
                value = arrays[p.of].strides[p.dimension] // arrays[p.of].itemsize
            case _:
                value = extents[p.of]
        held.append(CTYPES[p.kind](value))
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(h) for h in held))
    library(printed, folder).run(blocks, pointers)


def typed(arrays, program, dtypes):
    """Arrays of the dtypes that tensors have in memory, contiguous."""
    return {t.name: np.ascontiguousarray(np.asarray(arrays[t.name]).astype(dtypes[t.dtype])) for t in program.tensors}
