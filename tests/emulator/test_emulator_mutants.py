"""Mutants of generated kernels, of waves and of Triton, each caught by the check it aims at; the kernel itself, and
changes that are no mistakes, are silent and right.

A mutant is of the tile program, of the printed source, or of machine code.  `race`, `wait` and so on are findings of the emulator
(`findings.Finding`); `wrong` is the oracle's rule; `banks` are clocks beyond those of accesses without conflicts."""

import re
from functools import cache, partial

import pytest
from emulator_kit import edited, needs_clang
from feature_specs import CAUSAL
from wave_kit import ONE, launched, lowered, spec

from tilec.frontend import read_text
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.targets.gfx942.emulator import Emulator
from tilec.verify_emulated import verify_emulated

pytestmark = needs_clang

TEXT, SIZES = spec(CAUSAL, d=64, **ONE), {"M": 200, "N": 500}
APART = "      if w >= 4\n        sync everyone\n"


def everywhere(pattern, by, text, count=0):
    out = re.sub(pattern, by, text, count=count)
    assert out != text
    return out


PROGRAM = {  # (pattern, by, how many, or 0 for all): what must be seen
    "one slot for two tiles of keys": (r"sK\[.*?\]", "sK[0]", 0, "race"),
    "one slot for two tiles of values": (r"sV\[.*?\]", "sV[0]", 0, "race"),
    "keys of the wrong parity": (
        r"move K_tile\{k: 64 for 64\} = sK\[n % 2\]",
        "move K_tile{k: 64 for 64} = sK[(n + 1) % 2]",
        0,
        "wrong",
    ),
    "values go over those that are read": (r"move sV\[n % 2\]", "move sV[(n + 1) % 2]", 0, "race"),
    "keys go over those that are read": (r"copy sK\[\(n \+ 1\) % 2\]", "copy sK[n % 2]", 0, "wrong"),
    "copies are not awaited before the barrier": (
        r"          await vm pending 0\n        sync",
        "        sync",
        0,
        "race",
    ),
    "slots are released before they are read": (
        r"          await lgkm pending 0\n(          let|        sync)",
        r"\1",
        0,
        "race",
    ),
    "no barrier at the end of a step": (r"(          let n = n \+ 1\n)        sync everyone\n", r"\1", 0, "race"),
    "no barrier behind the first copies": (
        r"(          await vm pending 0\n)        sync everyone\n",
        r"\1",
        1,
        "race",
    ),
    "half of the waves go without their barrier": (APART, "", 1, "barrier"),
    "both halves meet the barrier more": ("if w >= 4", "if w >= 0", 1, "barrier"),
}
SOURCE = {
    "rows end one too late": (r"\(rows - 1\) \* step \+ width", "rows * step + width", "bounds"),
    "rows behind the last are stored": (r"if \(q_row \+ own < M\) \{", "{", "bounds"),
    "values are not turned": (r"column_of\(V_tile_stage\[0\], i\)", "V_tile_stage[0][i]", "wrong"),
    "keys lie as they come": (r"\(sK_copy_lane \^ i \* 2 % 8 \* 16\)", "sK_copy_lane", "wrong"),
    "lanes have other features": (r"low = lane / 32 \* 4", "low = lane / 32 * 8", "wrong"),
}


def renamed(name, by, but=""):
    """Instructions whose name begins so become others, those of which `but` is no part."""

    def change(emulator):
        return edited(emulator, lambda x: by if x.name.startswith(name) and but in x.text else None)

    return change


def early_m0(emulator):
    """M0 is written where its wait state was, right before the load into LDS."""
    found = emulator.listing.instructions
    at = [n for n, x in enumerate(found) if x.name == "s_mov_b32" and x.operands[0] == "m0"]
    texts = {found[n].address: "s_nop 0" for n in at} | {found[n + 1].address: found[n].text for n in at}
    assert at and all(found[n + 1].text == "s_nop 0" for n in at)
    return edited(emulator, lambda x: texts.get(x.address))


MACHINE = {
    "no wait for memory": (renamed("s_waitcnt", "s_waitcnt lgkmcnt(0)", "vmcnt"), "wait"),
    "no wait for LDS": (renamed("s_waitcnt", "s_waitcnt vmcnt(0)", "lgkmcnt"), "wait"),
    "no barriers": (renamed("s_barrier", "s_nop 0"), "race"),
    "a product's wait states": (renamed("s_nop", "s_nop 0"), "hazard"),
    "M0's wait state": (early_m0, "hazard"),
    "values are not written": (renamed("ds_write", "s_nop 0"), "undefined"),
}


def blocks_turned(emulator):
    """Of each pair whose halves are picked, the other one is first."""

    def text(x):
        if x.name != "v_perm_b32":
            return None
        to, high, low, pick = x.text.split(", ")
        return ", ".join((to, low, high, pick))

    return edited(emulator, text)


TRITON = {name: MACHINE[name] for name in MACHINE if name != "M0's wait state"}
TRITON |= {"the kernel itself": (lambda e: e, None), "halves are exchanged": (blocks_turned, "wrong")}
HARMLESS = {
    "the kernel itself": (lambda text: text, lambda e: e),
    "no priorities": (lambda text: text, renamed("s_setprio", "s_nop 0")),
    "no offset between the halves": (lambda text: everywhere("if w (>=|<) 4", r"if w \1 99", text), lambda e: e),
}


@cache
def program():
    return show_program(lowered(TEXT))


def seen(complaints, run):
    """All that there is against a run."""
    out = {f.kind for f in run.findings} | ({"wrong"} if complaints else set())
    return out | ({"banks"} if any(b.cycles != b.ideal for b in run.bank_cycles) else set())


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_mistake_is_not_flagged(name):
    change, machine = HARMLESS[name]
    assert seen(*launched(parse_program(change(program())), TEXT, SIZES, machine=machine)) == set()


@pytest.mark.parametrize("name", PROGRAM)
def test_a_mutant_of_the_program(name):
    pattern, by, count, what = PROGRAM[name]
    mutant = parse_program(everywhere(pattern, by, program(), count))
    assert what in seen(*launched(mutant, TEXT, SIZES))


@pytest.mark.parametrize("name", SOURCE)
def test_a_mutant_of_the_source(name):
    pattern, by, what = SOURCE[name]
    change = partial(everywhere, pattern, by)
    assert what in seen(*launched(lowered(TEXT), TEXT, SIZES, change=change))


@pytest.mark.parametrize("name", MACHINE)
def test_a_mutant_of_the_machine_code(name):
    machine, what = MACHINE[name]
    assert what in seen(*launched(lowered(TEXT), TEXT, SIZES, machine=machine))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", TRITON)
def test_a_mutant_of_tritons_machine_code(name, folder, monkeypatch):
    pytest.importorskip("triton")
    machine, what = TRITON[name]
    whole = Emulator.launch
    monkeypatch.setattr(Emulator, "launch", lambda self, *words, **more: whole(machine(self), *words, **more))
    monkeypatch.setenv("TILEC_CACHE", str(folder))
    found = read_text(TEXT)
    options = {"constants": {}, "shape": {"B": 1, "M": 100, "N": 200}, "seed": 0, "cycles": False}
    outcome = next(
        verify_emulated(found, found.kernels[0], "gfx942", backend="triton", progress=lambda *_: None, **options)
    )
    against = {f.partition(":")[0] for f in outcome.findings} | {"wrong" for r in outcome.reports if not r.ok}
    assert what in against if what else not against
