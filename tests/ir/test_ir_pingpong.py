"""The 8-wave ping-pong schedule as a tile program: right under every order tried, and broken ones are reported."""

from __future__ import annotations

import pytest
from ir_oracle import Case, edited, read

from tilec.ir import errors
from tilec.ir.interp import adversaries
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program

TEXT = read("gfx942_pingpong_d128")
PROGRAM = parse_program(TEXT)
BUSY = Case(300, 400)
CASES = [
    BUSY,
    Case(257, 257, batch=2, heads=1),
    Case(333, 200, heads=1),
    Case(1, 65),
    Case(70, 64, heads=1),
    Case(3, 1),
]


def test_text_is_a_fixed_point():
    assert parse_program(show_program(PROGRAM)) == PROGRAM


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_matches_dense_attention(case: Case, seed: int):
    case.check(PROGRAM, seed)


@pytest.mark.parametrize("order", adversaries(PROGRAM), ids=str)
def test_adversarial_orders(order):
    BUSY.check(PROGRAM, 1, order)


def test_grouped_heads():
    Case(100, 300, heads=4, group=2).check(edited(TEXT, ("D = 128, G = 1", "D = 128, G = 2")))


END = "        priority 0\n      sync bar\n      cluster memory\n        if j > 0\n"
LAST = "          await vm pending 0\n      sync bar\n"
BAR = "      sync bar\n"
K_COPY = "          copy sK[j % 2]{k: 8 * w for 8}"

MUTANTS = {
    "no barrier after QK": ([(END, END.replace("      sync bar\n", ""))], (errors.Race, errors.Undefined)),
    "no barrier after the copies of V": (
        [(LAST + "    cluster epilogue", LAST.removesuffix(BAR) + "    cluster epilogue")],
        (errors.Race,),
    ),
    "group 1 is not offset": (
        [("    if w // 4 == 1\n      sync bar ", "    if w // 4 == 1\n      priority 0 ")],
        (errors.Deadlock,),
    ),
    "group 0 does not catch up": (
        [("    if w // 4 == 0\n      sync bar ", "    if w // 4 == 0\n      priority 0 ")],
        (errors.Deadlock,),
    ),
    "three copies may be in flight": (
        [("await vm pending 2\n        else", "await vm pending 3\n        else")],
        (errors.Race,),
    ),
    "copies are never awaited": (
        [("await vm pending 2\n        else\n          await vm pending 0", "priority 0")],
        (errors.Race,),
    ),
    "tails are not awaited": ([("          await vm pending 0\n", "          priority 0\n")], (errors.Race,)),
    "one K buffer": ([("sK[(j + 1) % 2]", "sK[0]"), ("sK[j % 2]", "sK[0]")], (errors.Race,)),
    "one V buffer": ([("sV[(j + 1) % 2]", "sV[0]")], (errors.Race,)),
    "K goes where it is still read": (
        [(K_COPY, K_COPY.replace("j % 2", "(j + 1) % 2"))],
        (errors.Race, errors.Undefined),
    ),
    "the barrier counts one group": (
        [("bar : named arrivals 8", "bar : named arrivals 4")],
        (errors.OverArrival, errors.Race),
    ),
    "the barrier counts nine": ([("bar : named arrivals 8", "bar : named arrivals 9")], (errors.Deadlock,)),
    "two waves copy one share": (
        [("sV[(j + 1) % 2]{k: 8 * w", "sV[(j + 1) % 2]{k: 8 * (w % 4)")],
        (errors.Race, errors.Undefined),
    ),
    "a wave copies outside the tile": ([("{k: 8 * w for 8}", "{k: 8 * w + 4 for 8}")], (errors.OutOfBounds,)),
    "nothing orders the first tile": (
        [("      sync bar\n      Kf = @sK[0]\n", "      Kf = @sK[0]\n")],
        (errors.Race, errors.Undefined),
    ),
    "a barrier only half the waves meet": (
        [("      sync bar\n      Vf", "      if w % 2 == 0\n        sync bar\n      Vf")],
        (errors.Deadlock, errors.Race),
    ),
    "rows outside the tensor are read": (
        [(" where row + iota(q) < M\n  O = 0.0", "\n  O = 0.0")],
        (errors.OutOfBounds,),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_reported(name: str):
    edits, expected = MUTANTS[name]
    p = edited(TEXT, *edits)
    for seed in range(3):
        with pytest.raises(expected):
            BUSY.run(p, seed)
