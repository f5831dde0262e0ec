"""What CTAs of a cluster may do to each other, and what is reported where they must not."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.ir import errors
from tilec.ir.interp import Order, run
from tilec.ir.parse import parse_program
from tilec.ir.verify import IRError, verify

HEAD = """\
program p on sm90
extent N
tensor t : in f32[16]
tensor out : out f32[N, 16]
grid tiles 1 ctas 2 order linear cluster 2 as rank
shared s : f32[k = 16]
shared v : i32[]
barrier f : mbarrier arrivals 2 tx
barrier g : mbarrier arrivals 1 tx
barrier m : mbarrier arrivals 2
role r : 1 warp
  register x : f32[k = 16]
"""
HALF = "copy s{k: 8 * rank for 8} = t[8 * rank + iota(k)] signal f multicast\n"
READ = "wait f parity 0\nx = @s\n"
LEAVE = "arrive m everywhere\nwait m parity 0\n"
STORE = "store out[rank, iota(k)] over k = @x\n"


def launch(body: str, seed: int = 0, order: Order = Order()) -> np.ndarray:  # noqa: B008
    p = parse_program(HEAD + "".join(f"  {line}\n" for line in body.splitlines()))
    out = np.full((2, 16), np.nan, np.float32)
    run(p, {"t": np.arange(16, dtype=np.float32), "out": out}, {"N": 2}, seed=seed, schedule=order)
    return out


@pytest.mark.parametrize(
    "order", [Order(), Order("late"), Order("early", ("rank 0",)), Order("late", ("rank 1",))], ids=str
)
def test_halves_copied_by_both_are_a_whole_for_both(order: Order):
    for seed in range(4):
        assert (launch(HALF + READ + STORE + LEAVE, seed, order) == np.arange(16)).all()


def test_a_scalar_is_sent_to_all():
    send = "if rank == 1\n  send v = 7 signal g\nwait g parity 0\nx = @v\n"
    assert (launch(send + STORE) == 7).all()


BROKEN = [
    ("a half is read as the whole", HALF + "x = @s\nwait f parity 0\n" + STORE, (errors.Race, errors.Undefined)),
    ("both bring the same half", HALF.replace("8 * rank", "0") + READ + STORE, (errors.Race, errors.Undefined)),
    ("the peer ends first", HALF + READ + STORE + "arrive m everywhere\n", errors.Abandoned),
    ("an arrival at a CTA that ends", HALF + READ + STORE + "if rank == 0\n  arrive m at 1", errors.Abandoned),
    ("the other half is not waited for", "if rank == 0\n  " + HALF, errors.UnfinishedAsync),
    ("filled again while the peer reads", HALF + READ + HALF + STORE, errors.Race),
    ("no such CTA", "arrive m at 2", errors.OutOfBounds),
    ("a barrier of one's own", HALF + READ + "arrive m\nwait m parity 0\n", errors.Deadlock),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_mistakes_are_reported(body: str, expected: type[Exception]):
    for seed in range(4):
        with pytest.raises(expected):
            launch(body, seed)


def test_what_reaches_other_ctas_needs_a_cluster():
    for line in (HALF, "send v = 7 signal g", "arrive m everywhere", "arrive m at 1"):
        text = HEAD.replace(" cluster 2 as rank", "") + "  " + line.replace("8 * rank", "0").rstrip() + "\n"
        with pytest.raises(IRError, match="have no cluster"):
            verify(parse_program(text))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("send s = 7 signal g", "goes to a scalar"),
        ("send v = 0.5 signal g", "must be int"),
        ("send v = 7 signal m", "does not count bytes"),
        ("arrive m at 1 everywhere", "one CTA, and all"),
        ("copy s = t[iota(k)] queue q multicast", "completes by a signal"),
        ("let rank = 0", "rank has another meaning"),
    ],
)
def test_statements_that_are_not_well_formed(line: str, message: str):
    with pytest.raises(IRError, match=message):
        verify(parse_program(HEAD + f"  {line}\n"))


def test_a_grid_of_whole_clusters():
    with pytest.raises(errors.CallError, match="clusters"):
        run(parse_program(HEAD.replace("ctas 2", "ctas 3") + "  pass\n"), {"t": np.zeros(16, np.float32),
            "out": np.zeros((2, 16), np.float32)}, {"N": 2})  # fmt: skip
