"""Packed and padded sequences in native programs: what lies behind the end of one reaches nothing, under every order."""

import native_kit as kit
import pytest

from tilec.ir import errors
from tilec.ir.interp import Order, adversaries
from tilec.ir.nodes import Copy, Fence, If, walk
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline
from tilec.passes.specialize import Roles

BATCH = {"B": 8, "M": 150, "N": 150}  # lengths 150, 0, 1, 63, 64, 65, 127 and one more
MANY = {"B": 9, "M": 70, "N": 140}


def specialized(name, warpgroups=2, pipeline=Pipeline(), **roles):  # noqa: B008
    return kit.after(kit.STORED[name], HopperOptions(warpgroups, pipeline, Roles(**roles)))["specialize"]


@pytest.mark.parametrize("name", kit.STORED)
def test_every_pass_keeps_the_meaning(name):
    for n, p in enumerate(kit.after(kit.STORED[name]).values()):
        assert kit.complaints(p, kit.STORED[name], MANY, n) == []


@pytest.mark.parametrize("name", kit.STORED)
def test_roles_keep_the_meaning(name):
    p = specialized(name)
    orders = adversaries(p)
    assert kit.complaints(p, kit.STORED[name], BATCH, 1, orders[len(name) % len(orders)], units=2) == []


OPTIONS = [
    (1, Pipeline(), {"stages": 1, "work": "static"}),
    (3, Pipeline(wait=0), {"stages": 3, "work": "one", "queries": "shared"}),
    (2, Pipeline(lag=False), {"queries": "shared"}),
]


@pytest.mark.parametrize("name", ["packed", "padded"])
@pytest.mark.parametrize(("warpgroups", "pipeline", "roles"), OPTIONS, ids=str)
def test_options_keep_the_meaning(name, warpgroups, pipeline, roles):
    p = specialized(name, warpgroups, pipeline, **roles)
    assert kit.complaints(p, kit.STORED[name], MANY, 3, Order(), units=3) == []


def test_adversarial_orders():
    p = specialized("packed")
    for order in adversaries(p):
        assert kit.complaints(p, kit.STORED["packed"], MANY, 2, order, units=1) == []


@pytest.mark.parametrize("lengths", [{"q": [0, 0, 0], "k": [0, 0, 0]}, {"q": [5, 0, 9], "k": [0, 40, 0]}])
def test_sequences_without_rows_or_keys(lengths):
    p = specialized("packed")
    sizes = {"B": 3, "M": 9, "N": 40}
    assert kit.complaints(p, kit.STORED["packed"], sizes, lengths=lengths, units=2) == []


def test_only_values_behind_the_end_are_cleared():
    producer, _ = specialized("packed").roles
    tails = [s for s in walk(producer.body) if isinstance(s, If) and any(isinstance(x, Fence) for x in s.then)]
    assert tails and all({x.tensor for x in walk(s.then) if isinstance(x, Copy)} == {"V"} for s in tails)
    (dense, _) = kit.after(kit.SPECS["causal"])["specialize"].roles
    assert not any(isinstance(s, Fence) for s in walk(dense.body))
    assert all(b.name != "landed" for b in kit.after(kit.SPECS["causal"])["specialize"].barriers)


MISTAKES = {
    "no fence": ("fence async_proxy", "priority 0", errors.MissingFence),
    "no arrival": ("          arrive v_full[(n - 1) % 2]\n", "", errors.Deadlock),
    "cleared before it landed": ("wait landed parity tails % 2", "priority 0", (errors.Race, errors.Undefined)),
    "the copy signals the ring": ("signal landed", "signal v_full[(n - 1) % 2]", (errors.Deadlock, errors.Race)),
    "tails are not counted": ("let tails = tails + 1", "priority 0", (errors.Deadlock, errors.Race)),
    "rows are not counted": ("let rows = rows + 1", "priority 0", (errors.Deadlock, errors.Race, errors.OverArrival)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name):
    old, new, expected = MISTAKES[name]
    text = show_program(specialized("packed"))
    assert old in text
    p = parse_program(text.replace(old, new))
    with pytest.raises(expected):
        for seed in range(4):
            kit.complaints(p, kit.STORED["packed"], MANY, seed, units=1)


def test_without_clearing_poison_comes_through():
    text = show_program(specialized("padded keys"))
    old = "where(j_prev * TK + iota(k) < N, @sV[(n - 1) % 2], 0.0)"
    assert old in text
    p = parse_program(text.replace(old, "@sV[(n - 1) % 2]"))
    assert kit.complaints(p, kit.STORED["padded keys"], MANY, 1)


def test_behind_the_last_page_nothing_is_looked_up():
    text = show_program(specialized("pages"))
    old = "min((j_first * TK + iota(k)) // 16, (N - 1) // 16)"
    assert old in text
    p = parse_program(text.replace(old, "(j_first * TK + iota(k)) // 16"))
    with pytest.raises(errors.OutOfBounds):
        kit.complaints(p, kit.STORED["pages"], MANY)
