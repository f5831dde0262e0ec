"""What the Hopper passes derive, through the CUDA printer and NVRTC: it fits its registers and keeps its schedule."""

import native_kit as kit
import pytest
from feature_specs import kernel

from tilec.backends.cuda import compile_program
from tilec.ir.nodes import Mma, walk
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline
from tilec.passes.specialize import Roles

WIDE = {"d": "d : 128", "scale": "scale 1 / sqrt(128)", "schedule": ""}
HALF = {"d": "d : 64", "scale": "scale 1 / 8", "schedule": ""}
CASES = {
    "causal, 128": (kit.FIXTURE, HopperOptions(), 128),
    "no mask, 128, one tile a block": (kernel(**WIDE), HopperOptions(roles=Roles(work="one")), 128),
    "window, 128": (kernel("mask k <= q and q - k < 1000", **WIDE), HopperOptions(), 128),
    "softcap, 64, three warpgroups": (
        kernel("score s = 30.0 * tanh(s / 30.0)", "mask k <= q", **HALF),
        HopperOptions(3, Pipeline(wait=0), Roles(stages=4)),
        112,
    ),
    "causal, 256, queries in shared memory": (
        kernel("mask k <= q", d="d : 256", scale="scale 1 / 16", schedule=""),
        HopperOptions(2, Pipeline(wait=20), Roles(queries="shared", turns=False)),
        80,
    ),
    "causal, 128, the next number first": (kit.FIXTURE, HopperOptions(roles=Roles(ahead="number")), 128),
    "causal, 128, the next scores first": (kit.FIXTURE, HopperOptions(roles=Roles(ahead="scores")), 128),
    "no mask, 64, three warpgroups, the next scores first": (
        kernel(**HALF),
        HopperOptions(3, Pipeline(wait=0), Roles(4, "shared", work="static", ahead="scores")),
        128,
    ),
    "causal, 256, the next scores first": (
        kernel("mask k <= q", d="d : 256", scale="scale 1 / 16", schedule=""),
        HopperOptions(2, Pipeline(wait=20), Roles(queries="shared", turns=False, ahead="scores")),
        80,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_derived_programs_compile_as_scheduled(case):
    text, options, keys = CASES[case]
    program = kit.after(text, options, keys)["place_buffers"]
    artifact = compile_program(program)
    (cubin,) = artifact.binaries.values()
    assert cubin.startswith(b"\x7fELF") and artifact.metadata["registers"] <= 168
    (source,) = (t for n, t in artifact.sources.items() if n.endswith(".cu"))
    products = [s for r in program.roles for s in walk(r.body) if isinstance(s, Mma)]
    assert source.count("// mma ") == len(products) > 0
