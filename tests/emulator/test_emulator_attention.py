"""A block of attention made by clang: right to the rounding of bf16, without complaints, and wrong where it was mutated."""

import time

import numpy as np
import pytest
from emulator_kit import Attention, compiled, edited, kinds, needs_clang, without

pytestmark = needs_clang


def launched(emulator, rows=256, keys=192, **options):
    made = Attention(rows, keys)
    run = made.launch(emulator, **options)
    return made, run


@pytest.mark.parametrize(("rows", "keys"), [(256, 256), (37, 1), (300, 100)])
def test_a_block_is_right_and_silent(rows, keys):
    made, run = launched(compiled("attention.hip"), rows, keys)
    error, lse = made.errors()
    assert run.findings == ()
    assert error < 2**-8 and lse < 2e-6


def test_a_block_of_256_keys_takes_seconds():
    start = time.process_time()
    launched(compiled("attention.hip"), 256, 256)
    assert time.process_time() - start < 3


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_waves_gives_the_same_bits(seed):
    in_order, _ = launched(compiled("attention.hip"))
    made, run = launched(compiled("attention.hip"), order_seed=seed)
    assert run.findings == ()
    assert (made.o.view(np.uint16) == in_order.o.view(np.uint16)).all() and (made.lse == in_order.lse).all()


def test_only_some_blocks():
    made, run = launched(compiled("attention.hip"), 512, 64, only_blocks=[(1, 0, 0)])
    assert run.findings == () and np.isnan(made.lse[:256]).all() and not np.isnan(made.lse[256:]).any()


def test_swizzles_are_free_of_conflicts_and_their_absence_is_seen():
    _, run = launched(compiled("attention.hip"), keys=64)
    assert all(b.cycles == b.ideal for b in run.bank_cycles)
    _, plain = launched(compiled("attention.hip", "-DNO_SWIZZLE"), keys=64)
    rows = {b.cycles // b.times for b in plain.bank_cycles if b.instruction.name == "ds_read_b128"}
    assert plain.findings == () and rows == {64}


@pytest.mark.parametrize("flag", ["-DNO_BARRIER", "-DSAME_BUFFER"])
def test_missing_barriers_and_buffers(flag):
    made, run = launched(compiled("attention.hip", flag), keys=256)
    assert "race" in kinds(run) and made.errors()[0] > 2**-8


def test_waits_of_the_compiler_stand_in_for_the_one_left_out():
    made, run = launched(compiled("attention.hip", "-DNO_WAIT"))
    assert run.findings == () and made.errors()[0] < 2**-8


def loop_of(emulator):
    """Instructions of the loop over tiles: from the target of the last backward branch to it."""
    found = emulator.listing.instructions
    barrier = next(n for n, x in enumerate(found) if x.name == "s_barrier")
    return found, barrier


def test_no_wait_at_all_before_the_barrier():
    """Every wait for vector memory before the loop's barrier taken out: the DMA and the staged rows are both too early."""
    good = compiled("attention.hip", "-DNO_WAIT")
    found, barrier = loop_of(good)
    early = {x.address for x in found[:barrier] if x.name == "s_waitcnt" and "vmcnt" in x.text}

    def change(x):
        return "s_waitcnt lgkmcnt(0)" if x.address in early else None

    _, run = launched(edited(good, change))
    assert {"race", "wait"} <= kinds(run)


def test_reads_of_lds_need_their_waits():
    good = compiled("attention.hip")
    found, barrier = loop_of(good)
    after = next(x for x in found[barrier:] if x.name == "s_waitcnt" and "lgkmcnt" in x.text)
    _, run = launched(edited(good, lambda x: "s_nop 0" if x is after else None), keys=64)
    assert "wait" in kinds(run)


def test_wait_states_of_products():
    good = compiled("attention.hip")
    found = good.listing.instructions
    pads = [n for n, x in enumerate(found) if x.name == "s_nop" and found[n - 1].name.startswith("v_mfma")]
    assert pads, "clang pads the products whose result is read at once"
    one = found[pads[0]]
    _, run = launched(edited(good, lambda x: "s_nop 0" if x is one else None), keys=64)
    assert kinds(run) == {"hazard"}


def test_a_barrier_that_one_half_skips():
    good = compiled("attention.hip")
    _, run = launched(without(good, "s_barrier"), keys=128)
    assert "race" in kinds(run)
