"""Kernels of waves with MFMA: through clang for gfx942, and run on the CPU with its instructions element by element."""

import re

import host_hip
import native_kit as kit
import pytest
from feature_specs import CAUSAL
from wave_kit import case, spec

from tilec.backends.base import PROGRAM, Artifact, Variant
from tilec.backends.hip import ALIGNED, BACKEND, compile_program
from tilec.backends.hip.build import build
from tilec.backends.hip.check import check, needs, settled
from tilec.backends.hip.emit import emit
from tilec.backends.hip.offline import machine_code
from tilec.cdna import WaveOptions
from tilec.dsl.faults import CallFault, Faults, ScheduleFault, TargetFault
from tilec.frontend import read_text
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.ir.verify import verify
from tilec.native import lower_native
from tilec.oracle.numerics import verify as compare
from tilec.passes.ping_pong import Turns


def lowered(text):
    read_ = read_text(text)
    return lower_native(read_.kernels[0], "gfx942", read_.schedule("f", "gfx942"))


def compiled(text):
    read_ = read_text(text)
    return BACKEND.compile(read_.kernels[0], "gfx942", read_.schedule("f", "gfx942"), Variant((), ALIGNED))


NARROW = {"more": "e : 128", "value": "V[b, k, h, e] : bf16", "output": "O[b, q, h, e]"}
SHAPES = {
    "64, causal": (spec(CAUSAL, d=64), (256, 128, 512)),
    "128, whole": (spec(), (256, 64, 512)),
    "128, causal, groups of 4": (spec(CAUSAL, h="h : 8", head="h // 4"), (256, 64, 512)),
    "80, in tiles of 96": (spec(CAUSAL, d=80), (256, 64, 512)),
    "192 and 128": (spec(CAUSAL, d=192, **NARROW), (256, 32, 512)),
    "200, whose last 16 rows of outputs are padding": (spec(d=200), (128, 32, 512)),
    "256, f16": (spec(d=256, dtype="f16"), (128, 32, 512)),
    "128, a wave to a SIMD": (spec(CAUSAL, schedule="schedule f on gfx942 { warps split_q(4) }"), (128, 64, 256)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_kernel_compiles_at_this_shape(name):
    text, (rows, keys, threads) = SHAPES[name]
    made = compiled(text)
    tile, limit = made.metadata["tile"], 512 * 256 // threads
    assert (tile["TQ"], tile["TK"], made.metadata["threads"]) == (rows, keys, threads)
    assert made.metadata["registers"] <= limit and made.metadata["shared"] <= 65536
    (code,) = made.binaries.values()
    assert code.startswith(b"\x7fELF") and Artifact.from_files(made.to_files()) == made
    verify(parse_program(made.sources[PROGRAM]), proofs=False)


def test_machine_code_is_the_programs():
    """Copies to shared memory, barriers, priorities and products of the hot loops are those of the program's text."""
    made = compiled(SHAPES["128, whole"][0])
    ((name, text),) = machine_code(made).items()
    assert name == "f_gfx942.s"
    program = made.sources[PROGRAM]
    assert made.metadata["matrices"] == 192  # first tile's scores, two loops of scores and outputs, last tile's outputs
    count = text.decode().count
    assert count("offen lds") == 8 * program.count(" copy sK") and count("s_setprio") == program.count(" priority ")
    assert count("s_barrier") == program.count("sync everyone") and "sched_group_barrier" not in program
    assert made.sources["f_gfx942.hip"].count("issue<") > 10


def test_a_kernel_that_breaks_its_program_is_refused():
    program = lowered(SHAPES["64, causal"][0])
    printed = emit(program)
    built = build(printed.text, printed.function, "gfx942")
    found = needs(built.code, built.assembly, printed.function)
    sound = {"waves": 2, "products": 192, "loops": (64, 64)}
    assert (found.spills, found.scratch, found.lds) == (0, 0, 65536)
    check(found, **sound)
    check(needs(built.code, without(built.assembly, 64), "f"), **sound)  # a loop that takes no step
    for wrong, code in (({"waves": 4}, "E0918"), ({"products": 191}, "E0919"), ({"products": 200}, "E0919")):
        with pytest.raises(TargetFault) as caught:
            check(found, **{**sound, **wrong})
        assert caught.value.code == code
    with pytest.raises(TargetFault) as caught:
        check(needs(built.code, without(built.assembly, 1), "f"), **sound)
    assert caught.value.code == "E0919" and "191 matrix instructions" in caught.value.note


def without(assembly, count):
    """The text with so many matrix instructions less."""
    return re.sub(r"\n\tv_mfma_[^\n]*", "", assembly, count=count)


def test_scalars_in_lanes_are_taken_where_loops_read_few():
    """A mask of documents with slopes: more scalars than a wave has registers for."""
    lines = ("param slope[h] : f32", "score s = s - slope[h] * (q - k)", "param doc[b, k] : i32 nondecreasing")
    program = lowered(spec(*lines, "mask doc[b, q] == doc[b, k] and k <= q", d=64, k="k : M"))
    printed = emit(program)
    built = build(printed.text, printed.function, "gfx942")
    found = needs(built.code, built.assembly, printed.function)
    assert found.spills == 0 and any(n for _, n in found.kept) and all(m for m, _ in found.kept)
    check(found, waves=2, products=printed.matrices, loops=printed.looped)
    more = re.sub(r"(\n\tv_mfma_[^\n]*)", r"\1\n\tv_readlane_b32 s0, v0, 0", built.assembly)
    with pytest.raises(TargetFault, match="brings spilled scalars back") as caught:
        check(needs(built.code, more, "f"), waves=2, products=printed.matrices, loops=printed.looped)
    assert caught.value.code == "E0918"


def test_loads_that_the_compiler_does_not_see_have_their_wait_states():
    printed = emit(lowered(spec(CAUSAL, d=256, value="K")))
    settled(build(printed.text, "f", "gfx942").assembly, "f")
    bare = printed.text.replace('asm volatile("s_nop 4" : "+s"(of));', "")
    with pytest.raises(TargetFault, match="lacks wait states") as caught:
        settled(build(bare, "f", "gfx942").assembly, "f")
    assert caught.value.code == "E0918" and "offen lds" in caught.value.note


def test_spills_are_refused():
    options = WaveOptions(turns=Turns(keys_ahead=64, values_ahead=128))
    program = kit.on_waves(spec(CAUSAL, d=64), options, 256, 128)["place_fragments"]
    with pytest.raises(TargetFault, match="spilled") as caught:
        compile_program(program)
    assert caught.value.code == "E0918"


LINES = {
    "tile q = 128, k = 32": (128, 32, 8),
    "tile q = 64": (64, 64, 4),
    "tune k in {32, 64}": (256, 64, 8),
    "warps ping_pong(wave = 8)": (256, 64, 8),
    "warps ping_pong(wave = 8)  tile q = 128": (128, 64, 8),
    "warps split_q(4)": (128, 64, 4),
    "stages 2  overlap on  skip none  order q  map linear": (256, 64, 8),
    "rescale delayed": (256, 64, 8),
    "rescale conditional 4": (256, 64, 8),
    "map xcd by h": (256, 64, 8),
}


@pytest.mark.parametrize("lines", LINES)
def test_a_line_is_honoured(lines):
    program = lowered(spec(CAUSAL, schedule=f"schedule f on gfx942 {{ {lines} }}"))
    tile, text = dict(program.tile), show_program(program)
    assert (tile["TQ"], tile["TK"], program.roles[0].count) == LINES[lines]
    assert ("unless" in text) == ("delayed" not in lines) and ("<= @row_max + 4.0 / " in text) == (
        "conditional 4" in lines
    )
    assert ("if w < 4" in text) == (program.roles[0].count == 8)


REFUSED_LINES = [
    ("tile q = 96", "E0812", "16 or 32 rows"),
    ("tile k = 24", "E0804", None),
    ("tile q = 256, k = 128", "E0803", "of 65,536 bytes"),
    ("stages 3", "E0808", "in use"),
    ("warps ping_pong(wave = 4)", "E0808", "two groups of four"),
    ("warps split_q(2)", "E0808", None),
    ("warps split_q(4)  tile q = 256", "E0812", "16 or 32 rows"),
    ("warps specialized(consumer = 2)", "E0810", "trade registers"),
    ("overlap off", "E0811", "trail"),
    ("rescale eager", "E0811", "divided by the sum once"),
    ("rescale conditional 20", "E0811", "greatest in f16"),
    ("skip table", "E0811", "tables"),
    ("split k = auto", "E0811", "all keys"),
    ("map persistent", "E0811", "scalar registers"),
    ("order k", "E0811", "residue class"),
    ("order residue, q", "E0813", "for every live position"),
    ("cluster 2", "E0810", None),
]


@pytest.mark.parametrize(("lines", "code", "note"), REFUSED_LINES)
def test_a_line_that_cannot_be_honoured_is_refused(lines, code, note):
    with pytest.raises((Faults, ScheduleFault)) as caught:
        lowered(spec(CAUSAL, schedule=f"schedule f on gfx942 {{ {lines} }}"))
    found = caught.value.faults if isinstance(caught.value, Faults) else [caught.value]
    assert {f.code for f in found} == {code}
    assert note is None or any(note in (f.note or "") for f in found)


def test_units_that_are_not_read_in_whole_turns_have_no_code():
    text = show_program(lowered(SHAPES["64, causal"][0]))
    with pytest.raises(ValueError, match="no whole turns of 1 units, 2 at once"):
        emit(parse_program(text.replace("unit = 16, rows = 8", "unit = 16, rows = 1")))


REFUSED = {
    "f32": spec(dtype="f32"),
    "e4m3": spec(dtype="e4m3", out="bf16"),
    "320 features": spec(d=320),
    "36 features": spec(d=36),
    "24 features": spec(d=24),
    "features first": spec(key="K[b, h, d, k]"),
    "pages of 24": kit.STORED["pages of 24, window"].replace("d : 32", "d : 64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_without_code_is_refused_with_the_reason(name):
    attn = read_text(REFUSED[name]).kernels[0]
    with pytest.raises((Faults, TargetFault)) as caught:
        BACKEND.check(attn, "gfx942", ALIGNED)
    found = caught.value.faults if isinstance(caught.value, Faults) else [caught.value]
    assert all(f.code == "E0914" and f.note for f in found)
    with pytest.raises(TargetFault, match="not aligned"):
        BACKEND.check(read_text(spec()).kernels[0], "gfx942", frozenset())


HALF = "schedule f on gfx942 { tile q = 128 }"
ALONE = "schedule f on gfx942 { warps split_q(4) }"
SOFT = ("param slope[h] : f32", "score s = 5 * tanh(s / 5)", "score s = s - slope[h] * abs(q - k)")
RUN = {
    "64, whole": (spec(d=64), {"M": 40, "N": 130}),
    "128, causal, groups of 2": (spec(CAUSAL, h="h : 2", head="h // 2"), {"M": 40, "N": 150}),
    "64, f16, window, softcap, alibi, sink": (
        spec(*SOFT, "mask k <= q + N - M and k > q + N - M - 70", "sink sk[h] : f32", d=64, dtype="f16"),
        {"M": 50, "N": 170},
    ),
    "16 rows to a wave, 192 and 64 features": (
        spec(CAUSAL, d=192, more="e : 64", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]", schedule=HALF),
        {"M": 40, "N": 70},
    ),
    "40 and 72 features": (
        spec(CAUSAL, d=40, more="e : 72", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]"), {"M": 40, "N": 130}
    ),
    "256, rows without keys": (spec(CAUSAL, d=256), {"M": 60, "N": 40}),
    "packed": (spec(CAUSAL, d=64, **kit.PACKED), {"B": 2, "M": 70, "N": 70}),
    "padded keys, a wave to a SIMD": (spec(d=64, k="k : N lengths nk", schedule=ALONE), {"B": 2, "M": 30, "N": 130}),
    "pages, groups of 2": (
        spec(CAUSAL, d=64, k="k : N lengths nk", tails=kit.PAGES, h="h : 2", head="h // 2"), {"B": 2, "M": 40, "N": 150}
    ),
    "two pairs, keys that are values": (
        spec("query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", CAUSAL, d=64, more="r : 32", key="K[b, k, d]", value="K"),
        {"M": 40, "N": 100},
    ),
    "bias and tables": (
        spec("param doc[b, k] : i32", "bias Bt[h, k] : bf16", "score s = s + Bt[h, k]", "mask doc[b, q] == doc[b, k]", d=64),
        {"M": 70, "N": 70},
    ),
    "dropout, f32 output": (spec("dropout 0.25", CAUSAL, d=64, out="f32"), {"M": 40, "N": 100}),
    "every fourth key": (spec("mask (q - k) % 4 == 0 and k <= q", d=64), {"M": 90, "N": 90}),
    "no keys": (spec(d=64), {"M": 20, "N": 0}),
}  # fmt: skip


def ran(program, text, sizes, folder, rounding="nearest"):
    """The oracle's word on each output of a run on poisoned arrays."""
    inputs, arrays, env = case(program, text, sizes)
    host_hip.run(program, emit(program, rounding), folder, arrays, env)
    found = {t.name: arrays[t.name] for t in program.tensors if t.mode == "out"}
    return compare(kit.attention(text), inputs, found, sizes={"B": 1, **sizes}, seed=kit.SEED, offset=kit.OFFSET)


@pytest.mark.parametrize("name", RUN)
def test_the_printed_kernel_is_right(name, tmp_path):
    text, sizes = RUN[name]
    found = ran(lowered(text), text, sizes, tmp_path)
    assert [str(r) for r in found.values() if not r.ok] == []


@pytest.mark.parametrize("rounding", ["away", "zero"])
def test_other_roundings_stay_near(rounding, tmp_path):
    """Weights rounded towards zero err by up to twice as much, which is no spec's contract, and shows."""
    text, sizes = RUN["64, whole"]
    report = ran(lowered(text), text, sizes, tmp_path, rounding)["O"]
    assert report.ok or rounding == "zero"
    assert report.error < 0.02 if hasattr(report, "error") else "max error" in str(report)
    made = compile_program(lowered(text), rounding=rounding)
    assert made.metadata["matrices"] == 192


def test_a_variable_says_how_kernels_round(monkeypatch):
    text = SHAPES["64, causal"][0]
    usual = BACKEND.toolchain("gfx942")
    assert compiled(text).metadata["rounding"] == "nearest" and set(usual) == {"clang"}
    monkeypatch.setenv("TILEC_ROUNDING", "away")
    made = compiled(text)
    assert made.metadata["rounding"] == "away" and "ties away from zero" in made.sources["f_gfx942.hip"]
    assert BACKEND.toolchain("gfx942") == {**usual, "rounding": "away"}, "cached apart"
    monkeypatch.setenv("TILEC_ROUNDING", "up")
    with pytest.raises(CallFault) as caught:
        BACKEND.toolchain("gfx942")
    assert caught.value.code == "E1060" and "nearest, away, zero" in caught.value.hint


MISTAKES = {
    "keys are not awaited": ("    // await vm pending 0\n    loads_pending<0>();\n", ""),
    "keys lie as they come": ("sK_copy_lane ^ i * 2 % 8 * 16", "sK_copy_lane"),
    "values are not turned": ("column_of(V_tile_stage[0], i)", "V_tile_stage[0][i]"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_shows(name, tmp_path, monkeypatch):
    text, sizes = RUN["64, whole"]
    program = lowered(text)
    printed = emit(program)
    old, new = MISTAKES[name]
    assert old in printed.text
    broken = type(printed)(**{**vars(printed), "text": printed.text.replace(old, new)})
    monkeypatch.setitem(globals(), "emit", lambda *_: broken)
    found = ran(program, text, sizes, tmp_path)
    assert not all(r.ok for r in found.values())
