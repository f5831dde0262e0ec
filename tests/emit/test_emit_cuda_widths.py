"""Head dims that are no whole panels, and values of another width: what is copied, computed and stored, and that it fits."""

import re
from functools import cache

import native_kit as kit
import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.cuda.build import build
from tilec.backends.cuda.check import check
from tilec.backends.cuda.emit import emit
from tilec.frontend import read_text
from tilec.native import lower_native
from tilec.schedule import EMPTY
from tilec.tune.hopper import CLASSES, points, rows


def spec(d, e=None, *lines, dtype="bf16", **parts):
    """Head dim `d`, of values `e`."""
    other = {"more": f"e : {e}", "value": f"V[b, k, h, e] : {dtype}", "output": "O[b, q, h, e]"} if e else {}
    scale = f"scale 1 / sqrt({d})"
    return kernel(*lines, d=f"d : {d}", scale=scale, schedule="", dtype=dtype, **{**other, **parts})


@cache
def lowered(text):
    return lower_native(read_text(text).kernels[0], "sm90")


@cache
def printed(text):
    return emit(lowered(text))


def resources(text):
    made = printed(text)
    log = build(made.text, made.function).log
    assert "C75" not in log
    return check(log, made.function)


WIDTHS = [
    (32, None, "bf16", CAUSAL),
    (40, None, "f16", ""),
    (72, None, "bf16", CAUSAL),
    (96, None, "bf16", ""),
    (112, None, "f16", CAUSAL),
    (160, None, "bf16", CAUSAL),
    (192, None, "bf16", ""),
    (248, None, "bf16", CAUSAL),
    (192, 128, "bf16", CAUSAL),
    (56, 200, "f16", CAUSAL),
]


@pytest.mark.parametrize(("d", "e", "dtype", "mask"), WIDTHS)
def test_a_width_compiles_without_spills(d, e, dtype, mask):
    assert resources(spec(d, e, mask, dtype=dtype)).spills == 0


@pytest.mark.parametrize(("d", "e"), [(40, None), (80, 24), (136, 72)])
def test_the_lowered_program_is_right(d, e):
    text = spec(d, e, CAUSAL)
    assert not kit.complaints(lowered(text), text, {"B": 1, "M": 140, "N": 200})


@pytest.mark.parametrize(
    ("d", "e", "widths", "tile"),
    [
        (40, None, (64, 64), (192, 128)),
        (72, None, (80, 80), (128, 128)),
        (104, 32, (112, 112), (128, 128)),
        (136, None, (160, 160), (128, 112)),
        (168, 128, (192, 128), (128, 128)),
        (192, 136, (192, 192), (128, 112)),
        (64, 200, (256, 256), (128, 80)),
        (256, 32, (256, 256), (128, 80)),
    ],
)
def test_a_kernel_starts_from_the_nearest_row_that_is_wide_enough(d, e, widths, tile):
    attn = read_text(spec(d, e, CAUSAL)).kernels[0]
    of_any_length = [r for r in rows() if r.widths == widths and not r.classes[CLASSES.index("length")]]
    held = [r.point for r in of_any_length if r.holds(attn)]
    assert held and list(points(attn, EMPTY))[: len(held)] == held
    sizes = dict(lowered(spec(d, e, CAUSAL)).tile)
    assert (sizes["TQ"], sizes["TK"]) == tile


def test_a_tile_is_copied_panel_by_panel_and_counts_whole_panels():
    text, keys = printed(spec(80, None, CAUSAL)).text, dict(lowered(spec(80, None, CAUSAL)).tile)["TK"]
    assert set(re.findall(r"expect\(bar, (\d+)\)", text)) == {str(64 * 128 * 2), str(keys * 128 * 2)}
    copies = re.findall(r"p < (\d); \+\+p\) \{\s+copy_box\([^,]* \+ (\d+) \* p, (\w+), bar, 64 \* p, ", text)
    assert set(copies) == {
        ("2", str(64 * 128), "Q_map"),
        ("2", str(keys * 128), "K_map"),
        ("2", str(keys * 128), "V_map"),
    }
    assert {p.box.columns for p in printed(spec(80, None, CAUSAL)).parameters if p.box} == {64}


def test_a_tensor_of_five_dimensions_is_copied_panel_by_panel():
    parts = {"h": "g : 2, h : 2", "query": "Q[b, q, g, h, d]", "output": "O[b, q, g, h, d]", "lse": ""}
    boxes = {p.of: p.box.single for p in printed(spec(128, None, CAUSAL, **parts)).parameters if p.box}
    assert boxes == {"Q": True, "K": False, "V": False}


@pytest.mark.parametrize(("e", "whole", "rest"), [(64, 2, 0), (72, 2, 1), (48, 1, 2), (24, 0, 3)])
def test_features_are_stored_16_bytes_at_a_time_and_none_beyond_the_last(e, whole, rest):
    text = printed(spec(64, e)).text
    assert f"g < {whole + bool(rest)}; ++g" in text
    held = f"e < {e // 2} ? pack_bf16(" in text, f"if (live && 32 * g + lane % 4 * 8 < {e}) store_16" in text
    assert held == (bool(rest), bool(rest)) and text.count("store_16(to") == 1


def test_products_have_the_width_of_the_values_and_whole_steps_of_the_queries():
    text = printed(spec(72, 104, CAUSAL)).text
    steps = {int(n) for n in re.findall(r"int s = 0; s < (\d+); \+\+s\) \{\s+product_\d+_\w+_bf16\(scores", text)}
    assert steps == {5}
    assert "product_104_registers_transposed_bf16(acc" in text


def test_f32_rows_are_stored_in_pairs():
    text = printed(spec(72, None, CAUSAL, out="f32")).text
    assert "float* to = O_ptr" in text and "g < 9; ++g" in text and "if (live) store_8(to + 8 * g, " in text
