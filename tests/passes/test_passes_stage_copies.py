"""stage_copies: the same values through shared tiles, and every wait and sync is needed."""

from itertools import cycle

import native_kit as kit
import pytest

from tilec.ampere import WarpOptions
from tilec.dsl.faults import ScheduleFault
from tilec.ir import errors
from tilec.ir.nodes import Await, Copy, For, If, Load, Sync, walk
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.ir.verify import verify
from tilec.passes.stage_copies import Staging, stage_copies

SHALLOW, DEEP = WarpOptions(), WarpOptions(staging=Staging(2, "registers"))
REUSED = kit.kernel(kit.CAUSAL, value="K", **kit.SMALL)


SPECS = [n for n in kit.SPECS if "pack" not in n]  # those with sizes of their own: test_passes_warps


@pytest.mark.parametrize(("name", "options"), list(zip(SPECS, cycle((SHALLOW, DEEP)), strict=False)))
def test_results_are_right(name, options):
    options = DEEP if "keys that are values" in name else options  # one slot of them is in use for a whole step
    p = kit.on_warps(kit.SPECS[name], options)["stage_copies"]
    assert parse_program(show_program(p)) == p
    for sizes in kit.SIZES[1:]:
        assert kit.complaints(p, kit.SPECS[name], sizes) == []


def test_a_value_that_is_a_key_needs_two_slots():
    p = kit.on_warps(REUSED, DEEP)["stage_copies"]
    assert [b.name for b in p.buffers] == ["sQ", "sK"]
    assert kit.complaints(p, REUSED, kit.SIZES[0]) == []
    with pytest.raises(ScheduleFault) as caught:
        kit.on_warps(REUSED, SHALLOW)
    assert caught.value.code == "E0811" and "stages 2" in caught.value.hint


def test_blocks_that_take_several_tiles_may_not_run_ahead():
    for options in (SHALLOW, DEEP):
        p = kit.on_warps(kit.SPECS["causal"], options, units=2)["stage_copies"]
        assert kit.complaints(p, kit.SPECS["causal"], kit.SIZES[0]) == []


def test_the_copies_of_a_step():
    p = kit.on_warps(kit.SPECS["causal"], SHALLOW)["stage_copies"]
    (role,) = p.roles
    loops = [s for s in walk(role.body) if isinstance(s, For)]
    assert all(s.down for s in loops) and len(loops) == 2
    for loop in loops:
        assert sum(isinstance(s, Sync) for s in loop.body) == sum(isinstance(s, Await) for s in loop.body) == 2
        (ahead,) = (s for x in loop.body if isinstance(x, If) for s in x.then)
        assert isinstance(ahead, Copy) and ahead.tensor == "K" and ahead.where is None
    guarded = [any(isinstance(s, Copy) and s.where is not None for s in loop.body) for loop in loops]
    assert guarded == [True, False]
    assert not any(isinstance(s, Load) and s.tensor in "QKV" for s in walk(role.body))


def without(text, line, number):
    """The program without its occurrence `number` of a line."""
    parts = text.split(line)
    return parse_program(line.join(parts[: number + 1]) + line.join(parts[number + 1 :]))


@pytest.mark.parametrize("options", [SHALLOW, DEEP], ids=["shallow", "deep"])
@pytest.mark.parametrize("line", ["        await cp_async pending 0\n", "        sync everyone\n"])
def test_every_wait_and_sync_of_a_step_is_needed(line, options):
    text = show_program(kit.on_warps(kit.SPECS["causal"], options)["stage_copies"])
    count = text.count(line)
    assert count == (4 if options is SHALLOW else 2)
    for number in range(count):
        wrong = without(text, line, number)
        with pytest.raises(errors.ExecutionError):
            kit.complaints(wrong, kit.SPECS["causal"], {"B": 1, "M": 257, "N": 400})


def test_a_copy_to_the_slot_in_use_is_found():
    text = show_program(kit.on_warps(kit.SPECS["causal"], DEEP)["stage_copies"])
    wrong = parse_program(text.replace("copy sK[(n + 1) % 2]", "copy sK[n % 2]"))
    with pytest.raises(errors.ExecutionError):
        kit.complaints(wrong, kit.SPECS["causal"], kit.SIZES[0])


REJECTED = {
    "three stages": (kit.SPECS["causal"], WarpOptions(staging=Staging(3)), 32, "E0808"),
    "f32": (kit.kernel(kit.CAUSAL, dtype="f32", **kit.SMALL), SHALLOW, 32, "E0811"),
    "keys that four warps cannot share out": (kit.SPECS["causal"], SHALLOW, 34, "E0812"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_it_refuses(case):
    text, options, keys, code = REJECTED[case]
    with pytest.raises(ScheduleFault) as caught:
        kit.on_warps(text, options, k=keys)
    assert caught.value.code == code


def test_it_needs_warps():
    with pytest.raises(ValueError, match="split over warps"):
        stage_copies(kit.sequential(kit.SPECS["causal"]))


def test_proofs_hold():
    for name in ("window", "two windows"):
        verify(kit.on_warps(kit.SPECS[name], SHALLOW)["stage_copies"])
