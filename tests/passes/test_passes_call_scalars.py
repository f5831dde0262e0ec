"""call_scalars: what follows from a call's sizes leaves the roles, and nothing else changes."""

import native_kit as kit
import pytest

from tilec.ir.expr import free_vars
from tilec.ir.nodes import Let
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.passes.call_scalars import call_scalars

TEXT = """program p on sm90
extent M, N
tensor t : table i32[M]
tensor out : out i32[M]
grid tiles M ctas M order linear
role r : 1 warp
  let whole = (M + 7) // 8
  let twice = whole * 2
  let own = cta + M
  let number = 3
  let entry = t[0] + M
  let again = M + 1
  while again < N
    let again = again + 1
  if N > 0
    let inside = N + 5
  else
    let inside = 0
  store out[cta] = whole + twice + own + number + entry + again + inside
"""


def lets(p):
    return [s.name for r in p.roles for s in statements(r.body) if isinstance(s, Let)]


@pytest.mark.parametrize("name", ["causal", "window", "no mask, f16"])
def test_results_stay_and_maps_divide_less(name):
    text = kit.SPECS[name]
    before, after = (kit.after(text)[stage] for stage in ("specialize", "call_scalars"))
    names = dict(after.scalars)
    assert {"tiles", "m_tiles", "section"} <= names.keys() and not names.keys() & set(lets(after))
    assert {s for s in lets(before) if s not in lets(after)} == names.keys()
    assert all(free_vars(e) <= {*after.extents, *names, *dict(after.tile)} for e in names.values())
    for sizes in kit.SIZES:
        assert kit.complaints(after, text, sizes) == []


def test_only_what_sizes_alone_decide_once():
    p = call_scalars(parse_program(TEXT))
    assert [n for n, _ in p.scalars] == ["whole", "twice"]
    assert lets(p) == ["own", "number", "entry", "again", "again", "inside", "inside"]


def test_a_program_without_such_scalars_is_left_alone():
    once = call_scalars(parse_program(TEXT))
    assert call_scalars(once) == once
