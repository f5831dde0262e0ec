"""Which backend a call gets on sm90, what is said of those passed over, and modules with both; no device is needed."""

import importlib.util
import json

import pytest
import runtime_kit as kit
import torch
from click.testing import CliRunner
from feature_specs import CAUSAL, kernel

import tilec
from tilec.aot import build
from tilec.backends.base import Variant
from tilec.backends.cuda import BACKEND as CUDA
from tilec.backends.cuda.build import build as assemble
from tilec.backends.cuda.check import check
from tilec.backends.runtime import device as devices
from tilec.backends.runtime import kernel as kernel_module
from tilec.backends.runtime.cache import Store
from tilec.cli import main
from tilec.dsl.faults import Faults, TargetFault
from tilec.frontend import read_text
from tilec.jit import Compiler
from tilec.pipeline import routed
from tilec.support import ALL

SMALL = "schedule f on sm90 { tile q = 64, k = 16 }"  # compiles in a quarter of a second
NATIVE = kernel(CAUSAL, d="d : 64", scale="scale 1 / 8", schedule=SMALL)
F32 = kernel(CAUSAL, dtype="f32", schedule="")
PING_PONG = "schedule f on sm90 { tile q = 128, k = 128   warps ping_pong(consumer = 2)   stages 2 }"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cache that these tests share."""
    return tmp_path_factory.mktemp("cache")


def qkv(d=64, dtype=torch.bfloat16, heads=2):
    return [torch.zeros(2, 32, heads, d, dtype=dtype) for _ in range(3)]


@pytest.fixture
def loaded(monkeypatch):
    """Backends whose launchers were made, with the variants, while the cpu passes for an sm90."""
    seen = []

    def half(name):
        return lambda artifact, *_: seen.append((name, artifact.variant.features)) or kit.Doing()

    monkeypatch.setattr(kernel_module, "launch_half", half)
    monkeypatch.setattr(devices, "target_of", lambda _: "sm90")
    return seen


def test_a_call_gets_native_code_if_its_tensors_are_aligned_else_triton(folder, loaded):
    attend = tilec.load(NATIVE, cache_dir=folder)
    q, k, v = qkv()
    attend(q, k, v)
    attend(q[:, :7], k, v)  # not a multiple of 16 rows: the same kernel
    assert loaded == [("cuda", {"aligned", "few_keys", "short"})] and attend.passed_over == ()
    shifted = torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)
    attend(shifted, k, v)
    attend(q, k[:, :1].expand(k.shape), v)
    assert [name for name, _ in loaded] == ["cuda", "triton"]
    assert attend.passed_over == ("cuda passed over: `f` has no native code for tensors that are not aligned",)
    assert attend.artifact("sm90").backend == "cuda"


def test_a_kernel_that_has_no_native_code_goes_to_triton_with_the_reason(folder, loaded):
    attend = tilec.load(F32, cache_dir=folder)
    attend(*qkv(16, torch.float32))
    assert [name for name, _ in loaded] == ["triton"]
    (said,) = attend.passed_over
    assert said.startswith("cuda passed over: the cuda backend does not take `Q` of f32 on sm90")
    assert said in attend.artifact("sm90").describe()


def test_a_backend_that_is_named_is_that_backend_or_an_error(folder, loaded):
    q, k, v = qkv()
    with pytest.raises(Faults) as refused:
        tilec.load(F32, backend="cuda", cache_dir=folder)(*qkv(16, torch.float32))
    assert {f.code for f in refused.value.faults} == {"E0914"} and "f32" in str(refused.value)
    with pytest.raises(TargetFault) as unaligned:
        tilec.load(NATIVE, backend="cuda", cache_dir=folder)(q, k[:, :1].expand(k.shape), v)
    assert unaligned.value.code == "E0914" and "16 bytes" in unaligned.value.note
    tilec.load(NATIVE, backend="triton", cache_dir=folder)(q, k, v)
    assert [name for name, _ in loaded] == ["triton"]


@pytest.mark.parametrize("code", ["E0917", "E0918", "E0919", "E0911", "E0803"])
def test_what_the_toolchain_refuses_goes_to_triton(code, tmp_path, monkeypatch):
    tried = []

    def fail(*_):
        tried.append(code)
        raise (tilec.dsl.faults.ScheduleFault if code < "E09" else TargetFault)(code, "it does not fit", note="why")

    spec = read_text(NATIVE)
    attn = spec.kernels[0]
    monkeypatch.setattr(type(CUDA), "toolchain" if code == "E0911" else "compile", fail)
    for _ in range(2):
        made = Compiler(spec, attn, None, Store(tmp_path)).artifact("sm90", Variant((), ALL))
        assert made.backend == "triton" and made.variant.features == ALL
        assert made.passed_over == ("cuda passed over: it does not fit",)
    with pytest.raises((TargetFault, tilec.dsl.faults.ScheduleFault)) as refused:
        Compiler(spec, attn, "cuda", Store(tmp_path)).artifact("sm90", Variant((), ALL))
    assert (refused.value.code, refused.value.message, refused.value.note) == (code, "it does not fit", "why")
    assert len(tried) == (1 if code in ("E0918", "E0919") else 3), (
        "the assembler's verdict is kept, other causes may go away"
    )


@pytest.mark.parametrize(
    ("lines", "backend"),
    [
        ("warps ping_pong(consumer = 2)", "cuda"),
        ("overlap off", "cuda"),
        ("tile q = 192", "cuda"),
        ("warps split_q(4)", "triton"),
        ("tile q = 32", "triton"),
        ("tune k in {64, 512}", "triton"),
        ("stages 3", "cuda"),
    ],
)
def test_the_first_backend_that_honours_all_lines(lines, backend):
    spec = read_text(kernel(CAUSAL, d="d : 64", schedule=f"schedule f on sm90 {{ {lines} }}"))
    found = routed(spec.kernels[0], "sm90", spec.schedule("f", "sm90"), features=ALL)
    assert found.backend.name == backend
    assert [r.backend for r in found.refused] == ([] if backend == "cuda" else ["cuda"])


def command(tmp_path, text, *words):
    path = tmp_path / "spec.tile"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, [words[0], str(path), "--target", "sm90", *words[1:]])


def test_a_line_that_no_backend_honours_is_the_preferred_ones_error(tmp_path):
    said = command(tmp_path, kernel(CAUSAL, d="d : 64", schedule="schedule f on sm90 { split k = 4 }"), "compile")
    assert said.exit_code == 1 and "the cuda backend cannot honour `split k = 4`" in said.stderr
    assert "^^^^^^^^^^^" in said.stderr and "triton" not in said.stderr


def test_a_line_for_a_kernel_without_native_code_says_both(tmp_path):
    said = command(tmp_path, kernel(CAUSAL, dtype="f32", schedule=PING_PONG), "check")
    assert said.exit_code == 1
    assert (
        "does not take `Q` of f32" in said.stderr and "the triton backend cannot honour `warps ping_pong" in said.stderr
    )


def test_commands_say_who_compiles_and_who_was_passed_over(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("TILEC_CACHE", str(folder))
    native = kernel(CAUSAL, d="d : 128", h="h : 32", head="h // 4", schedule=PING_PONG)
    said = command(tmp_path, native, "compile")
    assert said.exit_code == 0 and "compiles for sm90 with cuda" in said.stdout and "passed over" not in said.output
    text = command(tmp_path, native, "explain").stdout
    assert "cuda backend" in text and "of 232,448 bytes of shared memory" in text and "registers of 240" in text
    heads = command(tmp_path, native, "compile", "--dump-ir").stdout
    assert [h.split()[-1] for h in heads.splitlines() if h.startswith("# after")][-2:] == [
        "call_scalars",
        "place_buffers",
    ]
    line = "cuda passed over: the cuda backend does not take `Q` of f32 on sm90"
    assert line in command(tmp_path, F32, "compile").stderr
    assert line in command(tmp_path, F32, "explain").stdout
    assert json.loads(command(tmp_path, F32, "explain", "--json").stdout)[0]["passed_over"][0].startswith(line)
    assert command(tmp_path, F32, "compile", "--backend", "cuda").exit_code == 1


@pytest.mark.parametrize("backend", [None, "cuda", "triton"])
def test_a_module_has_native_code_for_aligned_tensors_and_triton_for_others(
    backend, tmp_path, folder, loaded, monkeypatch
):
    monkeypatch.setenv("TILEC_CACHE", str(folder))
    path = build(read_text(NATIVE, "spec.tile"), "f", "sm90", tmp_path, backend=backend)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("f_sm90", path))
    module.__spec__.loader.exec_module(module)
    q, k, v = qkv()
    module.f(q, k, v)
    wide = k[:, :1].expand(k.shape)
    if backend == "cuda":
        with pytest.raises(TargetFault) as refused:
            module.f(q, wide, v)
        assert refused.value.code == "E0914" and "are aligned" in refused.value.message
    else:
        module.f(q, wide, v)
    assert [name for name, _ in loaded] == {None: ["cuda", "triton"], "cuda": ["cuda"], "triton": ["triton"] * 2}[
        backend
    ]
    assert bool(module.f.passed_over) == (backend is None)


def test_the_same_source_compiled_again_is_read_as_well(folder):
    spec = read_text(NATIVE)
    made = Compiler(spec, spec.kernels[0], "cuda", Store(folder)).artifact("sm90", Variant((), ALL))
    (source,) = (text for name, text in made.sources.items() if name.endswith(".cu"))
    built = [assemble(source, made.metadata["function"]) for _ in range(2)]
    assert built[0].cubin == built[1].cubin
    assert {check(b.log, "f").registers for b in built} == {made.metadata["registers"]}


def test_the_key_of_a_native_kernel_has_the_build_of_its_compiler():
    release, _, build = CUDA.toolchain("sm90")["nvrtc"].partition(", ")
    assert release.count(".") == 1 and build
