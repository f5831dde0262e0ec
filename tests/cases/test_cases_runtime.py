"""The runtime: many processes at one cache, torch.compile, devices, dropout, messages, reproducible choices, installation."""

import ast
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from case_kit import close, dense, positions, spec

import tilec
from tilec.aot import build
from tilec.backends import triton
from tilec.backends.base import Artifact, Variant
from tilec.backends.runtime import device as devices
from tilec.backends.runtime import kernel as kernel_module
from tilec.backends.runtime.checks import bind
from tilec.dsl.faults import CallFault, TargetFault
from tilec.frontend import read_text
from tilec.ir.print import show_program
from tilec.pipeline import lower

CAUSAL = spec("mask k <= q + N - M", "grad Q, K, V", group=2, d=64)
CALL = """
import sys, torch, tilec
q, k = torch.ones(1, 3, 2, 32).bfloat16(), torch.ones(1, 5, 2, 32).bfloat16()
o, lse = tilec.load(sys.argv[1])(q, k, k)
assert (o == 1).all() and lse.isfinite().all()
print("right")
"""


def start(*arguments, **environment):
    kept = {n: v for n, v in os.environ.items() if not n.startswith("TILEC_")}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_that_compile_the_same_kernel_at_once_all_succeed(tmp_path):
    """https://github.com/triton-lang/triton/issues/2688"""
    path = tmp_path / "spec.tile"
    path.write_text(spec())
    cache, folder = {"TILEC_CACHE": str(tmp_path / "cache")}, str(tmp_path / "gfx942")
    runs = [start("-c", CALL, str(path), **cache) for _ in range(2)]
    other = start("-m", "tilec.cli", "compile", str(path), "--target", "gfx942", "-o", folder, **cache)
    for run in runs:
        out, err = run.communicate(timeout=200)
        assert out == "right\n", err
    _, err = other.communicate(timeout=200)
    assert other.returncode == 0, err


def test_a_home_that_cannot_be_written_costs_one_warning(tmp_path):
    """https://github.com/triton-lang/triton/issues/2688"""
    path, home = tmp_path / "spec.tile", tmp_path / "home"
    path.write_text(spec())
    home.write_text("not a folder")
    run = start("-W", "always", "-c", CALL, str(path), HOME=str(home), XDG_CACHE_HOME=str(home / "cache"))
    out, err = run.communicate(timeout=200)
    assert out == "right\n" and err.count("UserWarning") + err.count("RuntimeWarning") == 1, err


def test_tensors_on_two_devices_are_refused_by_name(attend):
    """https://github.com/flashinfer-ai/flashinfer/issues/452"""
    q, k = torch.zeros(1, 3, 2, 32).bfloat16(), torch.zeros(1, 5, 2, 32).bfloat16()
    with pytest.raises(CallFault, match="`V` is on meta and `Q` on cpu"):
        attend.load(spec())(q, k, k.to("meta"))


def test_a_launch_makes_the_tensors_device_current(monkeypatch):
    """https://github.com/flashinfer-ai/flashinfer/issues/452"""
    entered = []

    class Guard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(self.device)

        def __exit__(self, *_):
            entered.append("back")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    with devices.guard(torch.device("cuda", 1)):
        assert entered == [torch.device("cuda", 1)]
    assert entered[-1] == "back"
    with devices.guard(torch.device("cuda", 0)):
        assert len(entered) == 2


def tensors(n, m=None, grad=True):
    g = torch.Generator().manual_seed(n)
    shapes = (m or n, 2), (n, 1), (n, 1)
    return [torch.randn(1, s, h, 64, generator=g).bfloat16().requires_grad_(grad) for s, h in shapes]


def test_torch_compile_sees_one_graph_for_all_lengths(interpret):
    """https://github.com/huggingface/transformers/issues/41803"""
    attend, compiled = interpret.load(CAUSAL), []

    def count(graph, _):
        compiled.append(graph)
        return graph

    @torch.compile(fullgraph=True, dynamic=True, backend=count)
    def layer(q, k, v):
        return attend(q * 2, k, v)[0] + 1

    for n in (128, 129, 200):
        given = tensors(n, grad=False)
        assert close(layer(*given), attend(given[0] * 2, *given[1:])[0] + 1, 1e-2)
    assert len(compiled) == 1


def test_torch_compile_takes_the_backward_pass_along(interpret):
    """https://github.com/huggingface/transformers/issues/41803"""
    attend = interpret.load(CAUSAL)
    layer = torch.compile(
        lambda *t: attend(*t)[0].float().square().sum(), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for n in (40, 41):
        given = tensors(n)
        got = torch.autograd.grad(layer(*given), given)
        want = torch.autograd.grad(attend(*given)[0].float().square().sum(), given)
        assert all(close(a, b) for a, b in zip(got, want, strict=True))


def test_the_op_keeps_torchs_rules(interpret):
    """https://github.com/huggingface/transformers/issues/41803"""
    attend = interpret.load(CAUSAL)
    torch.library.opcheck(attend.op, tuple(tensors(20)))
    torch.library.opcheck(attend.op, tuple(tensors(20, m=3)))


def test_functional_gradients(interpret):
    """https://github.com/huggingface/transformers/issues/41803"""
    attend, (q, k, v) = interpret.load(CAUSAL), tensors(20)
    got = torch.func.grad(lambda q: attend(q, k.detach(), v.detach())[0].float().sum())(q.detach())
    rows, cols = positions(20, 20)
    (want,) = torch.autograd.grad(dense(q, k, v, cols <= rows)[0].sum(), q)
    assert close(got, want, 3e-2)


def test_a_kernel_for_another_device_says_so_in_one_sentence(monkeypatch):
    """https://github.com/Dao-AILab/flash-attention/issues/1481"""
    q, k = torch.zeros(1, 3, 2, 32).bfloat16(), torch.zeros(1, 5, 2, 32).bfloat16()
    for target in ("sm90", "gfx942"):
        with pytest.raises(TargetFault) as refused:
            tilec.load(spec(), target=target, cache_dir=None)(q, k, k)
        text = str(refused.value)
        assert (
            refused.value.code == "E0912" and f"built for {target}, and the device is cpu" in text and "rebuild" in text
        )


def test_an_unknown_target_names_those_there_are():
    """https://github.com/Dao-AILab/flash-attention/issues/1481"""
    with pytest.raises(TargetFault) as refused:
        tilec.load(spec(), target="sm9O")
    assert refused.value.code == "E0901" and "sm90" in str(refused.value)


def test_a_device_that_no_target_describes_is_named(monkeypatch):
    """https://github.com/Dao-AILab/flash-attention/issues/1481"""

    class Properties:
        major, minor, name = 7, 0, "Tesla V100"

    devices.target_of.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(TargetFault) as refused:
        devices.require("sm90", torch.device("cuda", 0), "tilec.load(…)")
    devices.target_of.cache_clear()
    assert "Tesla V100, compute capability 7.0" in str(refused.value) and "no target describes" in str(refused.value)


@pytest.mark.parametrize("target", ["sm80", "sm90", "gfx942"])
def test_no_device_is_needed_to_compile_for_one(tmp_path, target, monkeypatch):
    """https://github.com/Dao-AILab/flash-attention/issues/1481"""
    monkeypatch.setenv("TILEC_CACHE", "off")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("looked for a device"))
    path = build(read_text(spec(), "spec.tile"), "case", target, tmp_path)
    assert f"for {target}" in path.read_text()


@pytest.mark.parametrize("special", [True, False])
def test_a_toolchain_that_fails_on_the_special_variant_gets_the_general_one(monkeypatch, special):
    """https://github.com/pytorch/pytorch/issues/180278"""
    tried = []

    def load(artifact, signature, device):
        tried.append(artifact.variant)
        if artifact.variant.features or not special:
            raise TargetFault("E0917", "ptxas fails")
        return SimpleNamespace(prepare=lambda bound: lambda tensors, outputs, addresses: outputs[0].fill_(3))

    kernel = tilec.load(spec(), target="cpu", cache_dir=None)
    monkeypatch.setattr(kernel_module, "launch_half", lambda name: load)
    monkeypatch.setattr(kernel.provider, "features", lambda target: frozenset({"aligned"}))
    monkeypatch.setattr(kernel.provider, "artifact", lambda target, variant: Artifact("case", target, "cpu", variant))
    q, k = torch.zeros(1, 3, 2, 32).bfloat16(), torch.zeros(1, 5, 2, 32).bfloat16()
    if special:
        assert (kernel(q, k, k)[0] == 3).all()
    else:
        with pytest.raises(TargetFault):
            kernel(q, k, k)
    assert tried == [Variant((), frozenset({"aligned"})), Variant()]


DROPPED = spec("mask k <= q", "dropout 0.48", "grad Q, K, V", d=16, e=40, dtype="f32", heads=2)


def test_both_passes_drop_the_same_weights(interpret):
    """https://github.com/pytorch/pytorch/pull/197563"""
    attend = interpret.load(DROPPED)
    n = 40
    q, k = torch.randn(2, 2, n, 2, 16).unbind(0)
    v = torch.eye(n)[None, :, None].expand(2, n, 2, n).contiguous().requires_grad_()
    kept = attend(q, k, v, seed=7)[0]  # [B, M, H, N]: the weights themselves
    plain = interpret.load(DROPPED.replace("  dropout 0.48\n", ""))(q, k, v)[0]
    alive = plain > 0
    assert close(kept[kept > 0], plain[kept > 0] / 0.52, 1e-5)
    rate, count = (kept[alive] > 0).double().mean(), alive.sum()
    assert abs(rate - 0.52) < 5 * (0.52 * 0.48 / count) ** 0.5
    d_o = torch.randn(2, n, 2, n)
    (d_v,) = torch.autograd.grad(kept, v, d_o)
    assert close(d_v, torch.einsum("bmhn,bmhe->bnhe", kept, d_o), 1e-4)


def test_dropped_weights_follow_the_seeds(attend):
    """https://github.com/pytorch/pytorch/pull/197563"""
    kernel = attend.load(DROPPED)
    q, k, v = torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 40)
    torch.manual_seed(1)
    first, second = kernel(q, k, v)[0], kernel(q, k, v)[0]
    torch.manual_seed(1)
    assert torch.equal(kernel(q, k, v)[0], first) and not torch.equal(first, second)
    assert torch.equal(kernel(q, k, v, seed=5)[0], kernel(q, k, v, seed=5)[0])
    assert not torch.equal(kernel(q, k, v, seed=5)[0], kernel(q, k, v, seed=5, offset=1)[0])


TILED = """
import sys
from hashlib import sha256
from tilec.frontend import read_text
from tilec.ir.print import show_program
from tilec.pipeline import lower
attn = read_text(sys.argv[1]).kernels[0]
for target in ("sm90", "gfx942"):
    print(sha256(show_program(lower(attn, target)).encode()).hexdigest())
"""


def test_tiles_are_chosen_alike_in_every_process():
    """https://github.com/triton-lang/triton/issues/9368"""
    text = spec("mask k <= q + N - M", d=128, tile=None)
    runs = [start("-c", TILED, text, PYTHONHASHSEED=seed) for seed in ("0", "1")]
    one, two = (run.communicate(timeout=100)[0].split() for run in runs)
    assert one == two and len(set(one)) == 2


@pytest.mark.parametrize("target", ["sm80", "sm90", "gfx942"])
def test_a_pinned_tile_is_the_one_that_runs_and_is_reported(target):
    """https://github.com/triton-lang/triton/issues/9368"""
    for tile in ((64, 32), (32, 128)):
        read = read_text(spec(d=64, tile=tile))
        program = lower(read.kernels[0], target, read.schedule("case", target))
        assert dict(program.tile) | {"TQ": tile[0], "TK": tile[1]} == dict(program.tile)
        assert "tiles by spec" in show_program(program)


def imports(text):
    for x in ast.walk(ast.parse(text)):
        if isinstance(x, ast.Import):
            yield from (a.name for a in x.names)
        elif isinstance(x, ast.ImportFrom):
            yield x.module


@pytest.mark.parametrize("target", ["cpu", "sm90", "gfx942"])
def test_a_generated_module_imports_torch_triton_and_the_runtime_alone(tmp_path, monkeypatch, target):
    """https://github.com/Dao-AILab/flash-attention/issues/1038"""
    monkeypatch.setenv("TILEC_CACHE", "off")
    build(read_text(spec(), "spec.tile"), "case", target, tmp_path)
    found = {name for path in tmp_path.rglob("*.py") for name in imports(path.read_text())}
    assert found and all(
        n.split(".")[0] in ("torch", "triton") or n.startswith("tilec.backends.runtime") for n in found
    )


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
def test_a_missing_toolchain_is_named(monkeypatch, target):
    """https://github.com/Dao-AILab/flash-attention/issues/1038"""

    def gone(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(triton, "version", gone)
    with pytest.raises(TargetFault) as refused:
        triton.BACKEND.toolchain(target)
    assert refused.value.code == "E0911" and "pip install" in str(refused.value)


def test_checking_a_spec_needs_no_toolchain():
    """https://github.com/Dao-AILab/flash-attention/issues/1038"""
    path = Path(__file__).parents[2] / "examples/causal_gqa/spec.tile"
    code = f"""
import sys
from tilec.cli import main
main(["check", {str(path)!r}], standalone_mode=False)
print(sorted({{"torch", "triton", "numpy"}} & set(sys.modules)))
"""
    out, err = start("-c", code).communicate(timeout=100)
    assert out.splitlines()[-1] == "[]", err


def test_features_of_a_call_never_need_the_elements(interpret):
    """The plan of a call comes from shapes, strides and addresses: nothing there waits for a device.

    https://github.com/Dao-AILab/flash-attention/issues/1164"""
    kernel = interpret.load(spec(k="lengths n", tails="paged pages[b, k // 16]"))
    meta = [
        torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((2, 1, 2, 32), (9, 16, 2, 32), (9, 16, 2, 32))
    ]
    tables = [torch.empty(s, dtype=torch.int32, device="meta") for s in ((2,), (2, 4))]
    bound = bind(kernel.signature, (*meta, *tables), "sm90", None)
    assert [o.shape for o in bound.outputs] == [(2, 1, 2, 32), (2, 2, 1)] and bound.extents["K_pages"] == 9
    assert np.all(bound.empty == "no")
