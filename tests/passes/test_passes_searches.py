"""Searches that the producer makes for the consumers, and values of keys and rows in the registers of those who need them."""

import native_kit as kit
import pytest

from tilec.ir import errors
from tilec.ir.interp import adversaries
from tilec.ir.nodes import For, Load, Mma, Seek
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline
from tilec.passes.specialize import Roles

DOCUMENTS, VALUES = kit.SPECS["documents"], kit.SPECS["values of keys and rows"]
P = kit.after(DOCUMENTS)["place_buffers"]
BUSY = {"B": 2, "M": 300, "N": 330}  # 12 tiles


def seeks(role):
    return [s.name for s in statements(role.body) if isinstance(s, Seek)]


@pytest.mark.parametrize("order", adversaries(P), ids=str)
def test_documents_under_adversarial_orders(order):
    assert kit.complaints(P, DOCUMENTS, BUSY, 1, order, units=3) == []


@pytest.mark.parametrize("work", ["one", "static", "dynamic"])
def test_the_producer_alone_searches(work):
    p = kit.after(DOCUMENTS, HopperOptions(roles=Roles(work=work)))["specialize"]
    producer, consumer = p.roles
    assert len(seeks(producer)) == 4 and not seeks(consumer)
    assert kit.complaints(p, DOCUMENTS, BUSY, 2, adversaries(p)[3], units=2) == []


def test_each_role_finds_the_sequence_of_a_tile_itself():
    p = kit.after(kit.STORED["packed documents"])["specialize"]
    producer, consumer = p.roles
    assert len(seeks(producer)) == 5 and seeks(consumer) == ["b"]
    assert not [b for b in kit.after(kit.STORED["packed"])["specialize"].barriers if b.name.startswith("edges")]


def test_tiles_that_begin_ahead_search_in_every_role():
    p = kit.after(DOCUMENTS, HopperOptions(roles=Roles(ahead="number")))["specialize"]
    assert [len(set(seeks(r))) for r in p.roles] == [4, 4]
    assert kit.complaints(p, DOCUMENTS, BUSY, 3, units=2) == []


@pytest.mark.parametrize("lag", [True, False])
def test_full_tiles_read_no_documents_and_others_before_their_products(lag):
    p = kit.after(DOCUMENTS, HopperOptions(pipeline=Pipeline(lag)))["overlap"]
    loops = {s.proof.segment: s.body for s in statements(p.roles[0].body) if isinstance(s, For) and s.proof}
    assert not any(isinstance(s, Load) and s.tensor == "dk" for s in loops["full"])
    order = [
        type(s).__name__ for s in loops["left"] if isinstance(s, Mma) or (isinstance(s, Load) and s.tensor == "dk")
    ]
    assert order[:2] == ["Load", "Mma"]


def test_values_of_keys_lie_over_lanes_and_those_of_rows_do_not():
    p = kit.after(VALUES)["place_buffers"]
    layouts = {s.tensor: b.layout for s in statements(p.roles[1].body) if isinstance(s, Load)
               for b in p.roles[1].buffers if b.name == s.dst.buffer}  # fmt: skip
    assert layouts["x"].kind == "lanes" and layouts["y"] is None


MISTAKES = {
    "slots are filled unasked": (
        "wait edges_empty[it % 2] parity (it // 2 + 1) % 2", "priority 0", (errors.Race, errors.OverArrival)
    ),
    "slots are given back unread": (
        "let k_edge3 = @k_edge3_slots[it % 2]\n    arrive edges_empty[it % 2]",
        "arrive edges_empty[it % 2]\n    let k_edge3 = @k_edge3_slots[it % 2]",
        (errors.Race,),
    ),
    "slots are kept": ("arrive edges_empty[it % 2]", "priority 0", (errors.Deadlock,)),
    "what was found is kept": ("arrive edges_full[it % 2]", "priority 0", (errors.Deadlock,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name):
    old, new, expected = MISTAKES[name]
    text = show_program(P)
    assert old in text
    p = parse_program(text.replace(old, new))
    with pytest.raises(expected):
        for order in adversaries(p):
            kit.complaints(p, DOCUMENTS, {"B": 3, "M": 300, "N": 330}, 1, order, units=1)
