"""Kernels of waves from spec to machine code, and launches of that code in the emulator on inputs of the oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import ml_dtypes
import native_kit as kit
import numpy as np
from feature_specs import kernel

from tilec.arith.evaluate import evaluate
from tilec.backends.base import PROGRAM, Variant
from tilec.backends.hip import ALIGNED, BACKEND
from tilec.backends.hip.build import build
from tilec.backends.hip.emit import emit
from tilec.frontend import read_text
from tilec.ir.expr import Var
from tilec.ir.parse import parse_program
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify as compare
from tilec.targets.gfx942.codeobject import read
from tilec.targets.gfx942.emulator import Emulator
from tilec.targets.gfx942.emulator.emulator import Pointer

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i32": np.int32, "i64": np.int64}
DTYPES["bool"] = np.bool_
ONE = {"h": "h : 1"}


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


@cache
def lowered(text):
    """The program that is kept: of the first shape whose registers do not spill."""
    found = read_text(text)
    made = BACKEND.compile(found.kernels[0], "gfx942", found.schedule("f", "gfx942"), Variant((), ALIGNED))
    return parse_program(made.sources[PROGRAM])


@cache
def made(program, change=None, rounding="nearest"):
    """(what was printed, an emulator of its code object); `change`: of the printed text."""
    printed = emit(program, rounding)
    if change is not None:
        text = change(printed.text)
        assert text != printed.text
        printed = replace(printed, text=text)
    return printed, Emulator(read(build(printed.text, printed.function, "gfx942").code))


def case(program, text, sizes, style="normal"):
    """(inputs, contiguous arrays of every tensor with poisoned outputs, extents by name)."""
    attn, sizes = kit.attention(text), {"B": 1, **sizes}
    inputs = make_inputs(attn, sizes, 0, style)
    if attn.rng is not None:
        inputs[attn.rng] = np.array([kit.SEED, kit.OFFSET])
    env = {**sizes, **dict(program.tile)}
    for t in program.tensors:
        if t.name in inputs:
            env |= {d.name: n for d, n in zip(t.dims, inputs[t.name].shape, strict=True) if isinstance(d, Var)}
    dead = attn.index(attn.q).storage.kind != "dense"
    fill = {attn.output: 0.0 if dead else np.nan, attn.lse: -np.inf if dead else np.nan}
    arrays = {}
    for t in program.tensors:
        shape = tuple(int(evaluate(d, env)) for d in t.dims)
        x = np.asarray(inputs[t.name] if t.name in inputs else np.full(shape, fill[t.name]))
        arrays[t.name] = np.ascontiguousarray(x.astype(DTYPES[t.dtype]))
    return inputs, arrays, env


def among_nans(x, more=24):
    """The same values, in rows that go on with NaN."""
    whole = np.full((*x.shape[:-1], x.shape[-1] + more), np.nan, x.dtype)
    whole[..., : x.shape[-1]] = x
    return whole[..., : x.shape[-1]]


def run(printed, emulator, program, arrays, env, **options):
    """The emulator's run of all blocks."""
    values = {
        "pointer": lambda of, _: arrays[of] if arrays[of].base is None else Pointer(arrays[of].base, 0, of),
        "stride": lambda of, n: arrays[of].strides[n] // arrays[of].itemsize,
        "extent": lambda of, _: env[of],
    }
    args = [values[p.kind](p.of, p.dimension) for p in printed.parameters]
    blocks = int(evaluate(program.grid.ctas, env))
    return emulator.launch(printed.function, (blocks, 1, 1), (printed.threads, 1, 1), args, **options)


def launched(program, text, sizes, *, change=None, machine=lambda e: e, rounding="nearest", nans=False, **options):
    """(complaints of the oracle's rule, the emulator's run) on poisoned outputs; `machine`: of the emulator of the code; `nans`:
    behind the features of each row."""
    printed, emulator = made(program, change, rounding)
    inputs, arrays, env = case(program, text, sizes)
    if nans:
        arrays |= {n: among_nans(arrays[n]) for n in ("Q", "K", "V", "O")}
    done = run(printed, machine(emulator), program, arrays, env, **options)
    outputs = {t.name: arrays[t.name] for t in program.tensors if t.mode == "out"}
    found = compare(kit.attention(text), inputs, outputs, sizes={"B": 1, **sizes})
    return [str(r) for r in found.values() if not r.ok], done
