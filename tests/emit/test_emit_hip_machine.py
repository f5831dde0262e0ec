"""Machine code of gfx942's kernels, run instruction by instruction: right by the oracle's rule, without complaints, free of bank
conflicts.  Mutants of it are in `emulator/test_emulator_mutants.py`."""

import re

import native_kit as kit
import pytest
from feature_specs import CAUSAL
from wave_kit import ONE, launched, lowered, spec

from tilec.cdna import WaveOptions
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.passes.ping_pong import Turns
from tilec.targets.gfx942.cycles import predict

SOFT = ("param slope[h] : f32", "score s = 5 * tanh(s / 5)", "score s = s - slope[h] * abs(q - k)")
WINDOW = "mask k <= q + N - M and k > q + N - M - 70"
RUN = {
    "128, whole": (spec(**ONE), {"M": 256, "N": 256}),
    "128, causal, rows and keys that end early": (spec(CAUSAL, **ONE), {"M": 37, "N": 170}),
    "64, f16, window, softcap, alibi, sink": (
        spec(*SOFT, WINDOW, "sink sk[h] : f32", d=64, dtype="f16", **ONE), {"M": 50, "N": 170}
    ),
    "16 rows to a wave, 192 and 128 features": (
        spec(
            CAUSAL, d=192, more="e : 128", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]",
            schedule="schedule f on gfx942 { tile q = 128 }", **ONE,
        ),
        {"M": 40, "N": 70},
    ),
    "192, causal": (spec(CAUSAL, d=192, **ONE), {"M": 40, "N": 100}),
    "256, rows without keys": (spec(CAUSAL, d=256, **ONE), {"M": 60, "N": 40}),
    "packed, groups of 2": (spec(CAUSAL, d=64, h="h : 2", head="h // 2", **kit.PACKED), {"B": 2, "M": 40, "N": 70}),
    "padded keys": (spec(d=64, k="k : N lengths nk", **ONE), {"B": 2, "M": 30, "N": 130}),
    "a wave to a SIMD": (spec(CAUSAL, schedule="schedule f on gfx942 { warps split_q(4) }", **ONE), {"M": 70, "N": 150}),
    "pages of 16, windows": (
        spec(WINDOW, d=64, k="k : N lengths nk", tails=kit.PAGES, h="h : 2", head="h // 2"), {"B": 2, "M": 40, "N": 200}
    ),
    "80 features, packed rows, pages of 128": (
        kit.STORED["packed rows, pages of 128"].replace("d : 32", "d : 80"), {"B": 3, "M": 30, "N": 300}
    ),
    "128 and 64 features, keys that are values": (
        spec(
            "query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", CAUSAL, more="r : 64", key="K[b, k, d]", value="K", h="h : 2"
        ),
        {"M": 40, "N": 100},
    ),
    "256 features, keys that are values, in pages": (
        spec(CAUSAL, d=256, k="k : N lengths nk", key="K[b, k, d]", value="K", tails=("", "paged bt[b, k // 16]", ""), **ONE),
        {"B": 2, "M": 40, "N": 70},
    ),
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


PAGES = spec(CAUSAL, k="k : N lengths nk", d=64, tails=kit.PAGES, **ONE)
WRONG_PAGES = {  # (pattern, by): what is seen
    "a page is looked up for no row": ((r" > 0 \?(\s+)looked_up", r" > -9999 ?\1looked_up"), "bounds"),
    "every page is the first": ((r">> 4\)\s+\* bt_s1", ">> 4) * 0"), "wrong"),
}


@pytest.mark.parametrize("name", WRONG_PAGES)
def test_pages_are_those_of_live_rows(name):
    (pattern, by), what = WRONG_PAGES[name]
    change = lambda source: re.sub(pattern, by, source)  # noqa: E731
    complaints, run = launched(lowered(PAGES), PAGES, {"M": 20, "N": 200}, change=change)
    assert what in {f.kind for f in run.findings} | ({"wrong"} if complaints else set())


NARROW = {
    "32": {"d": 32},
    "80, f16": {"d": 80, "dtype": "f16"},
    "40 and 72, 16 rows to a wave": {
        "d": 40, "more": "e : 72", "value": "V[b, k, h, e] : bf16", "output": "O[b, q, h, e]",
        "schedule": "schedule f on gfx942 { tile q = 128, k = 32 }",
    },
    "200": {"d": 200},
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_what_lies_behind_the_features_of_a_row_reaches_nothing(name):
    text = spec(CAUSAL, **ONE, **NARROW[name])
    complaints, run = launched(lowered(text), text, {"M": 40, "N": 150}, nans=True)
    assert (complaints, run.findings) == ([], ())
    assert [b for b in run.bank_cycles if b.instruction.name.startswith("ds_read") and b.cycles != b.ideal] == []


def test_without_its_guard_it_reaches_the_scores():
    text = spec(CAUSAL, d=80, **ONE)
    unguarded = lambda source: source.replace("at < width ? at : 0x80000000", "at")  # noqa: E731
    complaints, _ = launched(lowered(text), text, {"M": 40, "N": 150}, nans=True, change=unguarded)
    assert complaints


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


def test_the_cycle_model_has_matrix_units_busy_and_the_offset_worth_its_barriers():
    text, sizes = spec(**ONE), {"M": 256, "N": 512}
    program = lowered(text)
    alike = show_program(program).replace("if w >= 4", "if w >= 8").replace("if w < 4", "if w < 0")
    apart, together = (predict(launched(p, text, sizes, trace=True)[1]) for p in (program, parse_program(alike)))
    assert apart.matrix > 0.85 and apart.passes > 4
    assert together.step > 1.1 * apart.step
