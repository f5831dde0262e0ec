"""What `tilec.load` runs on a Hopper GPU without further word: native code, Triton for calls it cannot take, and launches that
share nothing: threads, streams, captured graphs.

A wrong barrier or a shared counter can hang for ever, so a time-out ends the process.
"""

from threading import Thread

import pytest
import torch

import tilec

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.skipif(not hopper, reason="needs a Hopper GPU"),
    pytest.mark.watchdog(120),
]
H, D = 32, 128
SPEC = f"""kernel causal {{
  index  b : B, h : {H}, q : M, k : N, d : {D}
  query  Q[b, q, h,      d] : bf16
  key    K[b, k, h // 4, d] : bf16
  value  V[b, k, h // 4, d] : bf16
  output O[b, q, h,      d] : bf16
  lse    L[b, h, q]         : f32
  scale  1 / sqrt({D})
  mask   k <= q + N - M
}}
"""


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    return tilec.load(SPEC, cache_dir=tmp_path_factory.mktemp("kernels"))


def tensors(m=1000, n=1200, b=2, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return [
        torch.randn(b, rows, heads, D, device="cuda", dtype=torch.bfloat16, generator=g)
        for rows, heads in ((m, H), (n, H // 4), (n, H // 4))
    ]


def close(got, q, k, v):
    """Against float64, with LSE."""
    o, lse = got
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double().repeat_interleave(4, 2)) * D**-0.5
    m, n = scores.shape[-2:]
    scores.masked_fill_(
        torch.arange(n, device=q.device) > torch.arange(m, device=q.device)[:, None] + n - m, -torch.inf
    )
    want = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(0), v.double().repeat_interleave(4, 2))
    assert (o.double() - want).abs().max() < 0.03
    assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=1e-4, rtol=0)


def test_a_call_runs_native_code(attend):
    q, k, v = tensors()
    close(attend(q, k, v), q, k, v)
    assert attend.artifact().backend == "cuda" and attend.passed_over == ()


def test_tensors_that_maps_cannot_take_run_through_triton(attend, tmp_path):
    again = tilec.load(SPEC, cache_dir=tmp_path)
    q, k, v = tensors(300, 300)
    shifted = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")[1:].view(q.shape).copy_(q)
    close(again(shifted, k, v), q, k, v)
    wide = k[:, :, :1].expand(k.shape)
    close(again(q, wide, v), q, wide, v)
    assert len(again.passed_over) == 1 and "not aligned" in again.passed_over[0]


@pytest.mark.parametrize(("b", "m", "n"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 700, 64), (1, 1, 4096)])
def test_empty_and_thin_problems(attend, b, m, n):
    q, k, v = tensors(m, n, b)
    o, lse = attend(q, k, v)
    assert o.shape == q.shape and lse.shape == (b, H, m)
    if n == 0:
        assert not o.any() and (lse == -torch.inf).all()
    elif b and m:
        close((o, lse), q, k, v)


def test_graphs_that_replay_at_once_do_not_share_a_counter(attend):
    inputs = [tensors(4096, 4096, seed=s) for s in range(3)]
    wants = [attend(*x) for x in inputs]
    graphs, outs = [], []
    for x in inputs[:2]:  # both captured on the capture stream that torch.cuda.graph shares
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append([attend(*x) for _ in range(2)])
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            eager = attend(*inputs[2])
    torch.cuda.synchronize()
    for found, want in [*zip(outs[0], [wants[0]] * 2, strict=True), *zip(outs[1], [wants[1]] * 2, strict=True)]:
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(eager, wants[2], strict=True))


def test_threads_share_a_kernel_on_one_stream_and_on_their_own(attend):
    inputs = [tensors(900 + 130 * s, 1100, seed=s) for s in range(4)]
    wants = [attend(*x) for x in inputs]
    torch.cuda.synchronize()
    wrong = []

    def work(number, stream):
        with torch.cuda.stream(stream):
            for _ in range(200):
                found = attend(*inputs[number])
            stream.synchronize()
            if not all(torch.equal(a, b) for a, b in zip(found, wants[number], strict=True)):
                wrong.append(number)

    for shared in (True, False):
        one = torch.cuda.Stream()
        threads = [Thread(target=work, args=(n, one if shared else torch.cuda.Stream())) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def test_counters_are_set_again_after_many_launches(attend):
    q, k, v = tensors(2048, 2048, 1)
    want = attend(q, k, v)
    for _ in range(600):
        found = attend(q, k, v)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_compiled_by_torch(attend):
    q, k, v = tensors(256, 256)
    compiled = torch.compile(lambda *x: attend(*x)[0] * 2, fullgraph=True)
    assert torch.equal(compiled(q, k, v), attend(q, k, v)[0] * 2)


def test_the_same_source_compiled_twice_with_a_context(attend):
    from tilec.backends.cuda.build import build
    from tilec.backends.cuda.check import check

    made = attend.artifact()
    (source,) = (text for name, text in made.sources.items() if name.endswith(".cu"))
    found = [check(build(source, "causal").log, "causal").registers for _ in range(2)]
    assert found == [made.metadata["registers"]] * 2


def test_a_module_needs_no_compiler(tmp_path, monkeypatch):
    from tilec.aot import build
    from tilec.frontend import read_text

    build(read_text(SPEC, "causal.tile"), "causal", "sm90", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from causal_sm90 import causal

    q, k, v = tensors(300, 400)
    close(causal(q, k, v), q, k, v)
    wide = k[:, :, :1].expand(k.shape)
    close(causal(q, wide, v), q, wide, v)


@pytest.mark.alone
def test_what_a_call_costs_on_the_host(attend, record_property):
    import time

    q, k, v = tensors(64, 64, 1)
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            attend(q, k, v)
        times.append((time.perf_counter() - start) / 50 * 1e6)
    cost = sorted(times)[len(times) // 2]
    record_property("microseconds", cost)
    assert cost <= 15
