"""Known troubles on a GPU: the cases of `tests/cases` that hold on any backend, and those that need a GPU to show."""

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from case_kit import Runner, spec

sys.path.append(str(Path(__file__).parents[1] / "cases"))

from test_cases_heads import test_any_head_dimension  # noqa: F401
from test_cases_masks import (  # noqa: F401
    test_a_window_holds_the_keys_it_says,
    test_every_shape_of_tiles_gives_the_answer,
    test_the_text_alone_says_how_causal_aligns,
)
from test_cases_rows import (  # noqa: F401
    test_8_bit_probabilities_stay_in_range_as_the_maximum_rises,
    test_a_constant_added_to_every_logit_changes_nothing,
    test_dead_rows_are_zero_under_any_mask,
    test_f32_is_ieee_f32,
    test_partitions_merge_by_their_lse_also_empty_ones,
    test_rows_of_large_logits,
)
from test_cases_storage import (  # noqa: F401
    test_decode_with_lengths_is_the_last_row_of_prefill,
    test_neighbours_in_the_batch_change_no_bit,
    test_nothing_to_do_is_a_result,
    test_packed_sequences_of_any_length,
    test_rows_past_the_last_offset_are_dead,
    test_slots_past_the_length_reach_nothing,
)
from test_cases_strides import (  # noqa: F401
    test_a_broadcast_head_is_its_copies,
    test_a_layout_changes_no_bit,
    test_biases_and_params_have_strides_of_their_own,
    test_strides_of_extent_one_mean_nothing,
    test_the_lse_has_strides_of_its_own,
)
from test_cases_tails import test_any_length_is_right, test_what_lies_past_the_end_is_no_index  # noqa: F401

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    return Runner("cuda", tmp_path_factory.mktemp("kernels"))


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(dtype)


def test_a_captured_graph_reads_the_lengths_of_its_replay(attend):
    """https://github.com/Dao-AILab/flash-attention/issues/1164"""
    kernel = attend.load(spec(heads=8, group=4, d=128, k="lengths n", tails="paged pages[b, k // 16]", tile=None))
    most, b = 4096, 4
    q, pool = randn(b, 1, 8, 128), randn(b * most // 16, 16, 4, 128)
    k, v = pool.split(2, 2)
    table = torch.arange(b * most // 16, device="cuda", dtype=torch.int32).view(b, -1)
    lengths = torch.full((b,), most, device="cuda", dtype=torch.int32)
    out = torch.empty_like(q), torch.empty(b, 8, 1, device="cuda")
    with torch.no_grad():
        kernel(q, k, v, lengths, table, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(q, k, v, lengths, table, out=out)
        for wanted in ([64] * 4, [4096, 1, 777, 64], [0, 16, 17, 4095], [most] * 4):
            lengths.copy_(torch.tensor(wanted))
            table.copy_(torch.randperm(table.numel()).view(b, -1))
            noise = [randn(1 << 20) for _ in range(4)]
            for o in out:
                o.fill_(float("nan"))
            graph.replay()
            want = kernel(q, k, v, lengths, table)
            assert all(torch.equal(x, y) for x, y in zip(out, want, strict=True))
            assert all((out[0][i] == 0).all() for i, n in enumerate(wanted) if n == 0) and out[0].isfinite().all()
            del noise


@pytest.mark.parametrize("rows", [1, 128])
def test_the_tensors_device_is_used_and_the_current_one_restored(attend, rows):
    """https://github.com/flashinfer-ai/flashinfer/issues/452"""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    kernel = attend.load(spec("mask k <= q + N - M", heads=32, d=128, tile=None))
    near = randn(1, rows, 32, 128), randn(1, 2048, 32, 128), randn(1, 2048, 32, 128)
    far = [t.to("cuda:1") for t in near]
    torch.cuda.set_device(0)
    with torch.no_grad():
        want, got, again = kernel(*near)[0], kernel(*far)[0], kernel(*near)[0]
    assert torch.cuda.current_device() == 0 and got.device == torch.device("cuda", 1)
    assert torch.equal(got.to("cuda:0"), want) and torch.equal(again, want)
    with pytest.raises(Exception, match="on cuda:1 and `Q` on cuda:0"):
        kernel(near[0], far[1], far[2])


@pytest.mark.parametrize("name", ["causal", "packed", "bias"])
def test_repeats_give_the_same_bits_beside_other_work(attend, name):
    """https://github.com/Dao-AILab/flash-attention/issues/1596"""
    text, lines = {}, {"bias": ("bias T[h, q, k] : f32", "score s = s + T[h, q, k]")}
    text = spec(
        "mask k <= q + N - M",
        *lines.get(name, ()),
        heads=8,
        group=4,
        d=128,
        tile=None,
        **({"q": "packed cu", "k": "packed cv"} if name == "packed" else {}),
    )
    kernel, n = attend.load(text), 1000
    shape = (2 * n,) if name == "packed" else (2, n)
    tensors = [randn(*shape, h, 128) for h in (8, 2, 2)]
    tensors += [randn(8, n, n, dtype=torch.float32)] if name == "bias" else []
    cu = torch.tensor([0, 777, 2 * n], device="cuda", dtype=torch.int32)
    tensors += [cu, cu] if name == "packed" else []
    a, side = randn(4096, 4096), torch.cuda.Stream()
    with torch.no_grad():
        want = kernel(*tensors)
        for _ in range(20):
            with torch.cuda.stream(side):
                a @ a
            got = kernel(*tensors)
            assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_f32_products_are_ieee_whatever_torch_allows(attend):
    """https://github.com/pytorch/pytorch/issues/161022"""
    kernel = attend.load(spec(d=64, dtype="f32", tile=None))
    q, k, v = (4 * randn(1, 128, 2, 64, dtype=torch.float32) for _ in range(3))
    s = q.double().transpose(1, 2) @ k.double().permute(0, 2, 3, 1) / 8
    want = (s.softmax(-1) @ v.double().transpose(1, 2)).transpose(1, 2)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            with torch.no_grad():
                error = (kernel(q, k, v)[0] - want).abs().max() / want.abs().max()
            assert error < 1e-4  # TF32 would be off by 1e-2
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def microseconds(call, calls=20, repeats=7):
    """Median over repeats of the time of one call in a run of calls."""
    call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


@pytest.mark.alone
def test_decode_time_grows_evenly_with_the_batch(attend):
    """https://github.com/Dao-AILab/flash-attention/issues/1095"""
    kernel = attend.load(spec(heads=40, group=5, d=128, dtype="f16", tile=None))
    times = {}
    with torch.no_grad():
        for b in range(10, 51, 2):
            tensors = [randn(b, n, h, 128, dtype=torch.float16) for n, h in ((1, 40), (512, 8), (512, 8))]
            times[b] = microseconds(lambda tensors=tensors: kernel(*tensors))
    steps = {b: times[b] / times[b - 2] for b in list(times)[1:]}
    assert max(steps.values()) < 1.3, steps


def test_many_sequences_are_one_launch(attend):
    """https://github.com/Dao-AILab/flash-attention/issues/1786"""
    kernel = attend.load(spec(heads=1, d=64, dtype="f16", q="packed cu", k="packed cv", tile=None))
    n = 80_000
    q, k, v = (randn(16 * n, 1, 64, dtype=torch.float16) for _ in range(3))
    cu = torch.arange(0, 16 * n + 1, 16, device="cuda", dtype=torch.int32)
    with torch.no_grad():
        o = kernel(q, k, v, cu, cu)[0]
    s = torch.einsum("bqd,bkd->bqk", *(x.view(n, 16, 64)[-100:].double() for x in (q, k))) / 8
    want = s.softmax(-1) @ v.view(n, 16, 64)[-100:].double()
    assert torch.allclose(o.view(n, 16, 64)[-100:].double(), want, atol=5e-3)


def test_offsets_past_two_to_the_31(attend):
    """https://github.com/Dao-AILab/flash-attention/issues/2611"""
    kernel = attend.load(spec("mask k <= q + N - M", heads=2, d=64, tile=None))
    wide = torch.zeros(2, 9000, 2, 64 * 1024, device="cuda", dtype=torch.bfloat16)  # 4.7 GB, 2.36e9 elements
    k = wide[..., -64:]
    k.copy_(randn(2, 9000, 2, 64))
    q, v = randn(2, 40, 2, 64), randn(2, 9000, 2, 64)
    with torch.no_grad():
        assert torch.equal(kernel(q, k, v)[0], kernel(q, k.clone(), v)[0])


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer")
@pytest.mark.skipif("PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ, reason="runs inside the sanitizer")
def test_no_address_is_outside_its_tensor():
    """Tables, pages and tails with every tensor an allocation of its own, under memcheck.

    https://github.com/pytorch/pytorch/issues/137801"""
    chosen = "past_the_end_is_no_index or slots_past_the_length_reach_nothing or fewer"
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-m", "pytest"]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen, __file__]
    alone = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run([*command, *options], env=alone, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
