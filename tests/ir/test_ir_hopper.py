"""The Hopper schedule as a tile program: right under every order tried, and every way of breaking it is reported."""

from __future__ import annotations

import pytest
from ir_oracle import Case, edited, read

from tilec.ir import errors
from tilec.ir.interp import adversaries
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program

TEXT = read("hopper_causal_d128")
PROGRAM = parse_program(TEXT)
BUSY = Case(257, 400, heads=4, group=4, extra={"SMS": 3})  # 12 tiles on 3 CTAs
SHORT = Case(128, 128, batch=2, heads=4, group=4, extra={"SMS": 2})  # one key tile each
DEAD = Case(333, 200, heads=4, group=4, extra={"SMS": 2})  # rows without keys, and a tile without any
CASES = [
    BUSY,
    Case(300, 300, batch=2, heads=4, group=4, extra={"SMS": 5}),
    DEAD,
    SHORT,
    Case(130, 900, heads=4, group=4, extra={"SMS": 1}),
    Case(700, 64, heads=4, group=4, extra={"SMS": 1}),  # mostly tiles without keys
    Case(1, 129, heads=4, group=4, extra={"SMS": 1}),
]


def test_text_is_a_fixed_point():
    assert parse_program(show_program(PROGRAM)) == PROGRAM


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_matches_dense_attention(case: Case, seed: int):
    case.check(PROGRAM, seed)


@pytest.mark.parametrize("order", adversaries(PROGRAM), ids=str)
def test_adversarial_orders(order):
    for seed in range(3):
        BUSY.check(PROGRAM, seed, order)


def test_many_seeds_give_the_same_bits():
    first = BUSY.run(PROGRAM, 0)
    for seed in range(1, 12):
        again = BUSY.run(PROGRAM, seed)
        assert all((first[n] == again[n]).all() for n in ("O", "L"))


K_WAIT = "wait k_full[n % 2] parity n // 2 % 2"
K_FREE = "        arrive k_empty[n % 2]\n"
V_FREE = "          arrive v_empty[(n - 1) % 2]\n"
LAST = "        await wgmma pending 0\n"
LAST_V = "      copy sV[(n - 1) % 2] = V[b, iota(k), h // G, iota(d)] where iota(k) < N signal v_full[(n - 1) % 2]\n"
Q_READ, Q_FREE = "    Q = @sQ[wg]\n", "    arrive q_empty[wg]\n"
Q_FENCE = "    fence async_proxy                             # the producer copies over what was read\n"
SLOT_WAIT = "    wait slot_full[(it - 1) % 2] parity (it - 1) // 2 % 2\n"
AWAIT1, AWAIT0 = "        await wgmma pending 1\n", "          await wgmma pending 0\n"
RACE, STUCK, FILL = (errors.Race,), (errors.Deadlock,), (errors.DoubleFill,)
EARLY = (errors.Race, errors.Undefined)

MUTANTS = {
    "Q copied over without a fence after ordinary reads": ([(Q_FENCE, "")], (errors.MissingFence,), SHORT),
    "K is never released": ([(K_FREE, "")], STUCK),
    "V is not released after the last step": ([(LAST + "        arrive v_empty[(n - 1) % 2]\n", LAST)], STUCK),
    "consumer starts with the wrong parity": ([(K_WAIT, K_WAIT.replace("n // 2", "(n // 2 + 1)"))], EARLY + STUCK),
    "producer starts with the wrong parity": ([("parity (n // 2 + 1) % 2", "parity n // 2 % 2")], STUCK),
    "K released before QK is complete": ([(AWAIT1 + K_FREE, K_FREE + AWAIT1)], FILL),
    "V released before PV is complete": ([(AWAIT0 + V_FREE, V_FREE + AWAIT0)], FILL),
    "scores read without waiting for QK": ([(AWAIT1, "")], RACE),
    "no wait for PV before P is overwritten": ([(AWAIT0, "")], RACE),
    "O read while the last PV is in flight": ([(LAST + "        arrive v_empty", "        arrive v_empty")], RACE),
    "O rescaled before PV is complete": ([("        S = exp2(@S", "        O = @O * @c\n        S = exp2(@S")], EARLY),
    "one K buffer behind two barriers": ([("sK[n % 2]", "sK[0]")], FILL),
    "one V buffer behind two barriers": ([("sV[(n - 1) % 2]", "sV[0]")], FILL),
    "K slots expect one consumer": (
        [("k_empty : mbarrier arrivals 2", "k_empty : mbarrier arrivals 1")],
        (errors.OverArrival, *RACE, *STUCK),
    ),
    "K slots expect three consumers": ([("k_empty : mbarrier arrivals 2", "k_empty : mbarrier arrivals 3")], STUCK),
    "only one warpgroup releases K": ([(K_FREE, "        if wg == 0\n  " + K_FREE)], STUCK),
    "K filled and arrived on by hand": (
        [("      let n = n + 1\n    for half", "      arrive k_full[n % 2]\n      let n = n + 1\n    for half")],
        (errors.OverArrival, *RACE),
    ),
    "K signals the other slot": ([("signal k_full[n % 2]", "signal k_full[(n + 1) % 2]")], EARLY),
    "V read without waiting for it": ([("        wait v_full[(n - 1) % 2] parity (n - 1) // 2 % 2\n", "")], EARLY),
    "the last V is never loaded": ([(LAST_V, "")], STUCK),
    "Q released before it is read": ([(Q_READ + Q_FENCE + Q_FREE, Q_FREE + Q_READ + Q_FENCE)], FILL, SHORT),
    "nobody gives the first turn": ([("    arrive turn[0] ", "    priority 0 ")], STUCK),
    "the claimed tile is read too early": ([(SLOT_WAIT, "")], (errors.OverArrival, *EARLY), DEAD),
    "the tile slot counts from the first tile": ([("[(it - 1) % 2]", "[it % 2]"), ("(it - 1) // 2", "it // 2")], STUCK),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_reported(name: str):
    edits, expected, *case = MUTANTS[name]
    p = edited(TEXT, *edits)
    for seed in range(4):
        with pytest.raises(expected):
            (case[0] if case else BUSY).run(p, seed)


def test_the_clocks_show_what_is_redundant():
    """Q is handed over once a tile, which already orders a slot's reader before its next writer."""
    wait = "    wait slot_empty[(it - 1) % 2] parity ((it - 1) // 2 + 1) % 2\n"
    p = edited(TEXT, (wait, ""), ("    arrive slot_empty[(it - 1) % 2]\n", ""))
    for case in CASES:
        case.check(p, 5)


def test_a_slot_counted_from_the_first_tile_fails_only_at_the_third():
    edits, expected, *_ = MUTANTS["the tile slot counts from the first tile"]
    p = edited(TEXT, *edits)
    Case(128, 128, heads=4, group=4, extra={"SMS": 4}).check(p)
    with pytest.raises(expected):
        Case(128, 128, heads=4, group=4, extra={"SMS": 1}).run(p)


def test_errors_quote_both_statements_and_their_instances():
    p = edited(TEXT, (AWAIT0 + V_FREE, V_FREE + AWAIT0))
    with pytest.raises(errors.DoubleFill) as caught:
        BUSY.run(p)
    text = str(caught.value)
    assert "sV[" in text and "read by consumer[" in text and "write by producer: copy sV" in text and "cta " in text


def test_a_deadlock_lists_what_everyone_waits_for():
    with pytest.raises(errors.Deadlock) as caught:
        BUSY.run(edited(TEXT, (K_FREE, "")))
    text = str(caught.value)
    assert "producer of cta" in text and "wait k_empty" in text and "0 of 2 arrivals" in text
