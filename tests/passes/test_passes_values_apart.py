"""Values that are keys: one ring, whose slots are given back when the values of a step were used."""

import native_kit as kit
import pytest

from tilec.ir import errors
from tilec.ir.interp import adversaries
from tilec.ir.nodes import Copy, Load, Mma, Wait
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline
from tilec.passes.specialize import Roles

TEXT = kit.SPECS["two pairs, keys that are values"]
P = kit.after(TEXT)["place_buffers"]
BUSY = {"B": 2, "M": 300, "N": 330}


@pytest.mark.parametrize("order", adversaries(P), ids=str)
def test_adversarial_orders(order):
    assert kit.complaints(P, TEXT, BUSY, 1, order, units=3) == []


def test_the_second_tile_is_loaded_where_the_first_was():
    p = kit.after(TEXT)["values_apart"]
    loads = {s.dst.buffer: s for s in statements(p.roles[0].body) if isinstance(s, Load) and s.tensor == "K"}
    first, second = loads.values()
    assert set(loads) == {"K_tile", "K_tile_again"} and first.index == second.index and first.where == second.where
    assert {s.b.buffer for s in statements(p.roles[0].body) if isinstance(s, Mma) and s.dst.buffer == "acc"} == {
        "K_tile_again"
    }
    assert kit.complaints(p, TEXT, BUSY, 2) == []


def test_values_of_their_own_are_left_alone():
    stages = kit.after(kit.SPECS["two pairs"])
    assert stages["values_apart"] == stages["map_blocks"]


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("lag", [True, False])
def test_keys_are_copied_once_into_a_slot_more(stages, lag):
    p = kit.after(TEXT, HopperOptions(pipeline=Pipeline(lag), roles=Roles(stages=stages)))["specialize"]
    copies = [s.dst.buffer for s in statements(p.roles[0].body) if isinstance(s, Copy)]
    waits = {str(s) for s in statements(p.roles[1].body) if isinstance(s, Wait) and s.bar.name == "k_full"}
    assert copies.count("sK") == copies.count("sKr") > 0 and len(waits) == 1  # for the newest fill
    assert {b.name: b.stages for b in p.buffers if b.name in ("sK", "sKr")} == {"sK": stages + 1, "sKr": stages}
    assert kit.complaints(p, TEXT, BUSY, 3, adversaries(p)[stages], units=2) == []


MISTAKES = {
    "given back after the scores": (
        "arrive kr_empty[n % 2]", "arrive kr_empty[n % 2]\n          arrive k_empty[n % 3]", errors.OverArrival
    ),
    "values of the step itself": ("rounded . sK[(n - 1) % 3]", "rounded . sK[n % 3]", errors.Race),
    "never given back": ("arrive k_empty[(n - 1) % 3]", "priority 0", errors.Deadlock),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name):
    old, new, expected = MISTAKES[name]
    text = show_program(P)
    assert old in text
    p = parse_program(text.replace(old, new))
    with pytest.raises(expected):
        for order in adversaries(p):
            kit.complaints(p, TEXT, BUSY, 1, order, units=1)
