"""What instances and asynchronous operations may do to each other: orders that are clean, and errors where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from ir_small import COPY, program

from tilec.ir import errors, interp
from tilec.ir.interp import Order, run
from tilec.ir.parse import parse_program

PAIR = {
    "role": "2 warp as w",
    "shared": "shared s : f32[k = 8]\nshared v : i32[]\nbarrier b : named arrivals 2\nbarrier m : mbarrier arrivals 1",
}
TWO = "copy u[0] = t[iota(k)] queue q\ncopy u[1] = t[iota(k)] queue q\nawait q pending 1\n"
QUEUE = {"shared": "shared s : f32[k = 8]\nshared u : f32[k = 8] stages 2\nbarrier f : mbarrier arrivals 1 tx", **COPY}


def both(body: str, setup: dict[str, str]) -> None:
    extra = {k: v for k, v in setup.items() if k not in COPY}
    p = program(body, **COPY, **extra)
    for seed in range(4):
        run(p, {"t": np.ones(8, np.float32), "out": np.zeros(8, np.float32)}, {"N": 8}, seed=seed)


CLEAN = [
    ("if w == 0\n  s = 1.0\nsync b\nx = @s", PAIR),
    ("if w == 0\n  v = 3\n  arrive m\nelse\n  wait m parity 0\n  let a = @v", PAIR),
    ("s{k: 4 * w for 4} = 1.0\nsync b\nx = @s\nsync b\ns{k: 4 - 4 * w for 4} = 2.0", PAIR),
    ("copy s = t[iota(k)] queue q\nawait q pending 0\nx = @s", QUEUE),
    ("copy s = t[iota(k)] signal f\nwait f parity 0\nx = @s", QUEUE),
    (TWO + "x = @u[0]\nawait q pending 0\nx = @u[1]", QUEUE),
    ("load x = t[iota(k)] queue q\nawait q pending 0\nmove s = x queue q\nawait q pending 0\nx = @s", QUEUE),
    ("s{k: 4 * w for 4} = 1.0\nsync b\nmove x{k: 4 for 4} = s{k: 4 for 4}\nx{k: 0 for 4} = 0.0\nx = @x", PAIR),
]  # fmt: skip


@pytest.mark.parametrize(("body", "setup"), CLEAN, ids=[b for b, _ in CLEAN])
def test_ordered_accesses_are_clean(body: str, setup: dict[str, str]):
    both(body, setup)


BROKEN = [
    ("if w == 0\n  s = 1.0\nx = 0.0", "if w == 1\n  s = 2.0", PAIR, errors.Race),
    ("if w == 0\n  s = 1.0\n  arrive m\n  s = 2.0\nelse\n  wait m parity 0\n  x = @s", "", PAIR, errors.Race),
    ("if w == 0\n  v = 1\n  arrive m\nelse\n  let a = @v", "", PAIR, (errors.Race, errors.Undefined)),
    ("s{k: 3 * w for 4} = 1.0", "", PAIR, errors.Race),
    ("if w == 0\n  sync b", "", PAIR, errors.Deadlock),
    ("wait m parity 0", "", PAIR, errors.Deadlock),
    ("arrive b\narrive b", "", PAIR, errors.OverArrival),
    ("arrive m", "", PAIR, errors.OverArrival),
    ("if w == 0\n  arrive m\n  arrive m\nelse\n  wait m parity 0", "wait m parity 0", PAIR, errors.Deadlock),
    ("store out[iota(k)] over k = 1.0 + iota(k)", "", PAIR, errors.Race),
    ("copy s = t[iota(k)] queue q\nx = @s", "await q pending 0", QUEUE, errors.Race),
    ("copy s = t[iota(k)] queue q\ncopy s = t[iota(k)] queue q", "await q pending 0", QUEUE, errors.DoubleFill),
    ("copy s = t[iota(k)] queue q\ns = 1.0", "await q pending 0", QUEUE, errors.Race),
    (TWO + "x = @u[1]", "", QUEUE, errors.Race),
    ("load x = t[iota(k)] queue q\nx = @x + 1.0", "await q pending 0", QUEUE, (errors.Race, errors.Undefined)),
    ("s = 1.0\nmove x = s queue q\ns = 2.0", "await q pending 0", QUEUE, errors.Race),
    ("x = 1.0\nmove s = x queue q\nx = 2.0", "await q pending 0", QUEUE, errors.Race),
    ("x = 1.0\nif w == 0\n  move s = x queue q\nsync b\nx = @s", "await q pending 0", PAIR, errors.Race),
    ("copy s = t[iota(k)] queue q", "", QUEUE, errors.UnfinishedAsync),
    ("copy s = t[iota(k)] signal f", "", QUEUE, errors.UnfinishedAsync),
    ("copy s = t[iota(k)] signal f\narrive f\nwait f parity 0\nx = @s", "", QUEUE, (errors.OverArrival, errors.Race)),
    ("wait m parity 0", "", {**PAIR, "shared": PAIR["shared"].replace("arrivals 1", "arrivals 1 stages 2")}, errors.Deadlock),
    ("arrive m[2 + w]", "", PAIR, errors.OutOfBounds),
]  # fmt: skip


@pytest.mark.parametrize(("body", "rest", "setup", "error"), BROKEN, ids=[f"{b};{r}" for b, r, _, _ in BROKEN])
def test_unordered_accesses_are_errors(body: str, rest: str, setup: dict[str, str], error: type[Exception]):
    with pytest.raises(error) as caught:
        both("\n".join(filter(None, (body, rest))), setup)
    assert not isinstance(caught.value, errors.CallError)


FENCED = """\
if w == 0
  a = 1.0
  fence async_proxy
  arrive m
else
  wait m parity 0
  b = 1.0
  mma c = a . b queue q
  await q pending 0"""


def test_asynchronous_reads_of_ordinary_writes_need_a_fence():
    setup = {
        "role": "2 warpgroup as w",
        "shared": "shared a : bf16[q = 4, d = 4]\nbarrier m : mbarrier arrivals 1",
        "registers": "b : bf16[d = 4, k = 4]\nc : f32[q = 4, k = 4]",
    }
    run(program(FENCED, **setup), {}, {"N": 1})
    with pytest.raises(errors.MissingFence):
        run(program(FENCED.replace("  fence async_proxy\n", ""), **setup), {}, {"N": 1})


def test_register_operands_stay_in_use_until_awaited():
    registers = "a : bf16[q = 4, d = 4]\nb : bf16[d = 4, k = 4]\nc : f32[q = 4, k = 4]"
    start = "a = 1.0\nb = 1.0\nmma c = a . b queue q\nmma c += a . b queue q\n"
    run(program(start + "await q pending 0\na = 2.0\nc = @c", registers=registers), {}, {"N": 1})
    with pytest.raises(errors.UnfinishedAsync):
        run(program(start, registers=registers), {}, {"N": 1})
    for touch in ("a = 2.0", "c = 1.0", "b = 2.0"):
        with pytest.raises(errors.Race):
            run(
                program(start + "await q pending 1\n" + touch + "\nawait q pending 0", registers=registers),
                {},
                {"N": 1},
            )


def test_memory_shared_by_alias_is_one_memory():
    setup = {
        "role": "2 warp as w",
        "shared": "shared s : f32[k = 8]\nshared z : bf16[q = 16] alias s\nbarrier b : named arrivals 2",
    }
    run(program("if w == 0\n  s = 1.0\nsync b\nif w == 1\n  z = 1.0", **setup), {}, {"N": 1})
    with pytest.raises(errors.Race):
        run(program("if w == 0\n  s = 1.0\nelse\n  z = 1.0", **setup), {}, {"N": 1})


def test_statements_during_a_compute_may_not_release_its_operands():
    body = """\
if w == 0
  s = 1.0
  arrive m
  wait n parity 0
  s = 2.0
else
  wait m parity 0
  x = @s after 1 of 2
    arrive n"""
    setup = {
        "role": "2 warp as w",
        "shared": "shared s : f32[k = 8]\nbarrier m : mbarrier arrivals 1\nbarrier n : mbarrier arrivals 1",
        "registers": "x : f32[k = 8]",
    }
    with pytest.raises(errors.Race):
        for seed in range(4):
            run(program(body, **setup), {}, {"N": 1}, seed=seed)


@pytest.mark.parametrize("order", [Order(), Order("late"), Order("early", ("r[0]",))], ids=str)
def test_claims_number_every_tile_once(order: Order):
    p = parse_program(
        "program p on cpu\nextent N\ntensor out : out i32[N]\ntensor c : counter i32[]\ngrid tiles N ctas 3 order linear\n"
        "role r : 1 block\n  let t = cta\n  while t < N\n    store out[t] = cta + 1\n    claim t from c\n"
    )
    out = np.zeros(20, np.int64)
    run(p, {"out": out}, {"N": 20}, seed=3, schedule=order)
    assert (out > 0).all() and len(set(out)) > 1


def test_an_endless_program_is_stopped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(interp, "LIMIT", 1000)
    with pytest.raises(errors.Endless):
        run(program("while N > 0\n  arrive b", shared="barrier b : mbarrier arrivals 1"), {}, {"N": 1})
