"""turnover: what of the next tile comes before the end of one changes no result, under any order, and every slip is reported."""

from dataclasses import replace

import native_kit as kit
import pytest

from tilec.dsl.faults import ScheduleFault
from tilec.frontend import read_text
from tilec.ir import errors
from tilec.ir.expr import free_vars
from tilec.ir.interp import Order, adversaries
from tilec.ir.nodes import Arrive, Await, Cluster, If, Let, Mma, Seek, Store, Wait
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.ir.verify import verify
from tilec.native import HopperOptions, program_at
from tilec.passes.overlap import Pipeline
from tilec.passes.specialize import Roles
from tilec.schedule import EMPTY
from tilec.tune.hopper import Point

AHEAD = ("number", "scores")
BUSY = {"B": 1, "M": 400, "N": 400}  # 8 tiles on one CTA
KEYLESS = {"B": 1, "M": 500, "N": 150}  # of each head, two tiles without keys before one with some and one with all


def turned(name, ahead, warpgroups=2, stage="place_buffers", **roles):
    return kit.after(kit.SPECS[name], HopperOptions(warpgroups, roles=Roles(ahead=ahead, **roles)))[stage]


def epilogue(p):
    (found,) = (s for s in statements(p.roles[1].body) if isinstance(s, Cluster) and s.kind == "epilogue")
    return found.body


def kinds(body, *wanted):
    return [type(s).__name__ for s in statements(body) if isinstance(s, wanted)]


# ---------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("name", kit.SPECS)
def test_results_stay(name, ahead):
    p = turned(name, ahead)
    orders = adversaries(p)
    for n, sizes in enumerate((kit.SIZES[0], KEYLESS)):
        order = orders[(5 * n + len(name)) % len(orders)]
        assert kit.complaints(p, kit.SPECS[name], sizes, n, order, units=1 + n) == []


@pytest.mark.parametrize("order", adversaries(turned("causal", "scores")), ids=str)
def test_adversarial_orders(order):
    p = turned("causal", "scores")
    for seed, sizes in enumerate((BUSY, KEYLESS)):
        assert kit.complaints(p, kit.SPECS["causal"], sizes, seed, order, units=1) == []


OPTIONS = [
    (1, {"stages": 1, "work": "static"}),
    (2, {"stages": 1, "queries": "shared"}),
    (3, {"stages": 4, "queries": "shared", "query_slots": 2}),
    (2, {"query_slots": 2, "turns": False}),
]


@pytest.mark.parametrize("name", ["causal", "two pairs", "chunks and first"])
@pytest.mark.parametrize(("warpgroups", "roles"), OPTIONS, ids=str)
def test_options_keep_the_meaning(name, warpgroups, roles):
    p = turned(name, "scores", warpgroups, **roles)
    orders = (Order(), *adversaries(p))
    for n, sizes in enumerate((BUSY, KEYLESS)):
        assert kit.complaints(p, kit.SPECS[name], sizes, n, orders[warpgroups + n], units=1) == []


@pytest.mark.parametrize("ahead", AHEAD)
def test_padded_keys(ahead):
    text = kit.STORED["padded keys"]
    p = kit.after(text, HopperOptions(roles=Roles(ahead=ahead)))["place_buffers"]
    assert kit.complaints(p, text, {"B": 3, "M": 200, "N": 300}, 1, units=1) == []


@pytest.mark.parametrize("pairs", ["rows", "heads"])
def test_pairs_of_ctas(pairs):
    text = kit.kernel(kit.CAUSAL, h="h : 4", head="h // 2", **kit.SMALL)
    p = kit.after(text, HopperOptions(1, roles=Roles(ahead="scores"), pairs=pairs))["place_buffers"]
    for n, order in enumerate(adversaries(p)[:3]):
        assert kit.complaints(p, text, KEYLESS, n, order, units=2) == []


@pytest.mark.parametrize("ahead", AHEAD)
def test_bounds_of_loops_still_have_their_proofs(ahead):
    verify(turned("causal", ahead))


# ---------------------------------------------------------------------------------------------- form


def test_the_number_is_mapped_between_the_last_product_and_its_await():
    *_, last = (n for n, s in enumerate(epilogue(turned("causal", "number"))) if isinstance(s, Mma))
    after = epilogue(turned("causal", "number"))[last + 1 :]
    assert kinds(after, Wait, If, Await, Arrive) == ["Wait", "Arrive", "If", "Await", "Arrive"]
    (more,) = (s for s in after if isinstance(s, If))
    assert {"m", "h", "b"} <= {s.name for s in statements(more.then) if isinstance(s, Let)}
    assert str(more.cond) == "t < tiles"


def test_scores_are_issued_before_the_end_and_awaited_after_it():
    *_, choice = epilogue(turned("causal", "scores"))
    assert isinstance(choice, If) and str(choice.cond) == "t < tiles and 0 < end"
    assert kinds(choice.then, Mma, Await, Store) == ["Mma", "Await", "Store", "Store", "Await"]
    assert [s.pending for s in statements(choice.then) if isinstance(s, Await)] == [1, 0]
    assert kinds(choice.orelse, Mma, Await, Store) == ["Await", "Store", "Store"]


def test_two_pairs_are_in_flight_together():
    *_, choice = epilogue(turned("two pairs", "scores"))
    assert [s.pending for s in statements(choice.then) if isinstance(s, Await)] == [2, 0]


def test_where_all_tiles_have_keys_or_none_has_a_tile_without_prepares_nothing():
    p = turned("no mask, f16", "scores")
    assert str(epilogue(p)[-1].cond) == "t < tiles"
    assert sum(isinstance(s, Cluster) and s.kind == "ahead" for s in statements(p.roles[1].body)) == 2
    assert sum(isinstance(s, Mma) and not s.accumulate for s in statements(p.roles[1].body)) == 4


def test_the_end_reads_the_tile_that_ends():
    p = turned("causal", "scores")
    early = {s.name for s in statements(epilogue(p)) if isinstance(s, Let | Seek)}
    used = {n for s in statements(p.roles[1].body) if isinstance(s, Store) for i in s.index for n in free_vars(i)}
    assert not used & early and {"h_out", "b_out"} <= used


@pytest.mark.parametrize("ahead", AHEAD)
def test_registers_do_not_double(ahead):
    """Tiles, and rows that steps carry: as many as with nothing ahead."""
    notes = {a: turned("causal", a).notes[-1] for a in ("nothing", ahead)}
    assert notes["nothing"] == notes[ahead] and "scores" in notes[ahead] and "weights" not in notes[ahead]


# ---------------------------------------------------------------------------------------------- from the tuning table


def test_a_point_says_what_is_ahead():
    attn = read_text(kit.FIXTURE).kernels[0]
    point = Point(2, 128, "registers", True, 0.25, 2)
    for ahead in ("nothing", *AHEAD):
        p = program_at(attn, "sm90", EMPTY, replace(point, ahead=ahead))
        found = [s for s in statements(p.roles[1].body) if isinstance(s, Cluster) and s.kind == "ahead"]
        assert bool(found) == (ahead == "scores")


@pytest.mark.parametrize("name", kit.STORED)
def test_a_point_holds_for_every_storage(name):
    attn = read_text(kit.STORED[name]).kernels[0]
    point = Point(2, 64, "registers", True, 0.25, 2, ahead="scores")
    p = program_at(attn, "sm90", EMPTY, point)
    found = [s for s in statements(p.roles[1].body) if isinstance(s, Cluster) and s.kind == "ahead"]
    assert bool(found) == (attn.index(attn.q).storage.kind == "dense")


# ---------------------------------------------------------------------------------------------- refusals and mistakes


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize(
    ("text", "pipeline", "work"),
    [
        (kit.SPECS["causal"], Pipeline(), "one"),
        (kit.SPECS["causal"], Pipeline(lag=False), "dynamic"),
        (kit.STORED["packed"], Pipeline(), "dynamic"),
    ],
)
def test_what_cannot_begin_ahead_is_refused(text, pipeline, work, ahead):
    with pytest.raises(ScheduleFault) as caught:
        kit.after(text, HopperOptions(2, pipeline, Roles(ahead=ahead, work=work)))
    assert caught.value.code == "E0811" and "the end of one" in caught.value.message


STUCK, FILL, RACE = (errors.Deadlock,), (errors.DoubleFill,), (errors.Race,)
EARLY = (errors.OverArrival, errors.Race, errors.Undefined)
MORE = "if t < tiles and 0 < end\n"
MISTAKES = {
    "the last product is not awaited": ("await wgmma pending 1\n            arrive v", "arrive v", RACE + FILL),
    "the first scores are not awaited": ("await wgmma pending 0\n            arrive k", "arrive k", RACE + FILL),
    "K is given back while the scores are made": (
        "await wgmma pending 0\n            arrive k_empty[n % 2]",
        "arrive k_empty[n % 2]\n            await wgmma pending 0",
        FILL,
    ),
    "V is given back while it is multiplied": (
        "await wgmma pending 1\n            arrive v_empty[(n - 1) % 2]",
        "arrive v_empty[(n - 1) % 2]\n            await wgmma pending 1",
        FILL,
    ),
    "the first keys ahead are not counted": (
        "            arrive k_empty[n % 2]\n            let n = n + 1\n",
        "            arrive k_empty[n % 2]\n",
        STUCK + EARLY + FILL,
    ),
    "scores of a tile without keys": (MORE, "if t < tiles\n", STUCK + EARLY),
    "scores of a tile that is not there": (MORE, "if 0 < end\n", STUCK),
    "queries of the tile before": ("let it = it + 1\n", "let it = it + 0\n", STUCK + EARLY),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name):
    old, new, expected = MISTAKES[name]
    text = show_program(turned("causal", "scores", stage="specialize"))
    at = text.index("cluster epilogue")
    assert old in text[at:]
    p = parse_program(text[:at] + text[at:].replace(old, new))
    for seed in range(2):
        with pytest.raises(expected):
            for sizes in (BUSY, KEYLESS):
                kit.complaints(p, kit.SPECS["causal"], sizes, seed, units=1)


def test_a_store_at_the_next_tiles_rows_is_wrong():
    text = show_program(turned("causal", "scores", stage="specialize"))
    at = text.index("cluster epilogue")
    p = parse_program(text[:at] + text[at:].replace("b_out, q_row + iota(q), h_out", "b_out, q_row + iota(q), h"))
    with pytest.raises((errors.Race, AssertionError)):
        assert kit.complaints(p, kit.SPECS["causal"], BUSY, units=1) == []
