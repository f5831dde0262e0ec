"""Every pass keeps the meaning: programs of all features are run after each pass and held against the float64 oracle."""

import feature_specs
import pass_kit as kit
import pytest

FP8 = {f.name for f in feature_specs.FP8}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.mark.parametrize("feature", feature_specs.FEATURES, ids=str)
def test_every_pass_keeps_the_meaning(feature, folder):
    """On sm90, where features are padded to powers of two and tiles of keys come as boxes."""
    sizes, inputs, bound = kit.call(feature.name, folder)
    if bound.empty != "no":
        sizes, inputs, bound = kit.call(feature.name, folder, {"B": 1, "M": 5, "N": 5})
    previous = None
    for name, program in kit.after(feature.name, "sm90", "triton", bound.features).items():
        if program != previous:
            assert kit.complaints(program, feature.name, inputs, bound, sizes) == [], name
        previous = program


OTHERWISE = ["causal", "window and first", "dilated", "strided", "documents", "packed", "gqa", "alibi"]
LINES = ["skip none", "order q", "map persistent", "map longest_first", "map linear"]


@pytest.mark.parametrize(
    ("name", "line"), [(n, x) for n in OTHERWISE for x in LINES if (n, x) != ("packed", "map longest_first")]
)
def test_schedule_lines_keep_the_meaning(name, line, folder):
    sizes, inputs, bound = kit.call(name, folder)
    *_, program = kit.after(name, "sm90", "triton", schedule=f"\nschedule f on sm90 {{ {line} }}").values()
    assert kit.complaints(program, name, inputs, bound, sizes) == []


@pytest.mark.parametrize("name", [*OTHERWISE, "group index", "no batch, no heads"])
def test_chiplets_keep_the_meaning(name, folder):
    sizes, inputs, bound = kit.call(name, folder)
    *_, program = kit.after(name, "gfx942", "triton").values()
    assert "xcd8" in program.grid.order
    assert kit.complaints(program, name, inputs, bound, sizes) == []
