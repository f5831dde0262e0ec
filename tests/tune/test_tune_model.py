"""Tile shapes: candidates fit their target, the choice is one of them, lines of the spec restrict it, and too much is refused."""

import itertools

import pytest

from tilec.backends.base import Variant
from tilec.backends.triton import BACKEND
from tilec.backends.triton.build import compile_kernel
from tilec.budget import shared_memory
from tilec.dsl.faults import Faults
from tilec.frontend import read_text
from tilec.ir.nodes import For, walk
from tilec.pipeline import lower
from tilec.targets import all_targets, target
from tilec.tune import model, record

DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (576, 512), (33, 48)]
TARGETS = [t.name for t in all_targets() if t.modelled]


def spec(d=128, dv=128, dtype="bf16", mask="", schedule=""):
    out = "bf16" if dtype == "e4m3" else dtype
    return read_text(f"""
    kernel f {{
      index  b : B, h : 8, q : M, k : N, d : {d}, e : {dv}
      query  Q[b, q, h, d] : {dtype}
      key    K[b, k, h, d] : {dtype}
      value  V[b, k, h, e] : {dtype}
      output O[b, q, h, e] : {out}
      scale  1
      {mask}
    }}
    {schedule}
    """)


def chosen(read, name, backend="triton", features=frozenset()):
    """(q, k, warps, stages, who chose) of the lowered program."""
    p = lower(read.kernels[0], name, read.schedule("f", name), backend, features=features)
    tile = dict(p.tile)
    stages = max((s.stages or 1 for s in walk(p.roles[0].body) if isinstance(s, For)), default=1)
    note = next(n for n in p.notes if n.startswith("tiles by"))
    return tile["TQ"], tile["TK"], p.roles[0].warps, stages, note.removeprefix("tiles by ")


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "f32", "e4m3"])
def test_candidates_and_choices_fit(name, dtype):
    machine = target(name)
    for d, dv in DIMS:
        if dtype == "e4m3" and name == "sm80":
            continue
        read = spec(d, dv, dtype)
        attn = read.kernels[0]
        for shape in model.candidates(attn, machine, {}, warps=None, stages=None):
            budget = shared_memory(attn, machine, shape.q, shape.k, shape.stages, shape.warps)
            assert budget.total <= machine.shared_memory
            assert model.registers(attn, machine, shape) <= machine.registers_per_thread
        try:
            q, k, warps, stages, _ = chosen(read, name)
        except Faults as refused:
            assert {f.code for f in refused.faults} == {"E0803"}
            assert not shared_memory(attn, machine, 16, 16, 1).fits
            continue
        assert shared_memory(attn, machine, q, k, stages, warps).fits, (d, dv)
        assert warps in (4, 8) and 1 <= stages <= 4


def test_what_never_fits_is_an_error_with_the_sum():
    with pytest.raises(Faults) as caught:
        chosen(spec(1024, 1024, "f32"), "gfx942")
    (fault,) = caught.value.faults
    assert fault.code == "E0803" and "65,536 bytes" in str(fault)


@pytest.mark.parametrize(("name", "d", "dv", "dtype"), [("gfx942", 256, 256, "bf16"), ("sm80", 256, 256, "bf16"),
                                                        ("sm90", 576, 512, "bf16"), ("sm89", 128, 128, "f32")])  # fmt: skip
def test_triton_needs_no_more_than_the_target_has(name, d, dv, dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    read = spec(d, dv, dtype, "mask k <= q + N - M")
    made = BACKEND.compile(read.kernels[0], name, read.schedule("f", name), Variant((), frozenset({"aligned"})))
    source = next(text for file, text in made.sources.items() if file.endswith(".triton.py"))
    kernel = compile_kernel("f", source, made.metadata, name, aligned=True)
    assert kernel.metadata.shared <= target(name).shared_memory


@pytest.mark.parametrize("name", TARGETS)
def test_lines_restrict_the_choice(name):
    lines = {
        "tile q = 64, k = 32": lambda c: c[:2] == (64, 32),
        "tune q in {16, 32}": lambda c: c[0] in (16, 32),
        "tune k in {64}": lambda c: c[1] == 64,
        "stages 1": lambda c: c[3] == 1,
        "warps split_q(4)": lambda c: c[2] == 4,
        "tile q = 32, k = 32  stages 2  warps split_q(8)": lambda c: c[:4] == (32, 32, 8, 2),
    }
    for line, holds in lines.items():
        found = chosen(spec(schedule=f"schedule f on any {{ {line} }}"), name)
        assert holds(found), (line, found)


def test_the_measured_shape_is_taken_where_nothing_forbids_it():
    for e in record.entries():
        mask = "mask k <= q + N - M" if "growing" in e.mask.split() else ""
        features = frozenset({"aligned"}) if e.loads == "box" else frozenset()
        found = chosen(spec(e.d, e.dv, "bf16", mask), e.target, e.backend, features)
        if e.mask.split()[0] in ("full", "growing"):
            assert found == (e.shape.q, e.shape.k, e.shape.warps, e.shape.stages, "record")
        assert e.source


def test_head_dims_that_were_not_measured_fall_to_the_model():
    assert chosen(spec(80, 80), "sm90")[4] == "model"


def test_the_model_prefers_what_is_cheaper():
    attn, machine = spec().kernels[0], target("sm90")
    shapes = list(model.candidates(attn, machine, {}, warps=None, stages=None))
    best = model.best(iter(shapes), attn, machine)
    assert best.stages > 1
    assert all(model.cost(attn, machine, best) <= model.cost(attn, machine, s) for s in shapes if s.stages > 1)
    alone = [s for s in shapes if s.stages == 1]
    assert model.best(iter(alone), attn, machine) in alone
    tiny = next(s for s in shapes if (s.q, s.k) == (16, 16))
    assert model.cost(attn, machine, tiny) > model.cost(attn, machine, best)
    assert model.best(iter(()), attn, machine) is None


def test_keys_of_fp8_values_have_the_depth_of_the_instruction():
    for name, (d, dv) in itertools.product(("sm90", "gfx942"), DIMS):
        attn = spec(d, dv, "e4m3").kernels[0]
        assert all(s.k >= 32 for s in model.candidates(attn, target(name), {}, warps=None, stages=None))
    with pytest.raises(Faults) as caught:
        chosen(spec(dtype="e4m3", schedule="schedule f on any { tile k = 16 }"), "sm90")
    assert {f.code for f in caught.value.faults} == {"E0812"} and "`k = 32` is the nearest" in str(caught.value)
