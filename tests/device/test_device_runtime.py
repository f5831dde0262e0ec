"""The runtime on a GPU: streams, captured graphs, synchronisation, devices, torch.compile, what a call costs."""

import time
from threading import Thread

import pytest
import torch

import tilec
from tilec.dsl.faults import CallFault, TargetFault

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CAUSAL = """kernel causal {
  index  b : B, h : 8, q : M, k : N, d : 64

  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 4, d] : bf16
  value  V[b, k, h // 4, d] : bf16
  output O[b, q, h,      d] : bf16
  lse    L[b, h, q]         : f32

  scale  1 / sqrt(64)
  mask   k <= q + N - M
  grad   Q, K, V
}
"""
PAGED = """kernel cached {
  index  b : B, h : 8, q : M, k : N lengths seqlen_k, d : 64

  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 8, d] : bf16  paged pages[b, k // 16]
  value  V[b, k, h // 8, d] : bf16  paged pages[b, k // 16]
  output O[b, q, h,      d] : bf16

  scale  1 / sqrt(64)
}
"""
PACKED = """kernel varlen {
  index  b : B, h : 4, q : M packed cu_q, k : N packed cu_k, d : 64

  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  lse    L[b, h, q]    : f32

  scale  1 / sqrt(64)
}
"""


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    root = tmp_path_factory.mktemp("kernels")
    return lambda text, **more: tilec.load(text, cache_dir=root, **more)


def dense(B=2, M=100, N=130, device="cuda"):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(B, n, h, 64, generator=g).bfloat16().to(device) for n, h in ((M, 8), (N, 2), (N, 2))]


def reference(q, k, v, causal=True):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    M, N = q.shape[2], k.shape[2]
    rows, cols = (torch.arange(n, device=q.device) for n in (M, N))
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(cols > rows[:, None] + N - M, float("-inf"))
    return (s.softmax(-1) @ v).transpose(1, 2), s.logsumexp(-1)


def close(a, b, tolerance=2e-2):
    return torch.allclose(a.double(), b.double(), atol=tolerance, rtol=tolerance)


def test_results_in_poisoned_outputs(load):
    tensors = dense()
    out = torch.full_like(tensors[0], float("nan")), torch.full((2, 8, 100), float("nan"), device="cuda")
    o, lse = load(CAUSAL)(*tensors, out=out)
    want, want_lse = reference(*tensors)
    assert close(o, want) and close(lse, want_lse, 1e-3)


def test_a_call_never_synchronises(load):
    kernel, tensors = load(CAUSAL), dense()
    kernel(*tensors)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernel(*tensors)
        kernel(*(x[:, :90] for x in tensors))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_current_stream_is_used(load):
    kernel, tensors = load(CAUSAL), dense()
    want = kernel(*tensors)[0]
    q = torch.zeros_like(tensors[0])
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        q.copy_(tensors[0])
        o = kernel(q, *tensors[1:])[0]
    side.synchronize()
    assert torch.equal(o, want)


def test_a_captured_graph_follows_the_lengths(load):
    kernel = load(PAGED)
    q = torch.randn(3, 1, 8, 64, device="cuda").bfloat16()
    pool = torch.randn(12, 16, 1, 64, device="cuda").bfloat16()
    pages = torch.randperm(12, device="cuda").int().view(3, 4)
    lengths = torch.tensor([64, 64, 64], device="cuda", dtype=torch.int32)
    kernel(q, pool, pool, lengths, pages)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = kernel(q, pool, pool, lengths, pages)
    for new in ([1, 17, 64], [0, 33, 16], [64, 64, 64]):
        lengths.copy_(torch.tensor(new))
        graph.replay()
        for b, n in enumerate(new):
            if n == 0:
                assert (o[b] == 0).all()
                continue
            rows = pool[pages[b].long()].reshape(1, 64, 1, 64)[:, :n]
            assert close(o[b : b + 1], reference(q[b : b + 1], rows, rows, causal=False)[0])


@pytest.mark.parametrize("backend", [None, "triton"])
def test_the_first_call_may_be_one_that_is_captured(tmp_path, backend):
    kernel, tensors = tilec.load(CAUSAL, backend=backend, cache_dir=tmp_path), dense()
    want, want_lse = reference(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = kernel(*tensors)
        again, _ = kernel(*tensors)
    for _ in range(2):
        o.zero_(), again.zero_()
        graph.replay()
        assert close(o, want) and close(lse, want_lse, 1e-3) and torch.equal(o, again)
    assert torch.equal(kernel(*tensors)[0], o)


def test_a_thread_may_load_a_kernel_while_another_captures(load, tmp_path):
    kernel, tensors, found = load(CAUSAL), dense(), []
    want = kernel(*tensors)[0]
    other = tilec.load(CAUSAL, cache_dir=tmp_path)
    torch.cuda.synchronize()

    side = torch.cuda.Stream()
    # Given, since torch does not allocate beside a capture.
    out = torch.empty_like(tensors[0]), torch.empty(2, 8, 100, device="cuda")

    def first_call():
        with torch.cuda.stream(side):
            found.append(other(*tensors, out=out)[0])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        thread = Thread(target=first_call)
        thread.start()
        thread.join()
        o = kernel(*tensors)[0]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(o, want) and torch.equal(found[0], want)


def test_a_thread_that_never_touched_the_device_may_call(load):
    kernel, tensors, found = load(CAUSAL), dense(), []
    out = torch.empty_like(tensors[0]), torch.empty(2, 8, 100, device="cuda")
    want = kernel(*tensors)[0]
    thread = Thread(target=lambda: found.append(kernel(*tensors, out=out)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(found[0][0], want)


def test_rows_past_the_last_offset_are_dead(load):
    kernel = load(PACKED)
    q, k = (torch.randn(n, 4, 64, device="cuda").bfloat16() for n in (20, 30))
    cu_q, cu_k = (torch.tensor(x, device="cuda", dtype=torch.int32) for x in ([0, 7, 7, 15], [0, 9, 12, 29]))
    o, lse = kernel(q, k, k, cu_q, cu_k)
    assert (o[15:] == 0).all() and (lse[:, 15:] == float("-inf")).all()
    want, want_lse = reference(q[None, 7:15], k[None, 12:29], k[None, 12:29], causal=False)
    assert close(o[7:15], want[0]) and close(lse[:, 7:15], want_lse[0], 1e-3)


def test_debug_calls_check_tables(load, monkeypatch):
    monkeypatch.setenv("TILEC_DEBUG", "1")
    q = torch.zeros(4, 4, 64, device="cuda").bfloat16()
    cu = torch.tensor([0, 3, 2], device="cuda", dtype=torch.int32)
    with pytest.raises(CallFault) as caught:
        load(PACKED)(q, q, q, cu, cu)
    assert caught.value.code == "E1015"


@pytest.mark.parametrize("sizes", [(0, 4, 4), (2, 0, 4), (2, 4, 0)])
def test_empty_problems(load, sizes):
    B, M, N = sizes
    o, lse = load(CAUSAL)(*dense(B, M, N))
    torch.cuda.synchronize()
    assert o.shape == (B, M, 8, 64) and (o == 0).all() and (lse == float("-inf")).all()


def test_compiled_without_breaks(load):
    kernel = load(CAUSAL)
    compiled = torch.compile(lambda *t: kernel(*t)[0] * 2, fullgraph=True, dynamic=True)
    for n in (128, 129, 200):
        tensors = dense(1, n, n)
        assert torch.equal(compiled(*tensors), kernel(*tensors)[0] * 2)


def test_an_address_off_by_one_element(load):
    kernel, (q, k, v) = load(CAUSAL), dense()
    odd = torch.cat([k.flatten()[:1], k.flatten()])[1:].view(k.shape)
    assert close(kernel(q, odd, v)[0], kernel(q, k, v)[0], 1e-2)


def test_gradients_are_refused_by_name(load):
    kernel = load(CAUSAL)
    tensors = [x.requires_grad_() for x in dense()]
    o, _ = kernel(*tensors)
    with pytest.raises(TargetFault) as caught:
        o.sum().backward()
    assert caught.value.code == "E0913"


def test_another_device_than_the_current_one(load):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    kernel = load(CAUSAL)
    first = kernel(*dense())[0]
    other = kernel(*dense(device="cuda:1"))[0]
    assert torch.cuda.current_device() == 0 and other.device.index == 1
    assert torch.equal(first.cpu(), other.cpu())
    with pytest.raises(CallFault) as caught:
        q, k, v = dense()
        kernel(q, k.to("cuda:1"), v)
    assert caught.value.code == "E1011"


@pytest.mark.alone
def test_what_a_call_costs_on_the_host(load, record_property):
    kernel, tensors = load(CAUSAL), dense(1, 16, 16)
    for _ in range(100):
        kernel(*tensors)
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            kernel(*tensors)
        best = min(best, (time.perf_counter() - start) / 100)
        torch.cuda.synchronize()
    record_property("microseconds", best * 1e6)
    print(f"\n{best * 1e6:.1f} us a call")
    assert best < 30e-6
