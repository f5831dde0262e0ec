"""The hip launcher against a module that only records: arguments in the kernel's order and size, extents, the stream."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from feature_specs import CAUSAL, kernel

from tilec.backends.base import Variant, launch_half
from tilec.backends.hip import ALIGNED, BACKEND
from tilec.backends.runtime.checks import bind
from tilec.dsl.faults import CallFault
from tilec.frontend import read_text
from tilec.schedule import EMPTY
from tilec.signature_of import signature_of

STREAM = 77
SPEC = kernel(
    "param slope[h] : f32", "score s = s - slope[h] * (q - k)", CAUSAL,
    d="d : 64", h="h : H", head="h // 2", scale="scale 1 / 8", schedule="",
)  # fmt: skip
B, H, M, N = 2, 4, 300, 420
SIZES = {"pointer": ctypes.c_void_p, "stride": ctypes.c_longlong, "extent": ctypes.c_int}


class Hip:
    """Succeeds at everything, or fails with `error`.  `launches`: (grid, threads, shared bytes, stream, arguments)."""

    hipError_t = SimpleNamespace(hipSuccess=0)

    def __init__(self):
        self.launches, self.loaded, self.error = [], [], 0

    def hipModuleLoadData(self, code):
        self.loaded.append(code)
        return self.error, "module"

    def hipModuleGetFunction(self, module, name):
        assert module == "module"
        return self.error, name

    def hipModuleLaunchKernel(self, function, x, y, z, tx, ty, tz, shared, stream, parameters, extra):
        assert parameters is None
        given = [(type(a), a.value) for a in extra]
        self.launches.append((function, (x, y, z), (tx, ty, tz), shared, stream, given))
        return (self.error,)


@pytest.fixture(scope="module")
def artifact():
    return BACKEND.compile(read_text(SPEC).kernels[0], "gfx942", EMPTY, Variant((), ALIGNED))


@pytest.fixture
def machine(artifact, monkeypatch):
    """(module, launcher of it on the cpu device, signature)."""
    hip, package = Hip(), ModuleType("hip")
    package.hip = hip
    monkeypatch.setitem(sys.modules, "hip", package)
    monkeypatch.delitem(sys.modules, "tilec.backends.hip.launch", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=304))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    signature = signature_of(read_text(SPEC).kernels[0], read_text(SPEC).source)
    yield hip, launch_half("hip")(artifact, signature, torch.device("cpu")), signature
    sys.modules.pop("tilec.backends.hip.launch", None)


def given(signature, q=None):
    """(what the runtime knows of a call with queries that are a view, its tensors, its outputs)."""
    half = torch.bfloat16
    q = torch.empty(B, M, 2 * H, 64, dtype=half)[:, :, :H] if q is None else q
    k, v = (torch.empty(B, N, H // 2, 64, dtype=half) for _ in "kv")
    tensors = [q, k, v, torch.empty(H)]
    bound = bind(signature, tensors, "gfx942")
    return bound, tensors, [torch.empty(o.shape, dtype=o.dtype) for o in bound.outputs]


def launch(launcher, bound, tensors, outputs, run=None):
    run = run or launcher.prepare(bound)
    run(tensors, outputs, tuple(t.data_ptr() for t in (*tensors, *outputs)))
    return run


def test_arguments_are_those_of_the_kernel(machine, artifact):
    hip, launcher, signature = machine
    bound, tensors, outputs = given(signature)
    launch(launcher, bound, tensors, outputs)
    assert hip.loaded == list(artifact.binaries.values())
    ((function, grid, threads, shared, stream, values),) = hip.launches
    tile = artifact.metadata["tile"]
    assert function == artifact.metadata["function"].encode() and stream == STREAM and shared == 0
    assert grid == (-(-M // tile["TQ"]) * H * B, 1, 1) and threads == (512, 1, 1)
    by_name = dict(zip(("Q", "K", "V", "slope", "O", "L"), (*tensors, *outputs), strict=True))
    extents = {"B": B, "H": H, "M": M, "N": N}
    expected = []
    for _, kind, of, dimension in artifact.metadata["arguments"]:
        value = {
            "pointer": lambda of=of: by_name[of].data_ptr(),
            "stride": lambda of=of, n=dimension: by_name[of].stride(n),
            "extent": lambda of=of: extents[of],
        }[kind]()
        expected.append((SIZES[kind], value))
    assert values == expected


def test_a_second_call_changes_addresses_alone(machine):
    hip, launcher, signature = machine
    bound, tensors, outputs = given(signature)
    run = launch(launcher, bound, tensors, outputs)
    moved = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in tensors]
    launch(launcher, bound, moved, outputs, run)
    first, second = (values for *_, values in hip.launches)
    changed = [a for a, b in zip(first, second, strict=True) if a != b]
    assert {kind for kind, _ in changed} == {ctypes.c_void_p} and len(changed) == 4


def test_rows_too_far_apart_are_refused(machine):
    hip, launcher, signature = machine
    far = torch.empty(2**25, dtype=torch.bfloat16).as_strided((B, 2, H, 64), (0, 2**24, 64, 1))
    bound, tensors, outputs = given(signature, far)
    with pytest.raises(CallFault) as caught:
        launch(launcher, bound, tensors, outputs)
    assert caught.value.code == "E1040" and "`Q`" in caught.value.message and hip.launches == []


def test_a_failure_is_an_error(machine):
    hip, launcher, signature = machine
    hip.error = 719
    with pytest.raises(RuntimeError, match="719"):
        launch(launcher, *given(signature))


def test_no_rows_launch_nothing(machine):
    hip, launcher, signature = machine
    bound, tensors, outputs = given(signature, torch.empty(B, 0, H, 64, dtype=torch.bfloat16))
    launch(launcher, bound, tensors, outputs)
    assert hip.launches == []
