"""The callable: outputs, remembered plans, empty problems, variants, devices, settings, and what a call costs."""

import copy
import timeit
import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import runtime_kit as kit
import torch

from tilec.backends.base import Artifact, Variant, backend
from tilec.backends.runtime import device as devices
from tilec.backends.runtime import kernel as kernel_module
from tilec.backends.runtime.settings import settings
from tilec.dsl.faults import CallFault, TargetFault

INF = float("inf")


@pytest.fixture
def causal(monkeypatch):
    return kit.make_kernel(monkeypatch, kit.CAUSAL)


def test_outputs_come_in_the_specs_order_and_dtype(causal):
    q, k, v = kit.dense()
    o, lse = causal(q, k, v)
    want, want_lse = kit.reference(q, k, v)
    assert (o.dtype, lse.dtype, o.stride()) == (torch.bfloat16, torch.float32, q.stride())
    assert torch.allclose(o.double(), want, atol=2e-2) and torch.allclose(lse.double(), want_lse, atol=1e-5)


def test_one_output_is_no_tuple(monkeypatch):
    q, k, v = kit.dense()
    assert isinstance(kit.make_kernel(monkeypatch, kit.OUTPUT_ONLY)(q, k, v), torch.Tensor)


def test_arguments_go_by_name_as_well(causal):
    q, k, v = kit.dense()
    assert torch.equal(causal(q, V=v, K=k)[0], causal(q, k, v)[0])


def test_out_is_written_in_place_whatever_its_strides(causal):
    q, k, v = kit.dense()
    want, want_lse = causal(q, k, v)
    o = torch.full((2, 4, 5, 16), INF, dtype=q.dtype).transpose(1, 2)
    lse = torch.full((2, 4, 10), INF)[..., ::2]
    assert causal(q, k, v, out=(o, lse))[0] is o
    assert torch.equal(o, want) and torch.equal(lse, want_lse)
    assert causal.calls[-1].output_strides == (o.stride(), lse.stride())


def test_out_and_gradients_do_not_go_together(causal):
    q, k, v = kit.dense(grad=True)
    with pytest.raises(CallFault) as caught:
        causal(q, k, v, out=(torch.empty_like(q), torch.empty(2, 4, 5)))
    assert caught.value.code == "E1022"


def test_equal_metadata_is_checked_once(causal, monkeypatch):
    seen = []
    original = kernel_module.bind
    monkeypatch.setattr(kernel_module, "bind", lambda *a: seen.append(a) or original(*a))
    q, k, v = kit.dense()
    for _ in range(3):
        causal(q, k, v)
    assert len(seen) == 1 and len({id(b) for b in causal.calls}) == 1
    causal(q, k[:, :6], v[:, :6])
    causal(q, k.clone(memory_format=torch.contiguous_format), v)
    assert len(seen) == 2


@pytest.mark.parametrize("change", ["shape", "stride", "dtype", "address"])
def test_any_change_of_metadata_is_seen(causal, change):
    q, k, v = kit.dense()
    causal(q, k, v)
    match change:
        case "shape":
            causal(q[:, :3], k, v)
        case "stride":
            causal(q, k.transpose(1, 2).contiguous().transpose(1, 2), v)
        case "address":
            causal(q, k, torch.cat([v.flatten()[:1], v.flatten()])[1:].view(v.shape))
        case "dtype":
            with pytest.raises(CallFault):
                causal(q.half(), k, v)
            return
    assert causal.calls[0] is not causal.calls[1]


def test_remembered_plans_are_bounded(causal, monkeypatch):
    monkeypatch.setattr(kernel_module, "PLANS", 3)
    q, k, v = kit.dense(M=9)
    for n in range(1, 9):
        causal(q[:, :n], k, v)
    assert len(causal._plans) <= 3


@pytest.mark.parametrize("empty", [(0, 5, 7), (2, 0, 7), (0, 0, 0)])
def test_no_rows_launch_nothing(causal, empty):
    B, M, N = empty
    o, lse = causal(*kit.dense(B=B, M=M, N=N))
    assert o.shape == (B, M, 4, 16) and lse.shape == (B, 4, M)
    assert not causal.calls and not causal.machine.variants


def test_no_keys_give_dead_rows_without_a_launch(causal):
    q, k, v = kit.dense(N=0)
    o, lse = causal(q, k, v, out=(torch.full_like(q, INF), torch.full((2, 4, 5), INF)))
    assert (o == 0).all() and (lse == -INF).all() and not causal.calls


@pytest.mark.parametrize("empty", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_gradients_of_empty_problems_are_zero(causal, empty):
    B, M, N = empty
    q, k, v = kit.dense(B=B, M=M, N=N, grad=True)
    causal(q, k, v)[0].sum().backward()
    assert all(x.grad.shape == x.shape and (x.grad == 0).all() for x in (q, k, v))


def test_constants_and_features_choose_the_variant(monkeypatch):
    machine = kit.Machine(frozenset({"aligned"}))
    grouped = kit.make_kernel(monkeypatch, kit.GROUPED, machine=machine)
    k = torch.zeros(1, 2, 3, 8)
    grouped(torch.zeros(1, 4, 3, 8), k, k)
    grouped(torch.zeros(1, 6, 2, 8), k, k)
    odd = torch.zeros(k.numel() + 1)[1:].view(k.shape)
    grouped(torch.zeros(1, 4, 3, 8), odd, k)
    groups = [(dict(v.constants)["G"], sorted(v.features)) for _, v in machine.variants]
    assert groups == [(2, ["aligned"]), (3, ["aligned"]), (2, [])]


def test_lengths_and_batch_never_compile_again(causal):
    for B, M, N in ((1, 1, 1), (2, 5, 7), (3, 4, 9)):
        causal(*kit.dense(B=B, M=M, N=N))
    assert len(causal.machine.variants) == 1


def test_tables_are_checked_at_every_call_on_cpu(monkeypatch):
    packed = kit.make_kernel(monkeypatch, kit.PACKED)
    x = torch.zeros(4, 1, 16, dtype=torch.bfloat16)
    cu = torch.tensor([0, 1, 4], dtype=torch.int32)
    packed(x.expand(4, 3, 16), x, x, cu, cu)
    cu[1] = 5
    with pytest.raises(CallFault) as caught:
        packed(x.expand(4, 3, 16), x, x, cu, cu)
    assert caught.value.code == "E1015"


@pytest.mark.parametrize("lengths", [[(1, 3), (0, 0), (1, 5)], [(0, 2), (0, 0)], [(2, 0)]])
def test_packed_rows_and_rows_past_the_end(monkeypatch, lengths):
    packed = kit.make_kernel(monkeypatch, kit.PACKED)
    m, n = (sum(x) for x in zip(*lengths, strict=True))
    q, k, v = (x[0] for x in kit.dense(B=1, M=m + 2, N=n + 1, H=3, G=3))
    cu_q, cu_k = (torch.tensor([0, *x]).cumsum(0).int() for x in zip(*lengths, strict=True))
    o, lse = packed(q, k, v, cu_q, cu_k)
    assert (o[m:] == 0).all() and (lse[:, m:] == -INF).all()
    at_q = at_k = 0
    for rows, keys in lengths:
        if rows and keys >= rows:
            want, _ = kit.reference(*(x[None] for x in (q[at_q:][:rows], k[at_k:][:keys], v[at_k:][:keys])))
            assert torch.allclose(o[at_q:][:rows].double(), want[0], atol=2e-2)
        at_q, at_k = at_q + rows, at_k + keys


class Cuda:
    """Stands for two GPUs: what is current, and what was made current."""

    def __init__(self, monkeypatch, capability=(9, 0)):
        self.now, self.entered = 0, []
        properties = type("P", (), {"major": capability[0], "minor": capability[1], "name": "Stub"})()
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: properties)
        devices.target_of.cache_clear()

    @contextmanager
    def device(self, device):
        before, self.now = self.now, device.index
        self.entered.append(device.index)
        yield
        self.now = before


@pytest.fixture
def forget_targets():
    yield
    devices.target_of.cache_clear()


def test_a_launch_makes_the_tensors_device_current_and_restores_it(monkeypatch, forget_targets):
    cuda = Cuda(monkeypatch)
    where = []
    causal = kit.make_kernel(monkeypatch, kit.CAUSAL, launcher=lambda *_: kit.Doing(lambda *_: where.append(cuda.now)))
    q, k, v = kit.dense()
    plan = causal._make_plan("key", (q, k, v), None)
    plan.bound = replace(plan.bound, device=torch.device("cuda", 1))
    monkeypatch.setattr(causal, "plan", lambda *a: plan)
    causal.forward((q, k, v))
    assert where == [1] and cuda.now == 0
    cuda.now = 1
    causal.forward((q, k, v))
    assert where == [1, 1] and cuda.now == 1 and cuda.entered == [1]


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), "sm80"), ((8, 9), "sm89"), ((9, 0), "sm90"), ((10, 0), "sm100")]
)
def test_a_device_names_its_target(monkeypatch, forget_targets, capability, target):
    Cuda(monkeypatch, capability)
    assert devices.target_of(torch.device("cuda", 0)) == target


def test_an_unknown_device_is_an_error(monkeypatch, forget_targets):
    Cuda(monkeypatch, (7, 0))
    with pytest.raises(TargetFault) as caught:
        devices.target_of(torch.device("cuda", 0))
    assert caught.value.code == "E0902" and "7.0" in str(caught.value)


def test_a_pinned_target_refuses_another_device(monkeypatch):
    causal = kit.make_kernel(monkeypatch, kit.CAUSAL, target="sm90")
    with pytest.raises(TargetFault) as caught:
        causal(*kit.dense())
    assert str(caught.value) == (
        "error[E0912]: this kernel was built for sm90, and the device is cpu\n"
        "    = rebuild with `tilec compile causal.tile --target cpu`"
    )


def test_other_kinds_of_device_are_refused(causal):
    with pytest.raises(TargetFault) as caught:
        causal(*(x.to("meta") for x in kit.dense()))
    assert caught.value.code == "E0916"


def test_a_backend_that_is_not_installed_is_named():
    with pytest.raises(TargetFault) as caught:
        backend("metal")
    assert caught.value.code == "E0910" and "`metal`" in str(caught.value)


def test_settings_are_the_environment(monkeypatch, tmp_path):
    for name in ("TILEC_CACHE", "TILEC_DEBUG", "TILEC_BACKEND", "TILEC_LOCK_WAIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings().cache == tmp_path / ".cache" / "tilec" and not settings().debug
    monkeypatch.setenv("TILEC_CACHE", "off")
    monkeypatch.setenv("TILEC_DEBUG", "1")
    monkeypatch.setenv("TILEC_LOCK_WAIT", "0.5")
    assert (settings().cache, settings().debug, settings().lock_wait) == (None, True, 0.5)
    for wrong in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("TILEC_LOCK_WAIT", wrong)
        with pytest.raises(CallFault) as caught:
            settings()
        assert caught.value.code == "E1060"


def test_an_artifact_survives_its_files():
    artifact = Artifact(
        "f",
        "sm90",
        "triton",
        Variant((("D", 8),), frozenset({"aligned"})),
        {"f.py": "x = 1\n"},
        {"warps": 4},
        {"f.cubin": b"\0\1"},
    )
    assert Artifact.from_files(artifact.to_files()) == artifact
    assert artifact.describe() == ("f for sm90 by triton, D=8 aligned\n  f.py (1 lines), f.cubin (2 bytes)\n  warps: 4")


def test_a_repeated_call_costs_microseconds(monkeypatch):
    """2 us beside the launcher, measured as the best of many: three times that here, for machines under load."""
    causal = kit.make_kernel(monkeypatch, kit.CAUSAL, launcher=lambda *_: kit.Doing())
    q, k, v = kit.dense()
    causal(q, k, v)
    best = min(timeit.repeat(lambda: causal(q, k, v), number=200, repeat=50)) / 200
    assert best < 6e-6


def test_a_jagged_tensor_is_refused_before_the_dispatcher(causal):
    q, k, v = kit.dense()
    with pytest.raises(CallFault) as caught:
        causal(torch.nested.nested_tensor(list(q), layout=torch.jagged), k, v)
    assert caught.value.code == "E1005" and "`Q` is a nested tensor" in str(caught.value)


def test_a_copied_model_keeps_its_kernel(causal):
    model = torch.nn.Linear(1, 1)
    model.attention = causal
    assert copy.deepcopy(model).attention is causal


def test_warnings_are_not_part_of_a_call(causal):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        causal(*kit.dense())
