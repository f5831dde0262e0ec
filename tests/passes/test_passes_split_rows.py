"""split_rows and write_positions: every warpgroup computes its own 64 rows, and positions are arithmetic."""

import native_kit as kit
import pytest

from tilec.dsl.faults import ScheduleFault
from tilec.ir import errors
from tilec.ir.expr import Iota, Op, Read, Var, walk
from tilec.ir.nodes import Compute, Let, map_exprs
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.native import HopperOptions
from tilec.passes.split_rows import split_rows
from tilec.passes.write_positions import write_positions


def expressions(p):
    out = []
    for role in p.roles:
        for s in statements(role.body):
            map_exprs(s, lambda e: out.append(e) or e)
    return [x for e in out for x in walk(e)]


@pytest.mark.parametrize("warpgroups", [1, 2, 3])
@pytest.mark.parametrize("name", ["causal", "window, softcap, alibi, sink", "bias", "two pairs"])
def test_every_row_is_computed_once(name, warpgroups):
    p = kit.after(kit.SPECS[name], HopperOptions(warpgroups))["split_rows"]
    for sizes in kit.SIZES[1:]:
        assert kit.complaints(p, kit.SPECS[name], sizes) == []


def test_residue_order_splits_too():
    text = kit.kernel("mask (q - k) % 3 == 0 and k <= q", **kit.SMALL)
    p = split_rows(write_positions(kit.sequential(text)), 2)
    kit.verify(p)
    assert kit.complaints(p, text, kit.SQUARE) == []


def test_the_role_and_its_tiles():
    p = kit.after(kit.SPECS["causal"])["split_rows"]
    (role,) = p.roles
    assert (role.name, role.unit, role.count, role.warps) == ("consumer", "warpgroup", 2, None)
    assert {int(str(a.size)) for b in role.buffers for a in b.axes if a.name == "q"} == {64}
    offsets = [s.value for s in statements(role.body) if isinstance(s, Let) and s.name == "q_row"]
    assert [str(v) for v in offsets] == ["q_first + 64 * wg"]
    for e in expressions(p):
        match e:
            case Op("+", (x, Iota("q"))):
                assert x is Var("q_row")


def test_bounds_are_those_of_the_whole_tile():
    before = kit.after(kit.SPECS["window"])
    loops = [[(s.lo, s.hi) for s in statements(before[n].roles[0].body) if getattr(s, "proof", None)]
             for n in ("map_blocks", "split_rows")]  # fmt: skip
    assert loops[0] == loops[1]


def test_rows_must_be_64_for_each():
    p = kit.sequential(kit.SPECS["causal"], 128)
    with pytest.raises(ScheduleFault) as caught:
        split_rows(p, 3)
    assert caught.value.code == "E0812" and "128 rows" in caught.value.message and "192" in caught.value.hint


def test_rows_are_split_once():
    p = split_rows(kit.sequential(kit.SPECS["causal"], 128), 2)
    with pytest.raises(ValueError, match="already split over 2 warpgroups"):
        split_rows(p, 2)


def test_a_mask_that_is_never_true_has_nothing_to_split():
    text = kit.kernel("mask k > q + N + M", **kit.SMALL)
    with pytest.raises(ScheduleFault) as caught:
        split_rows(kit.sequential(text), 2)
    assert caught.value.code == "E0811"


def test_warpgroups_on_the_same_rows_are_found():
    p = kit.after(kit.SPECS["causal"])["split_rows"]
    wrong = parse_program(show_program(p).replace("64 * wg", "0 * wg"))
    with pytest.raises(errors.Race, match="stores too"):
        kit.complaints(wrong, kit.SPECS["causal"], kit.SIZES[0])


@pytest.mark.parametrize("name", ["causal", "window, softcap, alibi, sink", "opaque"])
def test_positions_leave_no_tile(name):
    before = kit.sequential(kit.SPECS[name])
    after = write_positions(before)
    kit.verify(after)
    held = {b.name for b in before.roles[0].buffers} - {b.name for b in after.roles[0].buffers}
    assert held == {"q", "k"}
    assert not {Read("q"), Read("k")} & set(expressions(after))
    assert not any(isinstance(s, Compute) and s.dst.buffer in held for s in statements(after.roles[0].body))
    _, _, one = kit.outputs(before, kit.SPECS[name], kit.SIZES[0])
    _, _, other = kit.outputs(after, kit.SPECS[name], kit.SIZES[0])
    assert all((one[n] == other[n]).all() for n in one)
