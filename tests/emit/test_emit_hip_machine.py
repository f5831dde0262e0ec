"""Machine code of gfx942's kernels, run instruction by instruction: right by the oracle's rule, without complaints, free of bank
conflicts; what a program lacks the machine code lacks."""

import re
from functools import cache

import ml_dtypes
import native_kit as kit
import numpy as np
import pytest
from feature_specs import CAUSAL, kernel

from tilec.arith.evaluate import evaluate
from tilec.backends.base import PROGRAM, Variant
from tilec.backends.hip import ALIGNED, BACKEND, compile_program
from tilec.cdna import WaveOptions
from tilec.frontend import read_text
from tilec.ir.expr import Var
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify as compare
from tilec.passes.ping_pong import Turns
from tilec.targets.gfx942.codeobject import read
from tilec.targets.gfx942.cycles import predict
from tilec.targets.gfx942.emulator import Emulator

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i32": np.int32, "i64": np.int64}


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


@cache
def lowered(text):
    """The program that is kept: of the first shape whose registers do not spill."""
    found = read_text(text)
    made = BACKEND.compile(found.kernels[0], "gfx942", found.schedule("f", "gfx942"), Variant((), ALIGNED))
    return parse_program(made.sources[PROGRAM])


def launched(program, text, sizes, **options):
    """(complaints of the oracle's rule, the emulator's run) on poisoned outputs."""
    attn, sizes = kit.attention(text), {"B": 1, **sizes}
    made = compile_program(program)
    inputs = make_inputs(attn, sizes, 0, "normal")
    env = {**sizes, **dict(program.tile)}
    for t in program.tensors:
        if t.name in inputs:
            env |= {d.name: n for d, n in zip(t.dims, inputs[t.name].shape, strict=True) if isinstance(d, Var)}
    dead = attn.index(attn.q).storage.kind != "dense"
    fill = {attn.output: 0.0 if dead else np.nan, attn.lse: -np.inf if dead else np.nan}
    shapes = {t.name: tuple(int(evaluate(d, env)) for d in t.dims) for t in program.tensors}
    arrays = {
        t.name: np.ascontiguousarray(
            np.asarray(inputs[t.name] if t.name in inputs else np.full(shapes[t.name], fill[t.name])).astype(
                DTYPES[t.dtype]
            )
        )
        for t in program.tensors
    }
    values = {
        "pointer": lambda of, _: arrays[of],
        "stride": lambda of, n: arrays[of].strides[n] // arrays[of].itemsize,
        "extent": lambda of, _: env[of],
    }
    args = [values[kind](of, n) for _, kind, of, n in made.metadata["arguments"]]
    blocks = int(eval(made.metadata["ctas"], {"min": min, "max": max, **env}))
    (code,) = made.binaries.values()
    group = (made.metadata["threads"], 1, 1)
    run = Emulator(read(code)).launch(made.metadata["function"], (blocks, 1, 1), group, args, **options)
    found = compare(attn, inputs, {t.name: arrays[t.name] for t in program.tensors if t.mode == "out"}, sizes=sizes)
    return [str(r) for r in found.values() if not r.ok], run


SOFT = ("param slope[h] : f32", "score s = 5 * tanh(s / 5)", "score s = s - slope[h] * abs(q - k)")
WINDOW = "mask k <= q + N - M and k > q + N - M - 70"
ONE = {"h": "h : 1"}
RUN = {
    "128, whole": (spec(**ONE), {"M": 256, "N": 256}),
    "128, causal, rows and keys that end early": (spec(CAUSAL, **ONE), {"M": 37, "N": 170}),
    "64, f16, window, softcap, alibi, sink": (
        spec(*SOFT, WINDOW, "sink sk[h] : f32", d=64, dtype="f16", **ONE), {"M": 50, "N": 170}
    ),
    "16 rows to a wave, 192 and 128 features": (
        spec(CAUSAL, d=192, more="e : 128", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]", **ONE),
        {"M": 40, "N": 70},
    ),
    "256, rows without keys": (spec(CAUSAL, d=256, **ONE), {"M": 60, "N": 40}),
    "packed, groups of 2": (spec(CAUSAL, d=64, h="h : 2", head="h // 2", **kit.PACKED), {"B": 2, "M": 40, "N": 70}),
    "padded keys": (spec(d=64, k="k : N lengths nk", **ONE), {"B": 2, "M": 30, "N": 130}),
    "a wave to a SIMD": (spec(CAUSAL, schedule="schedule f on gfx942 { warps split_q(4) }", **ONE), {"M": 70, "N": 150}),
    "one key": (spec(d=64, **ONE), {"M": 3, "N": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_a_kernel_is_right_and_silent(name):
    text, sizes = RUN[name]
    complaints, run = launched(lowered(text), text, sizes)
    assert complaints == []
    assert run.findings == ()
    if "128, " in name:
        assert [(b.instruction, b.cycles) for b in run.bank_cycles if b.cycles != b.ideal] == []


def test_exponentials_beside_products():
    """The other place for them, with what is left over for the next step."""
    text, sizes = RUN["128, causal, rows and keys that end early"]
    options = WaveOptions(seldom=8.0, turns=Turns(beside="products"))
    complaints, run = launched(kit.on_waves(text, options)["place_fragments"], text, sizes)
    assert (complaints, run.findings) == ([], ())


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_waves(seed):
    text, sizes = RUN["64, f16, window, softcap, alibi, sink"]
    complaints, run = launched(lowered(text), text, sizes, order_seed=seed)
    assert (complaints, run.findings) == ([], ())


SYNC = "        sync everyone\n"
BROKEN = {
    "no barrier behind the copies": ("          await vm pending 0\n" + SYNC, "          await vm pending 0\n"),
    "copies are not awaited": ("          await vm pending 0\n", ""),
    "one slot of keys": (r"sK\[.*?\]", "sK[0]"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_mistake_of_the_program_is_one_of_the_machine(name):
    """What the interpreter reports of the program the emulator reports of its machine code."""
    text, (old, new) = spec(d=64, **ONE), BROKEN[name]
    before = show_program(lowered(text))
    after = re.sub(old, new, before) if name.startswith("one") else before.replace(old, new)
    assert after != before
    complaints, run = launched(parse_program(after), text, {"M": 100, "N": 300})
    assert complaints or {f.kind for f in run.findings} & {"race", "wait"}


def test_the_cycle_model_has_matrix_units_busy_and_the_offset_worth_its_barriers():
    text, sizes = spec(**ONE), {"M": 256, "N": 512}
    program = lowered(text)
    alike = show_program(program).replace("if w >= 4", "if w >= 8").replace("if w < 4", "if w < 0")
    apart, together = (predict(launched(p, text, sizes, trace=True)[1]) for p in (program, parse_program(alike)))
    assert apart.matrix > 0.85 and apart.passes > 4
    assert together.step > 1.1 * apart.step
