"""Kernels whose warps copy and multiply for themselves: through NVRTC for their targets, and run on the CPU."""

import host_cuda
import ml_dtypes
import native_kit as kit
import numpy as np
import pytest
from feature_specs import CAUSAL, kernel

from tilec.ampere import WarpOptions
from tilec.arith.evaluate import evaluate
from tilec.backends.base import Artifact, Variant
from tilec.backends.cuda import ALIGNED, BACKEND, compile_program
from tilec.backends.cuda.emit import emit
from tilec.dsl.faults import Faults, ScheduleFault, TargetFault
from tilec.frontend import read_text
from tilec.ir.parse import parse_program
from tilec.ir.verify import verify
from tilec.native import lower_native
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify as compare
from tilec.passes.stage_copies import Staging

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i32": np.int32, "bool": np.bool_}


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


def lowered(text, target="sm80"):
    read = read_text(text)
    return lower_native(read.kernels[0], target, read.schedule("f", target))


BIAS = ("bias Bt[b, h, q, k] : f32", "score s = s + Bt[b, h, q, k]")
SHAPES = {
    "64, causal": (spec(CAUSAL, d=64), "sm80", (128, 96)),
    "128, causal, groups of 4": (spec(CAUSAL, h="h : 8", head="h // 4"), "sm80", (128, 64)),
    "128, no mask, f16": (spec(dtype="f16"), "sm89", (64, 64)),
    "256": (spec(CAUSAL, d=256), "sm80", (64, 64)),
    "256, in 99 KB": (spec(d=256), "sm89", (64, 64)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_kernel_compiles_at_this_shape(name):
    text, target, shape = SHAPES[name]
    read = read_text(text)
    made = BACKEND.compile(read.kernels[0], target, read.schedule("f", target), Variant((), ALIGNED))
    assert tuple(made.metadata["tile"][n] for n in ("TQ", "TK")) == shape
    blocks = 65536 // (made.metadata["threads"] * 256)
    (source,) = (t for n, t in made.sources.items() if n.endswith(".cu"))
    assert f"__launch_bounds__({made.metadata['threads']}, {blocks})" in source
    assert made.metadata["registers"] <= 255
    (cubin,) = made.binaries.values()
    assert cubin.startswith(b"\x7fELF") and Artifact.from_files(made.to_files()) == made
    verify(parse_program(made.sources["program.tile_ir"]), proofs=False)


def test_machine_code_for_a_later_machine():
    text = spec("mask k <= q", d=32, schedule="schedule f on sm80 { tile q = 64, k = 32 }")
    early, late = (compile_program(lowered(text), arch=a) for a in (None, "sm_90"))
    assert early.sources == late.sources and early.binaries != late.binaries


LINES = {
    "tile q = 64, k = 32": (64, 32),
    "tile q = 128": (128, 64),
    "tune k in {16, 32}": (128, 32),
    "warps split_q(8)": (128, 64),
    "warps split_q(4)  tile q = 64": (64, 64),
    "stages 2": (128, 64),
    "map persistent": (128, 64),
    "map linear  skip none  rescale delayed  order q  overlap off": (128, 64),
}


@pytest.mark.parametrize("lines", LINES)
def test_a_line_is_honoured(lines):
    program = lowered(spec(CAUSAL, schedule=f"schedule f on sm80 {{ {lines} }}"))
    assert tuple(dict(program.tile)[n] for n in ("TQ", "TK")) == LINES[lines]
    keys = next(b for b in program.buffers if b.name == "sK")
    assert keys.stages == (2 if "stages 2" in lines else 1)
    assert ("persistent" in program.grid.order) == ("persistent" in lines)


REFUSED_LINES = [
    ("tile q = 96", "E0812", "16 or 32 rows"),
    ("tile q = 48", "E0812", "16 or 32 rows"),
    ("tile d = 64", "E0805", None),
    ("stages 3", "E0808", None),
    ("warps split_q(3)", "E0810", None),
    ("warps split_q(8)  tile q = 64", "E0812", "16 or 32 rows"),
    ("overlap on", "E0811", "waits for each"),
    ("rescale eager", "E0811", "divided by the sum once"),
    ("skip table", "E0811", "tables"),
    ("split k = auto", "E0811", "all keys"),
    ("tile q = 128, k = 256  stages 2", "E0803", "of 166,912 bytes"),
]


@pytest.mark.parametrize(("lines", "code", "note"), REFUSED_LINES)
def test_a_line_that_cannot_be_honoured_is_refused(lines, code, note):
    with pytest.raises((Faults, ScheduleFault)) as caught:
        lowered(spec(CAUSAL, schedule=f"schedule f on sm80 {{ {lines} }}"))
    found = caught.value.faults if isinstance(caught.value, Faults) else [caught.value]
    assert {f.code for f in found} == {code}
    assert note is None or any(note in (f.note or "") for f in found)


REFUSED = {
    "f32": spec(dtype="f32"),
    "e4m3": spec(dtype="e4m3", out="bf16"),
    "320 features": spec(d=320),
    "20 features": spec(d=20),
    "features first": spec(key="K[b, h, d, k]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_without_code_is_refused_with_the_reason(name):
    attn = read_text(REFUSED[name]).kernels[0]
    with pytest.raises((Faults, TargetFault)) as caught:
        BACKEND.check(attn, "sm80", ALIGNED)
    found = caught.value.faults if isinstance(caught.value, Faults) else [caught.value]
    assert all(f.code == "E0914" and f.note for f in found)


SMALL = {"d": "d : 32", "schedule": ""}
RUN = {
    "32 rows, causal": (kit.SPECS["causal"], WarpOptions(2), {"B": 1, "M": 90, "N": 131}),
    "rows with and without keys in a warp": (kit.SPECS["causal"], WarpOptions(2), {"B": 1, "M": 90, "N": 50}),
    "scalars called what tensors are": (
        kernel("param heads[h] : f32", "score s = s + heads[h]", "mask k <= q", **SMALL), WarpOptions(2),
        {"B": 2, "M": 40, "N": 40},
    ),
    "16 rows, two slots, queries in registers": (
        kit.SPECS["window, softcap, alibi, sink"], WarpOptions(4, Staging(2, "registers")), {"B": 1, "M": 131, "N": 90}
    ),
    "tables of keys, f16, 40 features": (
        kernel("param doc[b, k] : i32", "bias Bt[h, k] : bf16", "score s = s + Bt[h, k]", "mask doc[b, q] == doc[b, k]",
               d="d : 40", dtype="f16", schedule=""),
        WarpOptions(2), {"B": 2, "M": 70, "N": 70},
    ),
    "every third, 32 rows": (kit.SPECS["every third"], WarpOptions(2), {"B": 1, "M": 230, "N": 250}),
    "every fifth, from behind": (
        kernel("mask (k - q) % 5 == 2 and k >= q - 70 and k < q + 31", **SMALL), WarpOptions(4), {"B": 1, "M": 231, "N": 232}
    ),
    "searches, 32 rows": (kit.SPECS["documents"], WarpOptions(2), {"B": 2, "M": 70, "N": 90}),
    "values of keys and rows, 80 keys": (
        kit.SPECS["values of keys and rows"], WarpOptions(4), {"B": 2, "M": 70, "N": 190}, 80
    ),
}  # fmt: skip


@pytest.mark.skipif(host_cuda.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", RUN)
def test_the_printed_kernel_is_right(name, tmp_path):
    text, options, sizes, *keys = RUN[name]
    program = kit.on_warps(text, options, 64, *keys)["place_buffers"]
    attn = kit.attention(text)
    inputs = make_inputs(attn, sizes, 0, "normal")
    env = {**sizes, **dict(program.tile)}
    outputs = {
        t.name: np.full(tuple(int(evaluate(d, env)) for d in t.dims), np.nan)
        for t in program.tensors
        if t.mode == "out"
    }
    arrays = host_cuda.typed({**inputs, **outputs}, program, DTYPES)
    host_cuda.run(program, emit(program), tmp_path, arrays, sizes)
    found = compare(attn, inputs, {n: arrays[n] for n in outputs}, sizes=sizes)
    assert [str(r) for r in found.values() if not r.ok] == []
