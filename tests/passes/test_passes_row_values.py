"""row_values: the division of the output is made once per row, and nothing else changes."""

import native_kit as kit
import pytest

from tilec.ir.expr import Op, walk
from tilec.ir.nodes import Compute, Store
from tilec.ir.nodes import walk as statements
from tilec.passes.row_values import row_values
from tilec.passes.write_positions import write_positions


def stores(p):
    return [s for r in p.roles for s in statements(r.body) if isinstance(s, Store)]


def divisions(e):
    return [x for x in walk(e) if isinstance(x, Op) and x.name == "/"]


@pytest.mark.parametrize("name", ["causal", "window, softcap, alibi, sink", "dropout", "no lse"])
def test_results_stay_and_the_store_only_multiplies(name):
    text = kit.SPECS[name]
    before = write_positions(kit.sequential(text))
    after = row_values(before)
    kit.verify(after)
    assert any(divisions(s.value) for s in stores(before))
    assert not any(divisions(s.value) for s in stores(after) if len(s.axes) == 2)
    for sizes in kit.SIZES:
        assert kit.complaints(after, text, sizes) == []


def test_one_buffer_of_rows_just_before_the_store():
    (role,) = row_values(write_positions(kit.sequential(kit.SPECS["causal"]))).roles
    (made,) = [s for s in statements(role.body) if isinstance(s, Compute) and s.dst.buffer == "row_factor"]
    (buffer,) = [b for b in role.buffers if b.name == "row_factor"]
    assert [a.name for a in buffer.axes] == ["q"] and divisions(made.value)


def test_rows_without_a_costly_factor_are_left_alone():
    once = row_values(write_positions(kit.sequential(kit.SPECS["causal"])))
    assert row_values(once) == once
