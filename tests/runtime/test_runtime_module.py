"""Modules built ahead of time: what they import, what they give, and what they refuse."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import runtime_kit as kit
import torch

from tilec.aot import build, write_module
from tilec.backends.base import Artifact, Variant
from tilec.backends.runtime import device as devices
from tilec.backends.runtime import kernel as kernel_module
from tilec.dsl.faults import TargetFault
from tilec.frontend import read_text

COMPILER = (
    "tilec.frontend",
    "tilec.pipeline",
    "tilec.passes",
    "tilec.legality",
    "tilec.jit",
    "tilec.tune",
    "tilec.dsl.parse",
)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    monkeypatch.setenv("TILEC_CACHE", "off")


def built(tmp_path, text=kit.CAUSAL, **more):
    spec = read_text(text, "specs/causal.tile")
    return build(spec, spec.kernels[0].name, "cpu", tmp_path, **more)


def imported(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_gives_what_the_compiler_gives(tmp_path):
    path = built(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["causal_cpu.py"]
    q, k, v = kit.dense(grad=True)
    o, lse = imported(path).causal(q, k, v)
    want, want_lse = kit.reference(q, k, v)
    assert torch.allclose(o.double(), want, atol=2e-2) and torch.allclose(lse.double(), want_lse, atol=1e-5)
    (o.float().sum() + lse.sum()).backward()
    (dq,) = torch.autograd.grad(want.sum() + want_lse.sum(), q)
    assert torch.allclose(q.grad.float(), dq.float(), atol=3e-2)


def test_a_module_is_written_the_same_twice(tmp_path):
    assert built(tmp_path / "a").read_text() == built(tmp_path / "b").read_text()


def test_a_module_names_the_spec_and_the_call(tmp_path):
    text = built(tmp_path).read_text()
    assert "#       mask   k <= q + N - M" in text and "O, L = causal(Q, K, V)" in text
    assert "K        bf16[B, N, 2, 16]" in text and "program causal on cpu" in text


def test_a_module_imports_no_compiler(tmp_path):
    path = built(tmp_path)
    code = f"""
import sys
sys.path.insert(0, {str(path.parent)!r})
from causal_cpu import causal
import torch
q, k = torch.zeros(1, 3, 4, 16).bfloat16().requires_grad_(), torch.zeros(1, 3, 2, 16).bfloat16()
causal(q, k, k)[0].sum().backward()
print(sorted(m for m in sys.modules for c in {COMPILER!r} if m == c or m.startswith(c + ".")), q.grad.shape)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[] torch.Size([1, 3, 4, 16])\n", run.stderr


def test_symbols_need_numbers(tmp_path):
    with pytest.raises(TargetFault) as caught:
        built(tmp_path, kit.GROUPED)
    assert caught.value.code == "E0905" and "--set D=… --set G=…" in str(caught.value)
    path = built(tmp_path, kit.GROUPED, constants={"D": 8, "G": 2})
    k = torch.zeros(1, 2, 3, 8)
    assert imported(path).grouped(torch.zeros(1, 4, 3, 8), k, k).shape == (1, 4, 3, 8)


@pytest.fixture
def for_sm90(tmp_path):
    """A module for sm90 of two artifacts with a binary each."""
    spec = read_text(kit.CAUSAL, "specs/causal.tile")
    artifacts = [
        Artifact(
            "causal",
            "sm90",
            "stub",
            Variant((), f),
            {"causal.cu": "// source\n"},
            {},
            {"causal.cubin": bytes([len(f)])},
        )
        for f in (frozenset(), frozenset({"aligned", "unit"}))
    ]
    return write_module(spec.kernels[0], spec, artifacts, tmp_path)


class Gpu:
    def __init__(self, monkeypatch, capability, name):
        properties = type("P", (), {"major": capability[0], "minor": capability[1], "name": name})()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: properties)
        devices.target_of.cache_clear()


@pytest.fixture
def gpu(monkeypatch):
    yield lambda capability, name: Gpu(monkeypatch, capability, name)
    devices.target_of.cache_clear()


def test_files_lie_beside_the_module(for_sm90):
    found = {str(p.relative_to(for_sm90.parent)) for p in for_sm90.parent.rglob("*") if p.is_file()}
    folders = ("causal_sm90.kernels/general", "causal_sm90.kernels/aligned_unit")
    files = {f"{d}/{f}" for d in folders for f in ("artifact.json", "causal.cu", "causal.cubin")}
    assert found == {"causal_sm90.py"} | files


def test_another_device_is_refused_when_the_module_is_loaded(for_sm90, gpu):
    gpu((8, 0), "NVIDIA A100")
    with pytest.raises(TargetFault) as caught:
        imported(for_sm90)
    assert str(caught.value) == (
        "error[E0912]: this kernel was built for sm90, and the device is cuda:0, NVIDIA A100, compute capability 8.0\n"
        "    = rebuild with `tilec compile causal.tile --target sm80`"
    )


def test_a_device_without_a_target_is_refused_too(for_sm90, gpu):
    gpu((7, 0), "Tesla V100")
    with pytest.raises(TargetFault) as caught:
        imported(for_sm90)
    assert caught.value.code == "E0912" and "no target describes that device" in str(caught.value)


def test_cpu_tensors_are_refused_at_the_call(for_sm90):
    with pytest.raises(TargetFault) as caught:
        imported(for_sm90).causal(*kit.dense())
    assert caught.value.code == "E0912" and "the device is cpu" in str(caught.value)


def provider(path):
    return imported(path).causal.provider


def test_the_best_artifact_is_taken(for_sm90, gpu):
    module = provider(for_sm90)
    assert module.features("sm90") == {"aligned", "unit"}
    for features, size in (({"aligned", "unit"}, 2), ({"aligned"}, 0), (set(), 0)):
        found = module.artifact("sm90", Variant((), frozenset(features)))
        assert found.binaries["causal.cubin"] == bytes([size])


@pytest.mark.parametrize("damage", ["gone", "changed", "mixed"])
def test_damaged_files_are_named(for_sm90, damage):
    folder = for_sm90.parent / "causal_sm90.kernels"
    cubin = folder / "general" / "causal.cubin"
    match damage:
        case "gone":
            cubin.unlink()
        case "changed":
            cubin.write_bytes(b"\7")
        case "mixed":
            cubin.write_bytes((folder / "aligned_unit" / "causal.cubin").read_bytes())
    with pytest.raises(TargetFault) as caught:
        provider(for_sm90).artifact("sm90", Variant())
    assert caught.value.code == "E0915" and "rebuild with `tilec compile causal.tile --target sm90`" in str(
        caught.value
    )


def test_a_launcher_gets_the_artifact(for_sm90, monkeypatch):
    seen = []
    monkeypatch.setattr(
        kernel_module, "launch_half", lambda name: lambda a, s, d: seen.append((name, a)) or kit.Doing()
    )
    kernel = imported(for_sm90).causal
    kernel.target = None  # as if the CPU were an sm90
    monkeypatch.setattr(devices, "target_of", lambda d: "sm90")
    kernel(*kit.dense())
    ((name, artifact),) = seen
    assert name == "stub" and artifact.variant.features == {"aligned", "unit"}


def test_reading_a_module_opens_no_artifact(for_sm90):
    for path in (for_sm90.parent / "causal_sm90.kernels").rglob("*"):
        if path.is_file():
            Path(path).unlink()
    assert callable(imported(for_sm90).causal)
