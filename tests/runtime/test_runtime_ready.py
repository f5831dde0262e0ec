"""The short way of repeated calls: which calls take it, that every other is told apart, and that both give the same."""

from contextlib import nullcontext
from threading import Thread

import pytest
import runtime_kit as kit
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tilec.backends.runtime import device as devices
from tilec.backends.runtime import kernel as kernel_module
from tilec.backends.runtime import ready as ready_module
from tilec.dsl.faults import CallFault

Q, K, V = kit.dense()


class Functions(TorchFunctionMode):
    def __torch_function__(self, f, types, args=(), named=None):
        return f(*args, **(named or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, f, types, args=(), named=None):
        return f(*args, **(named or {}))


@pytest.fixture
def causal(monkeypatch):
    return kit.make_kernel(monkeypatch, kit.CAUSAL)


@pytest.fixture
def long_ways(causal, monkeypatch):
    """One entry for each call that looked for its plan."""
    seen, plan = [], causal.plan
    monkeypatch.setattr(causal, "plan", lambda *a: seen.append(a) or plan(*a))
    return seen


def outs(q, k, v):
    return torch.empty_like(q), torch.empty(q.shape[0], q.shape[2], q.shape[1])


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_repeated_calls_take_the_short_way_with_other_memory(causal, long_ways, mode):
    with mode():
        q, k, v = kit.dense()
        first = causal(q, k, v)
        for seed in range(3):
            q, k, v = kit.dense(seed=seed)
            found = causal(q, V=v, K=k)
            assert torch.allclose(found[0].double(), kit.reference(q, k, v)[0], atol=2e-2)
            assert [(t.shape, t.stride(), t.dtype, t.is_inference()) for t in found] == [
                (t.shape, t.stride(), t.dtype, t.is_inference()) for t in first
            ]
    assert len(long_ways) == 1 and len(causal.calls) == 4


def test_calls_that_bring_outputs_have_a_short_way_of_their_own(causal, long_ways):
    q, k, v = kit.dense()
    for _ in range(3):
        out = outs(q, k, v)
        assert causal(q, k, v, out=out)[1] is out[1] and same(out, causal(q, k, v))
    assert len(long_ways) == 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_gradient_is_recorded_after_calls_without(causal, mode):
    q, k, v = kit.dense(grad=True)
    out = outs(q, k, v)
    for _ in range(3):
        with mode():
            assert not causal(q, k, v)[0].requires_grad
            causal(q, k, v, out=out)
        o, lse = causal(q, k, v)
        assert o.requires_grad and torch.autograd.grad(lse.sum(), q)[0].any()
        with pytest.raises(CallFault) as caught:
            causal(q, k, v, out=out)
        assert caught.value.code == "E1022"


def test_recorded_calls_take_it_too(causal, long_ways):
    q, k, v = kit.dense(grad=True)
    for n in range(3):
        o, lse = causal(q, k, v)
        (grad,) = torch.autograd.grad(lse.sum() + o.sum(), q)
        assert grad.any() and len(causal.calls) == n + 1
    assert len(long_ways) == 1 + 3, "once for the forward passes, and for each backward pass"


def test_compiled_calls_take_it_too(causal, long_ways):
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: causal(*t)[0] * 2, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        tensors = kit.dense(seed=seed)
        want, _ = kit.reference(*tensors)
        assert torch.allclose(compiled(*tensors).double(), 2 * want, atol=4e-2)
    assert len(long_ways) <= 2, "once while it is compiled, and once with the keys that its calls have"


def test_a_mode_that_comes_and_goes_is_learnt_anew(causal, long_ways):
    q, k, v = kit.dense()
    for mode in (nullcontext, torch.inference_mode, nullcontext):
        with mode():
            for _ in range(3):
                causal(q, k, v)
    assert len(long_ways) == 3


UNLIKE = {
    "shape": lambda q, k, v: (q[:, :3], k, v),
    "stride": lambda q, k, v: (q, k.transpose(1, 2).contiguous().transpose(1, 2), v),
    "address": lambda q, k, v: (q, k, torch.cat([v.flatten()[:1], v.flatten()])[1:].view(v.shape)),
    "one tensor twice": lambda q, k, v: (q, k, k),
    "gradient": lambda q, k, v: (q, k, v.detach().requires_grad_()),
    "parameter": lambda q, k, v: (q, torch.nn.Parameter(k, requires_grad=False), v),
}
REFUSED = {
    "dtype": lambda q, k, v: (q, k.half(), v),
    "device": lambda q, k, v: (q, k.to("meta"), v),
    "rank": lambda q, k, v: (q, k[0], v),
    "no tensor": lambda q, k, v: (q, 3, v),
    "extent": lambda q, k, v: (q, k, v[:, 1:]),
    "last stride": lambda q, k, v: (q, k, v.mT.contiguous().mT),
}


@pytest.mark.parametrize("change", UNLIKE)
def test_another_call_takes_the_long_way(causal, long_ways, change):
    q, k, v = kit.dense()
    causal(q, k, v)
    other = UNLIKE[change](q, k, v)
    got = causal(*other)
    assert len(long_ways) == 2
    want, _ = kit.reference(*(t.detach() for t in other))
    assert torch.allclose(got[0].double(), want, atol=2e-2)
    assert got[0].requires_grad == (change == "gradient")


@pytest.mark.parametrize("change", REFUSED)
def test_a_wrong_call_after_right_ones_is_refused_as_before_them(causal, change):
    q, k, v = kit.dense()
    wrong, said = REFUSED[change](q, k, v), []
    for _ in range(2):
        with pytest.raises(CallFault) as caught:
            causal(*wrong)
        said.append(str(caught.value))
        assert caught.value.__context__ is None
        causal(q, k, v)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda o, lse: (o,),
        lambda o, lse: o,
        lambda o, lse: (o, lse.double()),
        lambda o, lse: (o, lse, lse),
        lambda o, lse: (o, 3),
        lambda o, lse: (o[:, :1].expand(o.shape), lse),
        lambda o, lse: (Q.view(Q.shape), lse),
        lambda o, lse: [o],
    ],
)
def test_wrong_outputs_after_right_ones_are_refused(causal, wrong):
    causal(Q, K, V, out=outs(Q, K, V))
    with pytest.raises(CallFault) as caught:
        causal(Q, K, V, out=wrong(*outs(Q, K, V)))
    assert caught.value.code == "E1019"


def test_an_output_that_requires_a_gradient_is_refused(causal):
    out = outs(Q, K, V)
    causal(Q, K, V, out=list(out))
    out[0].requires_grad_()
    with pytest.raises(CallFault) as caught:
        causal(Q, K, V, out=out)
    assert caught.value.code == "E1022"
    with torch.no_grad():
        assert causal(Q, K, V, out=out)[0] is out[0]


@pytest.mark.parametrize("mode", [Functions, Dispatches, forward_ad.dual_level, lambda: torch.autocast("cpu")])
def test_no_mode_is_passed_by(causal, mode):
    q, k, v = kit.dense()
    want = causal(q, k, v)
    ready = causal._latest[0]
    assert ready((q, k, v), None) is not None
    with mode():
        assert ready((q, k, v), None) is None
        assert same(causal(q, k, v), want)


def test_no_transform_is_passed_by(causal):
    q, k, v = kit.dense()
    causal(q, k, v)
    ready, inside = causal._latest[0], []

    def loss(q):
        inside.append((ready((q, k, v), None), ready((k, k, v), None)))
        return causal(q, k, v)[1].sum()

    torch.func.grad(loss)(q)
    torch.func.vmap(lambda q: inside.append((ready((q, k, v), None), None)) or q)(q)
    assert inside == [(None, None), (None, None)]


def test_low_bits_of_addresses_are_those_of_the_call_that_was_checked(causal, long_ways):
    q, k, v = kit.dense()
    odd = torch.cat([v.flatten()[:1], v.flatten()])[1:].view(v.shape)
    for _ in range(2):
        causal(q, k, odd)
    assert len(long_ways) == 1
    causal(q, k, v)
    causal(q, k, odd)
    assert len(long_ways) == 3


def test_another_device_than_the_current_one_takes_the_long_way(causal, long_ways, monkeypatch):
    now = [1]
    monkeypatch.setattr(ready_module.devices, "current_on", lambda _: (lambda: now[0], 1))
    q, k, v = kit.dense()
    for current in (1, 1, 0, 1):
        now[0] = current
        causal(q, k, v)
    assert len(long_ways) == 2


def test_a_torch_without_the_check_or_the_allocation_has_the_long_way(causal, long_ways, monkeypatch):
    q, k, v = kit.dense()
    monkeypatch.setattr(ready_module, "TensorGuards", None)
    monkeypatch.setattr(devices, "GUARDS", None)
    want = kit.reference(q, k, v)[0]
    for _ in range(2):
        assert torch.allclose(causal(q, k, v)[0].double(), want, atol=2e-2)
    assert len(long_ways) == 2


@pytest.mark.parametrize("tables", [False, True])
def test_rows_of_no_sequence_are_dead_on_the_short_way(monkeypatch, tables):
    monkeypatch.setattr(kernel_module, "has_values", lambda _: tables)
    packed = kit.make_kernel(monkeypatch, kit.PACKED)
    q, k, v = (x[0] for x in kit.dense(B=1, M=6, N=7, H=3, G=3))
    cu = torch.tensor([0, 2, 4], dtype=torch.int32)
    for _ in range(3):
        o, lse = packed(q, k, v, cu, cu.clone())
        assert (o[4:] == 0).all() and (lse[:, 4:].isneginf()).all() and o[:4].any()
        o.fill_(7), lse.fill_(7)
    assert (packed._latest[0] is None) == tables, "tables are checked on the long way"


def test_calls_whose_values_are_checked_take_the_long_way(causal, long_ways, monkeypatch):
    monkeypatch.setattr(causal, "_values", True)
    monkeypatch.setattr(kernel_module, "check_values", lambda *_: None)
    q, k, v = kit.dense()
    for _ in range(3):
        causal(q, k, v)
    assert len(long_ways) == 3


def test_threads_share_the_short_way(causal):
    found = {}

    def work(seed):
        q, k, v = kit.dense(seed=seed)
        found[seed] = [causal(q, k, v)[0] for _ in range(20)]

    threads = [Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seed, results in found.items():
        want, _ = kit.reference(*kit.dense(seed=seed))
        assert all(torch.allclose(o.double(), want, atol=2e-2) for o in results)
