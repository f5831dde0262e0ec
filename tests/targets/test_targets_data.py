"""Target files: no number without a source, the rates agree with the published peaks, unknown names are typed errors."""

import math
import tomllib
from dataclasses import fields
from importlib import resources

import pytest

from tilec.dsl.faults import TargetFault
from tilec.targets import NAMES, all_targets, device_target, target
from tilec.targets.load import read


def text_of(name):
    return resources.files("tilec.targets").joinpath(f"{name}.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name):
    t = target(name)
    numeric = {f.name for f in fields(t) if isinstance(getattr(t, f.name), int | tuple) and f.name != "backends"}
    tables = {"chiplet": t.chiplet, "unit": t.unit}
    inner = {f"{n}.{f.name}" for n, table in tables.items() if table for f in fields(table)}
    rates = {f"{n}.{d}" for n in ("matrix", "achievable") for d in getattr(t, n)}
    assert numeric | rates | inner == set(t.sources)
    assert all(len(s.split()) >= 3 for s in t.sources.values())


@pytest.mark.parametrize("name", NAMES)
def test_no_bare_number_anywhere_in_the_file(name):
    def bare(node, inside=False):
        if isinstance(node, dict):
            return any(bare(v, "source" in node) for v in node.values())
        if isinstance(node, list):
            return any(bare(v, inside) for v in node)
        return isinstance(node, int | float) and not inside

    assert not bare(tomllib.loads(text_of(name)))


@pytest.mark.parametrize("cell", ["132", '{ value = 132, source = " " }', "{ value = 132 }"])
def test_the_loader_refuses_a_number_without_a_source(cell):
    lines = [f"units = {cell}" if line.startswith("units =") else line for line in text_of("sm90").splitlines()]
    with pytest.raises(ValueError, match=r"sm90\.toml:units"):
        read("\n".join(lines), "sm90.toml")


def test_names_agree_with_the_files():
    files = {
        p.name.removesuffix(".toml") for p in resources.files("tilec.targets").iterdir() if p.name.endswith(".toml")
    }
    assert files == set(NAMES)
    assert [t.name for t in all_targets()] == list(NAMES)


# Published dense peaks in TFLOP/s, at the clock each vendor quotes.
PEAKS = [("sm80", "bf16", 312, 1.41e9), ("sm89", "bf16", 362, 2.52e9), ("sm89", "e4m3", 733, 2.52e9)]
PEAKS += [("sm90", "bf16", 989.4, 1.83e9), ("sm90", "e4m3", 1978.9, 1.83e9), ("sm100", "bf16", 2250, 1.856e9)]
PEAKS += [("gfx942", "bf16", 1307, 2.1e9), ("gfx942", "e4m3", 2615, 2.1e9), ("gfx942", "f32", 163.4, 2.1e9)]
PEAKS += [("gfx950", "bf16", 2500, 2.4e9), ("gfx950", "e4m3", 5000, 2.4e9), ("gfx950", "f32", 157.3, 2.4e9)]


@pytest.mark.parametrize(("name", "dtype", "peak", "clock"), PEAKS)
def test_rates_give_the_published_peaks(name, dtype, peak, clock):
    t = target(name)
    assert math.isclose(t.matrix[dtype] * t.units * clock / 1e12, peak, rel_tol=0.02)
    assert t.peak(dtype) == t.matrix[dtype] * t.units * t.sustained_clock


def test_what_was_achieved_is_below_the_peak():
    for t in all_targets():
        assert all(rate < t.matrix[d] * t.units * t.clock for d, rate in t.achievable.items())
    assert target("gfx942").achievable["bf16"] == pytest.approx(target("gfx942").peak("bf16"), rel=0.01)


def test_dies_add_up_to_the_chip():
    t = target("gfx942")
    assert (t.chiplet.units * t.xcds, t.chiplet.l2 * t.xcds) == (t.units, t.l2)


@pytest.mark.parametrize("name", NAMES)
def test_backends_say_their_state(name):
    t = target(name)
    assert t.default_backend.available
    assert all(b.because for b in t.backends)
    natives = [b.native for b in t.backends]
    assert natives == sorted(natives, reverse=True), "native backends come first"
    assert t.backend("nothing") is None


def test_fp8_flavour():
    assert {n for n in NAMES if target(n).fp8 == "fnuz"} == {"gfx942"}
    assert "e4m3" not in target("sm80").dtypes


@pytest.mark.parametrize(
    ("wrong", "near"), [("sm_90a", "sm90"), ("gfx-942", "gfx942"), ("SM90", "sm90"), ("vulkan", None)]
)
def test_unknown_target_names_the_nearest(wrong, near):
    with pytest.raises(TargetFault) as caught:
        target(wrong)
    assert caught.value.code == "E0901"
    assert "targets are sm80" in caught.value.hint
    assert ("did you mean" in caught.value.hint) == (near is not None)
    assert near is None or f"`{near}`" in caught.value.hint


def test_device_target():
    assert device_target(capability=(9, 0)).name == "sm90"
    assert device_target(gcn="gfx942:sramecc+:xnack-").name == "gfx942"
    for unknown in ({"capability": (8, 6)}, {"gcn": "gfx90a:sramecc+"}):
        with pytest.raises(TargetFault) as caught:
            device_target(**unknown)
        assert caught.value.code == "E0902"
    with pytest.raises(ValueError):
        device_target()
