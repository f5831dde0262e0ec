"""rescale_seldom: maxima that stay, outputs that are left alone, and the same results."""

from dataclasses import replace

import native_kit as kit
import numpy as np
import pytest

from tilec.dsl.faults import ScheduleFault
from tilec.ir import errors
from tilec.ir.nodes import Compute, For, walk
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline
from tilec.passes.rescale_seldom import rescale_seldom

SELDOM = HopperOptions(seldom=8.0)
# Tiles are walked from the last one down, and these scores rise on the way: by 0 to 15 powers of two at a step, by rows.
RISING = kit.kernel("score s = s - (q % 5) * k / 24", kit.CAUSAL, **kit.SMALL)
RISING_F16 = kit.kernel("score s = s - (q % 5) * k / 24", dtype="f16", **kit.SMALL)
SPECS = {
    **{n: kit.SPECS[n] for n in ("causal", "window, softcap, alibi, sink", "bias", "two pairs", "dropout")},
    "rising": RISING,
    "rising, f16": RISING_F16,
    "rising, dead rows": kit.kernel("score s = s - k / 6", "mask k <= q - 100 and (q % 3 == 0 or k < 70)", **kit.SMALL),
}


def after(text, options=SELDOM):
    return kit.after(text, options)["rescale_seldom"]


def edited(p, old, new):
    text = show_program(p)
    assert old in text, old
    return parse_program(text.replace(old, new))


def steps(p):
    return [s for r in p.roles for s in walk(r.body) if isinstance(s, For) and s.proof is not None]


def raises(s):
    return isinstance(s, Compute) and s.dst.buffer == "new_max"


# ---------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("name", SPECS)
def test_results_are_right_before_and_after(name):
    made = kit.after(SPECS[name], SELDOM)
    for stage in ("overlap", "rescale_seldom"):
        for sizes in (kit.SIZES[1], kit.SQUARE):
            assert kit.complaints(made[stage], SPECS[name], sizes) == [], (stage, sizes)


@pytest.mark.parametrize("style", ["shifted", "onehot"])
@pytest.mark.parametrize("name", ["window, softcap, alibi, sink", "rising"])
def test_other_inputs(name, style):
    assert kit.complaints(after(SPECS[name]), SPECS[name], kit.SIZES[0], style=style) == []


def test_products_one_after_the_other():
    p = after(RISING, replace(SELDOM, pipeline=Pipeline(lag=False)))
    assert kit.complaints(p, RISING, kit.SQUARE) == []


def test_the_whole_kernel_is_right():
    assert kit.complaints(kit.after(RISING, SELDOM)["place_buffers"], RISING, {"B": 1, "M": 257, "N": 400}) == []


def test_a_maximum_that_may_not_rise_at_all_gives_the_same_bits():
    before = kit.after(RISING, SELDOM)["overlap"]
    *_, want = kit.outputs(before, RISING, kit.SQUARE)
    for most, same in ((1e-30, True), (8.0, False)):
        *_, found = kit.outputs(rescale_seldom(before, most), RISING, kit.SQUARE)
        assert all(np.array_equal(want[n], found[n], equal_nan=True) for n in want) == same


# ---------------------------------------------------------------------------------------------- form


def test_steps_alone_are_rewritten():
    p, before = after(kit.SPECS["window"]), kit.after(kit.SPECS["window"], SELDOM)["overlap"]
    assert len(steps(p)) == 3
    for loop in steps(p):
        (left,) = [s for s in loop.body if isinstance(s, Compute) and s.unless is not None]
        assert (left.dst.buffer, str(left.unless)) == ("acc", "@shrink == 1.0")
        first, second = [str(s.value) for s in loop.body if raises(s)]
        assert first == "max[k](@scores)"
        assert second.startswith("where(@new_max <= @row_max + 8.0 / ") and second.endswith(", @row_max, @new_max)")
    rest = [s for loop in steps(before) for s in loop.body if not raises(s)]
    kept = [replace(s, unless=None) if isinstance(s, Compute) else s for loop in steps(p) for s in loop.body]
    assert all(s in kept for s in rest) and len(kept) == len(rest) + 2 * 3


def test_without_it_nothing_is_left_out():
    p = kit.after(kit.SPECS["causal"], HopperOptions())
    assert "rescale_seldom" not in p
    assert all(s.unless is None for r in p["place_buffers"].roles for s in walk(r.body) if isinstance(s, Compute))


# ---------------------------------------------------------------------------------------------- refusals and mistakes


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        ("new_max = max(@row_max, max[k](@scores))", "new_max = @row_max", "one running maximum"),
        ("shrink = exp2(", "shrink = exp(", "one factor"),
        ("acc = @acc * @shrink", "acc = @acc * (@shrink * 1.0)", "an accumulator that is multiplied by one factor"),
    ],
)
def test_steps_of_another_form_are_refused(old, new, lacking):
    p = edited(kit.after(RISING, SELDOM)["overlap"], old, new)
    with pytest.raises(ScheduleFault) as caught:
        rescale_seldom(p, 8.0)
    assert caught.value.code == "E0811" and lacking in caught.value.note


def test_a_maximum_that_must_fall_is_no_threshold():
    with pytest.raises(ValueError, match="more than nothing"):
        rescale_seldom(kit.after(RISING, SELDOM)["overlap"], 0.0)


def test_an_output_left_alone_where_its_maximum_moved_is_found():
    with pytest.raises(errors.Changed):
        kit.complaints(edited(after(RISING), "unless @shrink == 1.0", "unless @shrink > 0.0"), RISING, kit.SQUARE)


def test_maxima_that_never_move_overflow():
    assert kit.complaints(
        edited(after(RISING_F16), "<= @row_max + 8.0", "<= @row_max + 1000.0"), RISING_F16, kit.SQUARE
    )
