"""Storage: packed sequences with empty ones among them, rows of no sequence, empty calls, and what pages hold past a length."""

from itertools import product

import numpy as np
import pytest
import torch
from case_kit import close, dense, positions, spec

from tilec.dsl.faults import CallFault
from tilec.oracle.tensors import to_torch

PACKED = {"q": "packed cu_q", "k": "packed cu_k"}
BOTTOM_RIGHT = "mask k <= q + N - M"
LENGTHS = {
    "fewer queries than sequences": ([1, 0, 1], [3, 0, 5]),
    "all empty": ([0, 0, 0], [0, 0, 0]),
    "no keys": ([3, 2], [0, 0]),
    "no queries": ([0, 0], [4, 3]),
    "the first empty": ([0, 17, 16], [0, 16, 1]),
    "the last empty": ([16, 1, 0], [17, 1, 0]),
    "around a tile": ([15, 16, 17, 1], [17, 0, 16, 31]),
    "one long": ([1, 1, 70, 1], [2, 1, 90, 40]),
}


@pytest.mark.parametrize("mask", ["mask true", BOTTOM_RIGHT])
@pytest.mark.parametrize("name", LENGTHS)
def test_packed_sequences_of_any_length(attend, name, mask):
    """https://github.com/Dao-AILab/flash-attention/issues/1537"""
    rows, keys = LENGTHS[name]
    sizes = {"B": len(rows), "M": max(rows), "N": max(keys)}
    attend(spec(mask, heads=9, group=3, d=16, **PACKED), sizes, lengths={"q": rows, "k": keys})


def test_neighbours_in_the_batch_change_no_bit(attend):
    """https://github.com/Dao-AILab/flash-attention/issues/1537"""
    text = spec(BOTTOM_RIGHT, **PACKED)
    rows, keys = [17, 5, 20], [33, 5, 20]
    r = attend(text, {"B": 3, "M": 20, "N": 33}, lengths={"q": rows, "k": keys})
    first, begin = sum(rows[:1]), sum(keys[:1])
    alone = {"Q": r.inputs["Q"][first : first + 5]} | {n: r.inputs[n][begin : begin + 5] for n in "KV"}
    alone |= {"cu_q": np.array([0, 5], np.int32), "cu_k": np.array([0, 5], np.int32)}
    outputs = attend.call(text, alone)
    assert np.array_equal(outputs["O"], r.outputs["O"][first : first + 5])


@pytest.mark.parametrize("tail", [2, 100])
def test_rows_past_the_last_offset_are_dead(attend, tail):
    """https://github.com/pytorch/pytorch/issues/176793"""
    r = attend(spec(**PACKED), {"B": 3, "M": 30, "N": 40}, lengths={"q": [9, 18, 30], "k": [9, 18, 40]}, tail=tail)
    assert (r.o[-tail:] == 0).all() and np.isneginf(r.lse[..., -tail:]).all()


def test_rows_past_the_last_offset_have_no_gradient(interpret):
    """https://github.com/pytorch/pytorch/issues/176793"""
    attend = interpret.load(spec("grad Q, K, V", d=16, dtype="f32", **PACKED))
    cu = torch.tensor([0, 3, 3, 8], dtype=torch.int32)
    tensors = [torch.randn(10, 2, 16) for _ in range(3)]
    for t in tensors:
        t[8:] = float("nan")
        t.requires_grad_()
    out, lse = attend(*tensors, cu, cu)
    d_o, d_lse = torch.randn(10, 2, 16), torch.randn(2, 10)
    d_o[8:], d_lse[:, 8:] = float("nan"), float("nan")
    grads = torch.autograd.grad((out, lse), tensors, (d_o, d_lse))
    assert all((g[8:] == 0).all() and g.isfinite().all() for g in grads)


BAD_OFFSETS = {
    "above 0": ([1, 2, 5], "E1015"),
    "decreasing": ([0, 4, 3], "E1015"),
    "past the end": ([0, 2, 6], "E1015"),
    "too few": ([0, 5], "E1007"),
}


@pytest.mark.parametrize("name", BAD_OFFSETS)
def test_offsets_that_make_no_sense_are_refused(attend, name):
    """https://github.com/pytorch/pytorch/issues/176793"""
    offsets, code = BAD_OFFSETS[name]
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in (offsets, [0, 2, 5]))
    rows = torch.zeros(5, 2, 32, dtype=torch.bfloat16)
    with pytest.raises(CallFault) as refused:
        attend.load(spec(**PACKED))(rows, rows, rows, cu_q, cu_k)
    assert refused.value.code == code and "cu_" in str(refused.value)


@pytest.mark.parametrize("mask", ["mask true", BOTTOM_RIGHT])
@pytest.mark.parametrize(("b", "m", "n"), list(product((0, 1), (0, 1), (0, 1))))
def test_nothing_to_do_is_a_result(attend, b, m, n, mask):
    """https://github.com/Dao-AILab/flash-attention/issues/1159"""
    r = attend(spec(mask), {"B": b, "M": m, "N": n})
    assert r.o.shape == (b, m, 2, 32)
    if n == 0:
        assert (r.o == 0).all() and np.isneginf(r.lse).all()


@pytest.mark.parametrize(("b", "m", "n"), list(product((0, 1), (0, 1), (0, 1))))
def test_gradients_of_nothing(interpret, b, m, n):
    """https://github.com/Dao-AILab/flash-attention/issues/1159"""
    attend = interpret.load(spec("grad Q, K, V", dtype="f32"))
    tensors = [torch.randn(b, s, 2, 32, requires_grad=True) for s in (m, n, n)]
    grads = torch.autograd.grad(attend(*tensors)[0].sum(), tensors)
    assert [g.shape for g in grads] == [t.shape for t in tensors]
    if b == m == n == 1:
        wanted = torch.autograd.grad(dense(*tensors, torch.tensor(True))[0].sum(), tensors)
        assert all(close(g, w, 1e-5) for g, w in zip(grads, wanted, strict=True))
    else:
        assert all((g == 0).all() for g in grads)


@pytest.mark.parametrize("mask", ["mask true", BOTTOM_RIGHT])
@pytest.mark.parametrize("page", [1, 4, 16, 64])
def test_slots_past_the_length_reach_nothing(attend, page, mask):
    """Unused slots and pages hold NaN, unused table entries -1.  https://github.com/flashinfer-ai/flashinfer/issues/941"""
    text = spec(mask, heads=4, group=4, k="lengths n", tails=f"paged pages[b, k // {page}]")
    for m, keys in ((1, [13, 1]), (5, [33, 0]), (17, [64, 20])):
        attend(text, {"B": 2, "M": m, "N": 64}, lengths={"k": keys})


@pytest.mark.parametrize("entry", [-1, 0, 1 << 30])
def test_table_entries_past_the_length_are_not_followed(attend, entry):
    """https://github.com/flashinfer-ai/flashinfer/issues/941"""
    text = spec(k="lengths n", tails="paged pages[b, k // 16]")
    r = attend(text, {"B": 2, "M": 1, "N": 64}, lengths={"k": [13, 40]})
    table = r.inputs["pages"].copy()
    table[0, 1:] = table[1, 3:] = entry
    outputs = attend.call(text, {**r.inputs, "pages": table})
    assert np.array_equal(outputs["O"], r.outputs["O"]) and np.array_equal(outputs["L"], r.outputs["L"])


@pytest.mark.parametrize(("q", "k"), [("", "lengths n"), ("lengths m", "lengths n")])
def test_rows_past_a_length_reach_nothing(attend, q, k):
    """https://github.com/flashinfer-ai/flashinfer/issues/941"""
    given = {"k": [13, 0, 40]} | ({"q": [5, 20, 0]} if q else {})
    attend(spec(BOTTOM_RIGHT, q=q, k=k), {"B": 3, "M": 20, "N": 40}, lengths=given)


def test_decode_with_lengths_is_the_last_row_of_prefill(attend):
    """A cache longer than its contents, as a decode step has it.  https://github.com/flashinfer-ai/flashinfer/issues/941"""
    whole = attend(spec(BOTTOM_RIGHT, dtype="f32"), {"B": 1, "M": 23, "N": 23})
    cache = {n: np.full((1, 64, 2, 32), np.nan, np.float32) for n in "KV"}
    for n in "KV":
        cache[n][:, :23] = whole.inputs[n]
    step = {"Q": whole.inputs["Q"][:, -1:], **cache, "n": np.array([23], np.int32)}
    text = spec(BOTTOM_RIGHT, dtype="f32", k="lengths n")
    assert close(*to_torch({"a": attend.call(text, step)["O"][:, 0], "b": whole.outputs["O"][:, -1]}).values(), 1e-5)


def test_masks_count_positions_within_a_sequence(interpret):
    """https://github.com/Dao-AILab/flash-attention/issues/1537"""
    attend = interpret.load(spec("mask k <= q and k > q - 4", dtype="f32", **PACKED))
    cu = torch.tensor([0, 9, 20], dtype=torch.int32)
    q, k, v = (torch.randn(20, 2, 32) for _ in range(3))
    out = attend(q, k, v, cu, cu)[0]
    for first, last in ((0, 9), (9, 20)):
        rows, cols = positions(last - first, last - first)
        own = [x[None, first:last] for x in (q, k, v)]
        assert close(out[None, first:last], dense(*own, (cols <= rows) & (cols > rows - 4))[0], 1e-5)
