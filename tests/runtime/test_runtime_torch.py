"""A kernel inside PyTorch: autograd, torch.compile, torch.func, checkpointing, and what has no gradient."""

import numpy as np
import pytest
import runtime_kit as kit
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tilec.dsl.faults import CallFault, TargetFault


@pytest.fixture
def causal(monkeypatch):
    torch._dynamo.reset()
    return kit.make_kernel(monkeypatch, kit.CAUSAL)


def loss(o, lse):
    weight = torch.linspace(-1, 1, o.numel()).view(o.shape)
    return (o.float() * weight).sum() + lse.square().sum()


def grads(f, tensors):
    return torch.autograd.grad(loss(*f(*tensors)), tensors)


def test_gradients_are_those_of_the_reference(causal):
    tensors = kit.dense(grad=True)
    got, want = grads(causal, tensors), grads(kit.reference, tensors)
    for a, b, t in zip(got, want, tensors, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (t.shape, t.dtype, t.contiguous().stride())
        assert torch.allclose(a.float(), b.float(), atol=3e-2, rtol=3e-2)


def test_the_lse_alone_is_differentiable(causal):
    tensors = kit.dense(grad=True)
    got = torch.autograd.grad(causal(*tensors)[1].sum(), tensors)
    want = torch.autograd.grad(kit.reference(*tensors)[1].sum(), tensors[:2])
    for a, b in zip(got, want, strict=False):
        assert torch.allclose(a.float(), b.float(), atol=3e-2, rtol=3e-2)
    assert (got[2] == 0).all()


def test_an_expanded_gradient_is_accepted(causal):
    q, k, v = kit.dense(grad=True)
    causal(q, k, v)[0].sum().backward()  # strides of dO are all 0
    assert q.grad.abs().sum() > 0


def test_gradients_of_a_slice_do_not_depend_on_earlier_calls(causal):
    q, k, v = kit.dense(N=12, grad=True)
    causal(q, k, v)[0].sum().backward()
    k.grad = None
    causal(q, k[:, :-4], v[:, :-4])[0].sum().backward()
    q2, k2, v2 = (x.detach().clone().requires_grad_() for x in (q, k[:, :-4], v[:, :-4]))
    causal(q2, k2, v2)[0].sum().backward()
    assert torch.equal(k.grad[:, :-4], k2.grad) and (k.grad[:, -4:] == 0).all()


def test_only_wanted_gradients_come(causal):
    q, k, v = kit.dense()
    v.requires_grad_()
    causal(q, k, v)[0].sum().backward()
    assert q.grad is None and v.grad is not None


def test_a_spec_without_grad_refuses_the_backward_pass(monkeypatch):
    frozen = kit.make_kernel(monkeypatch, kit.NO_GRAD)
    q, k, v = kit.dense()
    o, _ = frozen(q, k.requires_grad_(), v)
    assert o.requires_grad
    with pytest.raises(CallFault) as caught:
        o.sum().backward()
    assert str(caught.value) == (
        "error[E1020]: `K` requires a gradient, and the spec of `frozen` does not declare one\n"
        " --> spec.tile:5:3\n"
        "  5 |   key    K[b, k, h // 2, d] : bf16\n"
        "    |   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "    = it has no `grad` line\n"
        "    = add `grad K` to spec.tile, or pass K.detach()"
    )
    with torch.no_grad():
        assert not frozen(q, k, v)[0].requires_grad


def test_a_target_without_gradients_says_so(monkeypatch):
    causal = kit.make_kernel(monkeypatch, kit.CAUSAL, launcher=kit.ForwardOnly)
    q, k, v = kit.dense(grad=True)
    o, _ = causal(q, k, v)
    with pytest.raises(TargetFault) as caught:
        o.sum().backward()
    assert caught.value.code == "E0913" and "not yet on cpu" in str(caught.value)


def test_second_derivatives_are_refused_not_zero(causal):
    q, k, v = kit.dense(grad=True)
    (dq,) = torch.autograd.grad(causal(q, k, v)[0].float().sum(), q, create_graph=True)
    with pytest.raises(CallFault) as caught:
        dq.float().square().sum().backward()
    assert caught.value.code == "E1025"


def test_torch_func_grad(causal):
    q, k, v = kit.dense()
    got = torch.func.grad(lambda *t: loss(*causal(*t)), argnums=(0, 1, 2))(q, k, v)
    want = grads(causal, [x.requires_grad_() for x in (q, k, v)])
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_checkpointing_recomputes_the_same(causal):
    tensors = kit.dense(grad=True)
    got = grads(lambda *t: checkpoint(causal, *t, use_reentrant=False), tensors)
    assert all(torch.equal(a, b) for a, b in zip(got, grads(causal, tensors), strict=True))


def test_opcheck(causal):
    found = torch.library.opcheck(causal.op, kit.dense(B=1, M=3, N=4, grad=True))
    assert set(found.values()) == {"SUCCESS"}


def test_fake_tensors_get_shapes_dtypes_and_strides(causal):
    real = causal(*kit.dense())
    with FakeTensorMode() as mode:
        fake = causal(*(mode.from_tensor(x) for x in kit.dense()))
    assert [(f.shape, f.dtype, f.stride()) for f in fake] == [(r.shape, r.dtype, r.stride()) for r in real]


def test_wrong_extents_are_found_while_tracing(causal):
    q, k, v = kit.dense()
    tensors = q, k, v[:, 1:]
    with FakeTensorMode() as mode, pytest.raises(CallFault) as caught:
        causal(*map(mode.from_tensor, tensors))
    assert caught.value.code == "E1007"


def test_compiled_without_breaks_for_any_length(causal):
    counter = CompileCounterWithBackend("aot_eager")

    def block(q, k, v):
        o, lse = causal(q, k, V=v)
        return o * 2, lse

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    for n in (128, 129, 200):
        tensors = kit.dense(B=1, M=n, N=n, grad=True, seed=n)
        for a, b in zip(grads(compiled, tensors), grads(block, tensors), strict=True):
            assert torch.equal(a, b)
    assert counter.frame_count <= 2


def test_compiled_packed_call_keeps_totals_symbolic(monkeypatch):
    torch._dynamo.reset()
    packed = kit.make_kernel(monkeypatch, kit.PACKED)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *t: packed(*t), fullgraph=True, dynamic=True, backend=counter)
    for rows in (4, 7, 9):
        q, k, v = (x[0] for x in kit.dense(B=1, M=rows, N=rows, H=3, G=3))
        cu = torch.tensor([0, 2, rows], dtype=torch.int32)
        assert torch.equal(compiled(q, k, v, cu, cu)[0], packed(q, k, v, cu, cu)[0])
    assert counter.frame_count <= 2


def test_compiled_out_is_written(causal):
    q, k, v = kit.dense()
    want = causal(q, k, v)
    out = tuple(map(torch.zeros_like, want))
    torch.compile(lambda: causal(q, k, v, out=out), backend="aot_eager")()
    assert all(torch.equal(a, b) for a, b in zip(out, want, strict=True))


def test_equal_kernels_share_an_op_and_others_do_not(monkeypatch):
    one, two = (kit.make_kernel(monkeypatch, kit.CAUSAL) for _ in range(2))
    other = kit.make_kernel(monkeypatch, kit.CAUSAL.replace("k <= q", "k < q"))
    assert one.op is two.op and one.op is not other.op


@pytest.fixture
def dropped(monkeypatch):
    torch._dynamo.reset()
    return kit.make_kernel(monkeypatch, kit.DROPPED)


def test_dropout_differs_between_calls_and_follows_the_seeds(dropped):
    q, k, v = kit.dense(M=8, N=8)
    torch.manual_seed(5)
    first, second = (dropped(q, k, v)[0] for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(dropped(q, k, v)[0], first) and not torch.equal(first, second)
    assert torch.equal(dropped(q, k, v, seed=3)[0], dropped(q, k, v, seed=3)[0])
    assert not torch.equal(dropped(q, k, v, seed=3)[0], dropped(q, k, v, seed=3, offset=1)[0])
    pair = torch.tensor([3, 1])
    assert torch.equal(dropped(q, k, v, rng=pair)[0], dropped(q, k, v, seed=3, offset=1)[0])
    assert len(dropped._plans) == 1


def test_dropout_is_the_same_in_the_backward_pass_and_after_checkpointing(dropped):
    tensors = kit.dense(M=8, N=8, grad=True)
    torch.manual_seed(5)
    plain = grads(dropped, tensors)
    (launcher,) = dropped._launchers.values()
    seeds = set(launcher.seeds)
    torch.manual_seed(5)
    again = grads(lambda *t: checkpoint(dropped, *t, use_reentrant=False), tensors)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert len(seeds) == 1 and set(launcher.seeds) == seeds


def test_dropout_gradient_of_values_is_the_kept_weights(dropped):
    """dV = (P * keep / (1 - p))^T dO: with one-hot V the output itself is P * keep / (1 - p)."""
    q, k, _ = kit.dense(B=1, M=16, N=16)
    v = torch.eye(16).bfloat16()[None, :, None].expand(1, 16, 2, 16).clone().requires_grad_()
    o, _ = dropped(q, k, v, seed=9)
    o.sum().backward()
    want = o.detach().float().view(1, 16, 2, 2, 16).sum((1, 3)).transpose(1, 2)
    assert torch.allclose(v.grad.float(), want[..., None].expand(v.shape), atol=3e-2)


def test_dropout_compiles_without_breaks(dropped):
    compiled = torch.compile(lambda *t: dropped(*t, seed=4), fullgraph=True, backend="aot_eager")
    tensors = kit.dense(grad=True)
    assert all(
        torch.equal(a, b)
        for a, b in zip(grads(compiled, tensors), grads(lambda *t: dropped(*t, seed=4), tensors), strict=True)
    )
    fresh = torch.compile(lambda *t: dropped(*t), fullgraph=True, backend="aot_eager")
    assert not torch.equal(fresh(*tensors)[0], fresh(*tensors)[0])


def dual(f, q):
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(q, q))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, q: torch.func.jvp(f, (q,), (q,)),
        lambda f, q: torch.func.vmap(f)(torch.stack([q, q])),
        lambda f, q: torch.func.hessian(f)(q),
        lambda f, q: torch.func.jacrev(f)(q),
        dual,
    ],
)
def test_transforms_without_a_rule_name_the_kernel(causal, transform):
    q, k, v = kit.dense()
    causal(q, k, v)
    with pytest.raises(CallFault) as caught:
        transform(lambda q: causal(q, k, v)[1], q)
    assert caught.value.code == "E1028" and "`causal` has no" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"seed": "a"}, {"seed": 2**63}, {"seed": 1, "offset": -(2**63) - 1}])
def test_seeds_that_are_no_numbers_of_64_bits_are_refused(dropped, wrong):
    with pytest.raises(CallFault) as caught:
        dropped(*kit.dense(), **wrong)
    assert caught.value.code == "E1026" and "i64 number" in str(caught.value)


def test_a_pair_and_a_seed_are_one_too_many(dropped):
    with pytest.raises(CallFault) as caught:
        dropped(*kit.dense(), rng=torch.tensor([1, 2]), seed=1)
    assert caught.value.code == "E1026"


def test_any_integer_is_a_seed(dropped):
    q, k, v = kit.dense()
    assert torch.equal(dropped(q, k, v, seed=np.int64(3))[0], dropped(q, k, v, seed=3)[0])


def test_a_seed_without_dropout_is_refused(causal):
    with pytest.raises(CallFault) as caught:
        causal(*kit.dense(), seed=1)
    assert caught.value.code == "E1026"
    with pytest.raises(CallFault) as caught:
        causal(*kit.dense(), offset=1)
    assert caught.value.code == "E1026"
    with pytest.raises(CallFault) as caught:
        causal(*kit.dense(), rng=torch.tensor([1, 2]))
    assert caught.value.code == "E1002"


@pytest.mark.parametrize(
    "pair", [3, torch.tensor([1]), torch.tensor([1.0, 2.0]), torch.tensor([1, 2], dtype=torch.int32)]
)
def test_seed_and_offset_are_two_i64_numbers(dropped, pair):
    with pytest.raises(CallFault) as caught:
        dropped(*kit.dense(), rng=pair)
    assert caught.value.code == "E1026" and "torch.int64[2] on cpu" in str(caught.value)
