"""Generated HIP C++ run on the CPU: `host_hip.h` has what the machine has there.

The kernel's own text is compiled as it is, with the functions in front of it that are plain C++; the others are the header's."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np

from tilec.backends.hip.build import compiler
from tilec.backends.hip.prelude import FUNCTIONS, PACK_BF16
from tilec.ir.expr import show

HEADER = Path(__file__).with_name("host_hip.h")
CTYPES = {"stride": ctypes.c_longlong, "extent": ctypes.c_int, "pointer": ctypes.c_void_p}
BUILTINS = {"workitem_id_x": "workitem", "workgroup_id_x": "workgroup", "perm": "permute"}


def library(printed, folder):
    """The kernel as a function of an array of pointers to arguments."""
    kernel = printed.text[printed.text.rindex("KERNEL(") :]
    kernel = re.sub(r"__attribute__\(\(shared\)\) static[^;]*;", "", kernel).replace(
        "(SHARED char*)shared", "host::memory.data()"
    )
    header = HEADER.read_text(encoding="utf-8")
    texts = [(n, t) for n, t in FUNCTIONS.items() if n != "pack_bf16"] + [("pack_bf16", t) for t in PACK_BF16.values()]
    own = [t for n, t in texts if t in printed.text and not re.search(rf"\b{n}\(", header) and n != "buffer"]
    types = re.search(rf" {printed.function}\((.*?)\) {{", kernel, re.S)[1].replace("__restrict__", "").split(",")
    given = ", ".join(f"*({t.strip().rpartition(' ')[0]}*)a[{n}]" for n, t in enumerate(types))
    call = f"host::run(blocks, {printed.threads}, {printed.shared}, [=] {{ {printed.function}({given}); }});"
    run = f'extern "C" void run(int blocks, void** a) {{ {call} }}'
    text = "\n".join([f'#include "{HEADER}"', *own, kernel, run])
    for name, ours in BUILTINS.items():
        text = text.replace(f"__builtin_amdgcn_{name}(", f"{ours}(")
    source = folder / f"{printed.function}.cpp"
    source.write_text(text, encoding="utf-8")
    out = source.with_suffix(".so")
    command = [compiler()[0], "-std=c++20", "-O2", "-w", "-shared", "-fPIC", str(source), "-o", str(out)]
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
