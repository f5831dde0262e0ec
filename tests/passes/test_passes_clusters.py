"""Clusters of two CTAs: they take the same tiles of keys, each copied once for both, and end only when nobody can reach them."""

import native_kit as kit
import pytest

from tilec.dsl.faults import ScheduleFault
from tilec.ir import errors
from tilec.ir.interp import Order, adversaries
from tilec.ir.nodes import Copy, Send
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.native import HopperOptions
from tilec.passes.pair_heads import pair_heads, pairable
from tilec.passes.specialize import Roles, specialize
from tilec.passes.split_rows import split_rows

GROUPED = kit.kernel(kit.CAUSAL, h="h : 4", head="h // 4", **kit.SMALL)
FULL = kit.kernel(h="h : 1", lse="", **kit.SMALL)
ODD = {"B": 1, "M": 300, "N": 200}  # rows of a pair's second CTA outside; rows without keys
MANY = {"B": 3, "M": 70, "N": 150}  # several tiles for each CTA


def clustered(text, pairs, stage="place_buffers", **roles):
    return kit.after(text, HopperOptions(1, pairs=pairs, roles=Roles(**roles)))[stage]


# ---------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("pairs", ["rows", "heads"])
@pytest.mark.parametrize("stage", ["map_blocks", "overlap"])
def test_pairs_of_blocks_cover_every_row_once(pairs, stage):
    for sizes in (ODD, MANY):
        assert kit.complaints(clustered(GROUPED, pairs, stage), GROUPED, sizes) == []


@pytest.mark.parametrize("pairs", ["rows", "heads"])
@pytest.mark.parametrize("work", ["dynamic", "static", "one"])
def test_adversarial_orders(pairs, work):
    p = clustered(GROUPED, pairs, work=work)
    some = adversaries(p) if work == "dynamic" else adversaries(p)[len(work) % 2 :: 3]
    for n, order in enumerate(some):
        assert kit.complaints(p, GROUPED, (ODD, MANY)[n % 2], n, order, units=4) == [], order


@pytest.mark.parametrize("name", ["window and first", "two pairs", "no mask, f16"])
def test_other_masks_and_operands(name):
    p = kit.after(kit.SPECS[name], HopperOptions(pairs="rows"))["specialize"]
    for order in (Order("late", ("rank 0",)), Order("early", ("rank 1",))):
        assert kit.complaints(p, kit.SPECS[name], {"B": 1, "M": 257, "N": 200}, 1, order) == []


# ---------------------------------------------------------------------------------------------- form


def test_both_copy_half_of_each_tile_for_both():
    p = clustered(FULL, "rows")
    copies = [s for s in statements(p.roles[0].body) if isinstance(s, Copy)]
    shared = {s.tensor: s for s in copies if s.multicast}
    assert set(shared) == {"K", "V"} and {s.tensor for s in copies} == {"Q", "K", "V"}
    for s in shared.values():
        (window,) = s.dst.windows
        assert (window.axis, str(window.start), str(window.size)) == ("k", "32 * rank", "32")
    arrivals = {b.name: b.arrivals for b in p.barriers}
    assert arrivals["k_full"] == arrivals["v_full"] == 2 and arrivals["k_empty"] == arrivals["v_empty"] == 2
    wide = kit.after(kit.FIXTURE, HopperOptions(pairs="heads"), k=128)["place_buffers"]
    windows = {w.axis for s in statements(wide.roles[0].body) if isinstance(s, Copy) for w in s.dst.windows}
    assert windows == {"d"}, "whole panels of 64 columns"


def test_one_of_them_claims_for_both():
    p = clustered(GROUPED, "heads", work="dynamic")
    assert sum(isinstance(s, Send) for s in statements(p.roles[0].body)) == 1
    assert {b.name: b.arrivals for b in p.barriers}["slot_empty"] == 3  # two consumers, and the other producer
    assert not any(isinstance(s, Send) for s in statements(clustered(GROUPED, "heads", work="static").roles[0].body))


@pytest.mark.parametrize(
    ("h", "head", "found"),
    [
        ("h : 4", "h // 4", "h"),
        ("h : 4", "h // 2", "h"),
        ("h : 3", "h // 3", None),
        ("h : 4", "h", None),
        ("h : H", "h", None),
    ],
)
def test_heads_that_come_in_pairs(h, head, found):
    assert pairable(kit.attention(kit.kernel(kit.CAUSAL, h=h, head=head, **kit.SMALL))) == found


# ---------------------------------------------------------------------------------------------- refusals


def test_ctas_that_walk_different_keys_are_refused():
    text = show_program(clustered(GROUPED, "heads", "overlap"))
    assert "let end = " in text
    with pytest.raises(ScheduleFault) as caught:
        specialize(parse_program(text.replace("let end = ", "let end = h + ")))
    assert caught.value.code == "E0811" and "different keys" in caught.value.message


def test_values_that_end_with_their_sequence_are_refused():
    with pytest.raises(ScheduleFault) as caught:
        clustered(kit.kernel(kit.CAUSAL, k="k : N lengths ln", **kit.SMALL), "rows")
    assert caught.value.code == "E0811" and "cluster" in caught.value.message


def test_what_is_in_clusters_is_not_put_in_clusters():
    paired = kit.sequential(GROUPED, pair=True)
    with pytest.raises(ValueError, match="already"):
        pair_heads(paired, "h")
    with pytest.raises(ValueError, match="already"):
        split_rows(paired, 1, 2)


# ---------------------------------------------------------------------------------------------- mistakes

STUCK, EARLY = (errors.Deadlock,), (errors.OverArrival, errors.Race, errors.Undefined)
GONE = (errors.Abandoned,)
DRAIN = "  for half in 0 .. 2\n    wait v_empty[(n + half) % 2] parity ((n + half) // 2 + 1) % 2\n"
SLOTS = (
    "  if rank == 0\n    for half in 0 .. 2\n      wait slot_empty[(it + half) % 2] parity ((it + half) // 2 + 1) % 2\n"
)
MISTAKES = {
    "K is given back to one's own CTA alone": ("arrive k_empty[n % 2] everywhere", "arrive k_empty[n % 2]", STUCK),
    "V is given back to the first CTA alone": (
        "arrive v_empty[(n - 1) % 2] everywhere", "arrive v_empty[(n - 1) % 2] at 0", (*STUCK, errors.OverArrival)
    ),
    "a slot is free when one's own users are done": ("k_empty : mbarrier arrivals 2", "k_empty : mbarrier arrivals 1", EARLY),
    "a tile is there with its first half": ("v_full : mbarrier arrivals 2", "v_full : mbarrier arrivals 1", EARLY),
    "half a tile stays in its CTA": (" signal k_full[n % 2] multicast", " signal k_full[n % 2]", STUCK),
    "both copy the same half": ("{k: 32 * rank for 32}", "{k: 0 for 32}", EARLY),
    "K is given back before it is read": (
        "await wgmma pending 1\n          arrive k_empty[n % 2] everywhere",
        "arrive k_empty[n % 2] everywhere\n          await wgmma pending 1",
        EARLY,
    ),
    "nobody waits for the last arrivals on V": (DRAIN, "", GONE),
    "nobody waits for the last arrivals on slots": (SLOTS, "", GONE),
    "the other producer does not read the slot": ("    if rank != 0\n      let it", "    if rank == 5\n      let it", STUCK),
    "slots are given back where they were read": (
        "arrive slot_empty[(it - 1) % 2] at 0", "arrive slot_empty[(it - 1) % 2]", STUCK
    ),
    "both claim": ("    if rank == 0\n      claim", "    if rank < 2\n      claim", EARLY + STUCK + (errors.UnfinishedAsync,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name):
    old, new, expected = MISTAKES[name]
    text = show_program(clustered(GROUPED, "heads", "specialize"))
    assert old in text, text
    p = parse_program(text.replace(old, new))
    for seed in range(2):
        with pytest.raises(expected):
            kit.complaints(p, GROUPED, {"B": 2, "M": 130, "N": 200}, seed, units=2)
