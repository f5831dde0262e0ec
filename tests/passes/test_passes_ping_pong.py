"""ping_pong: programs of waves in turns compute what they did, under every order tried; broken ones are reported."""

from __future__ import annotations

import re
from dataclasses import replace

import native_kit as kit
import pytest
from feature_specs import CAUSAL, kernel

from tilec.cdna import WaveOptions
from tilec.dsl.faults import ScheduleFault
from tilec.ir import errors
from tilec.ir.interp import adversaries
from tilec.ir.nodes import Cluster, For, If, Interleave, Mma, Sync, walk
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.ir.verify import verify
from tilec.passes.ping_pong import Turns, ping_pong
from tilec.passes.split_rows import split_rows

ALONE = WaveOptions(4, Turns(offset=False, registers=512))
SIZES = {"B": 1, "M": 433, "N": 200}
LONG = {"B": 1, "M": 60, "N": 500}
TEXT = kit.SPECS["causal"]


def placed(text, options=WaveOptions(), q=256, units=None):  # noqa: B008
    return kit.on_waves(text, options, q, units=units)["place_fragments"]


@pytest.mark.parametrize("name", {**kit.SPECS, **kit.STORED})
def test_the_oracle_agrees(name):
    text = {**kit.SPECS, **kit.STORED}[name]
    sizes = {**SIZES, "N": SIZES["M"]} if name == "packed, one table" else SIZES
    assert kit.complaints(placed(text), text, sizes) == []
    assert kit.complaints(placed(text, WaveOptions(seldom=8.0), 128, 2), text, sizes, seed=1) == []
    assert kit.complaints(placed(text, ALONE, 128), text, sizes, seed=2) == []
    beside = WaveOptions(seldom=8.0, turns=Turns(beside="products"))
    assert kit.complaints(placed(text, beside), text, sizes, seed=3) == []


@pytest.mark.parametrize(("rows", "keys"), [(256, 32), (128, 32), (128, 128)])
def test_other_tiles(rows, keys):
    """One part of the keys, and parts that each half of the waves brings."""
    found = kit.on_waves(TEXT, WaveOptions(seldom=8.0), rows, keys)["place_fragments"]
    for seed in range(2):
        assert kit.complaints(found, TEXT, LONG, seed=seed) == []


@pytest.mark.parametrize("sizes", kit.SIZES, ids=str)
def test_before_and_after(sizes):
    found = kit.on_waves(kit.SPECS["window, softcap, alibi, sink"], WaveOptions(seldom=4.0))
    for name in ("rescale_seldom", "ping_pong"):
        assert kit.complaints(found[name], kit.SPECS["window, softcap, alibi, sink"], sizes) == []


@pytest.mark.parametrize("order", adversaries(placed(TEXT)), ids=str)
def test_adversarial_orders(order):
    assert kit.complaints(placed(TEXT), TEXT, SIZES, order=order) == []


def test_the_text_reads_back():
    order = (Interleave(12, (("matrix", 1), ("lds_read", 1))), Interleave(20, (("matrix", 1), ("vector", 7))))
    p = placed(TEXT, WaveOptions(turns=Turns(scores=order)))
    assert parse_program(show_program(p)) == p
    assert "cluster compute order 12 of (matrix 1, lds_read 1), 20 of (matrix 1, vector 7)" in show_program(p)
    verify(p)


def test_the_hot_loop_has_no_mask_and_four_clusters():
    p = placed(TEXT)
    right, full = (s for s in walk(p.roles[0].body) if isinstance(s, For))
    assert (right.proof.segment, full.proof.segment) == ("right", "full")
    for loop, masked in ((right, True), (full, False)):
        clusters = [s for s in loop.body if isinstance(s, Cluster)]
        assert [s.kind for s in clusters] == ["compute", "memory"] * 2
        assert [isinstance(s, Sync) for s in loop.body] == [False, True] * 4
        assert [sum(isinstance(x, Mma) for x in walk(s.body)) for s in clusters] == [2, 0, 2, 0]
        text = show_program(p.with_(roles=(replace(p.roles[0], body=(loop,), buffers=p.roles[0].buffers),)))
        assert ("scores[0] = where" in text) == masked


def test_waves_that_do_not_take_turns_meet_once_a_step():
    (right, full) = (s for s in walk(placed(TEXT, ALONE, 128).roles[0].body) if isinstance(s, For))
    assert all(sum(isinstance(s, Sync) for s in walk(loop.body)) == 1 for loop in (right, full))
    assert not any(
        isinstance(s, If) and isinstance(s.then[0], Sync) for s in walk(placed(TEXT, ALONE, 128).roles[0].body)
    )


SYNC = "        sync everyone\n"
LANDED = "          await vm pending 0\n"
MUTANTS = {
    "no barrier behind the copies": (LANDED + SYNC, LANDED),
    "no barrier behind the values": ("          let n = n + 1\n" + SYNC, "          let n = n + 1\n"),
    "copies are not awaited": (LANDED, ""),
    "what is read ahead is not awaited": ("          await lgkm pending 0\n          let n", "          let n"),
    "values read ahead are not awaited": ("          await lgkm pending 0\n" + SYNC, SYNC),
    "one slot of keys": (r"sK\[.*?\]", "sK[0]"),
    "one slot of values": (r"sV\[.*?\]", "sV[0]"),
    "no offset": ("      if w >= 4\n", "      if w >= 8\n"),
    "nobody catches up": ("      if w < 4\n", "      if w < 0\n"),
    "two waves bring one share": ("{k: 8 * w for 8} = V_tile_stage", "{k: 8 * (w % 4) for 8} = V_tile_stage"),
    "the barrier counts one half": ("everyone : named arrivals 8", "everyone : named arrivals 4"),
}
REPORTS = (errors.Race, errors.Undefined, errors.Deadlock, errors.OverArrival, errors.UnfinishedAsync)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_reported(name):
    text, (old, new) = show_program(placed(TEXT)), MUTANTS[name]
    changed = re.sub(old, new, text) if name.startswith("one slot") else text.replace(old, new)
    assert changed != text
    broken = parse_program(changed)
    for seed in range(2):
        with pytest.raises(REPORTS):
            kit.complaints(broken, TEXT, LONG, seed=seed)


def test_outputs_rescaled_too_early_are_wrong():
    """A dataflow mistake is no race: the numbers tell."""
    text = show_program(placed(TEXT))
    scaled = "          acc = @acc * @shrink\n"
    broken = text.replace(scaled, "").replace(
        "          await lgkm pending 0\n" + SYNC, scaled + "          await lgkm pending 0\n" + SYNC
    )
    assert kit.complaints(parse_program(broken), TEXT, LONG) != []


REFUSED = {
    "e4m3": (kernel(dtype="e4m3", out="bf16", schedule=""), {}, "E0811"),
    "40 keys": (TEXT, {"k": 40}, "E0812"),
    "too many registers": (kernel(CAUSAL, d="d : 256", schedule=""), {"k": 32}, "E0812"),
    "too much shared memory": (kernel(CAUSAL, d="d : 128", schedule=""), {"k": 128, "q": 128}, "E0803"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_refused(name):
    text, shape, code = REFUSED[name]
    with pytest.raises(ScheduleFault) as caught:
        kit.on_waves(text, WaveOptions(), **shape)
    assert caught.value.code == code and (caught.value.hint or caught.value.note)


def test_a_program_of_another_form_is_no_input():
    p = kit.sequential(TEXT, 128, 64, target="gfx942")
    with pytest.raises(ValueError, match="split over waves"):
        ping_pong(p)
    with pytest.raises(ValueError, match="already split"):
        split_rows(placed(TEXT), 8, unit="wave")
