"""Random inputs: shapes, lengths, pages, poison, styles, and the trip to torch and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from oracle_specs import BOTTOM_RIGHT, attention, mla

from tilec.oracle.exact import evaluate
from tilec.oracle.inputs import POISON, make_inputs
from tilec.oracle.layout import bind
from tilec.oracle.tensors import from_torch, to_torch

TORCH = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
FNUZ = {"e4m3": torch.float8_e4m3fnuz, "e5m2": torch.float8_e5m2fnuz}
SIZES = {"B": 9, "M": 150, "N": 200}


def test_order_shapes_and_dtypes_are_those_of_the_call():
    attn = attention(
        "param slope[h] : f32", "score s = s - slope[h] * k", "sink Z[h] : f32", scaled=True, dtype="e4m3", out="bf16"
    )
    inputs = make_inputs(attn, SIZES)
    assert list(inputs) == [t.name for t in attn.inputs]
    assert inputs["Q"].dtype == ml_dtypes.float8_e4m3fn and inputs["qs"].dtype == np.float32
    assert inputs["K"].shape == (9, 200, 4, 16)
    assert (inputs["slope"] > 0).all() and (np.diff(inputs["slope"]) < 0).all()


def test_the_seed_decides():
    attn = attention()
    one, same, other = (make_inputs(attn, {"B": 1, "M": 8, "N": 8}, seed) for seed in (1, 1, 2))
    for name in "QKV":
        np.testing.assert_array_equal(one[name], same[name])
        assert not np.array_equal(one[name], other[name])
    assert not np.array_equal(one["Q"], one["K"])


def test_mixed_lengths_straddle_a_tile():
    attn = attention(q="packed cu_q", k="lengths len_k")
    inputs = make_inputs(attn, SIZES, tile=64, tail=3)
    assert list(np.diff(inputs["cu_q"])[:7]) == [150, 0, 1, 63, 64, 65, 127]
    assert list(inputs["len_k"][:7]) == [200, 0, 1, 63, 64, 65, 127]
    total = inputs["cu_q"][-1]
    assert inputs["Q"].shape == (total + 3, 4, 16)
    q = inputs["Q"].astype(np.float32)
    assert np.isnan(q[total:]).all() and not np.isnan(q[:total]).any()
    k = inputs["K"].astype(np.float32)
    past = np.arange(200) >= inputs["len_k"][:, None]
    assert np.isnan(k[past]).all() and not np.isnan(k[~past]).any()


@pytest.mark.parametrize("lengths", ["full", "random", {"q": [5, 0, 7], "k": [1, 2, 3]}])
def test_other_lengths(lengths):
    attn = attention(q="packed cu_q", k="packed cu_k")
    inputs = make_inputs(attn, {"B": 3, "M": 7, "N": 7}, lengths=lengths)
    own = np.diff(inputs["cu_q"])
    if isinstance(lengths, dict):
        assert list(own) == lengths["q"] and list(np.diff(inputs["cu_k"])) == lengths["k"]
    else:
        assert (own <= 7).all() and (lengths != "full" or (own == 7).all())


def test_lengths_respect_assumptions_and_reads_of_keys_at_rows():
    assumed = attention("assume M <= N", q="packed cu_q", k="packed cu_k")
    document = attention(
        "param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k]", q="lengths len_q", k="lengths len_k"
    )
    for attn in (assumed, document):
        inputs = make_inputs(attn, {"B": 30, "M": 90, "N": 80}, lengths="random")
        call = bind(attn, inputs)
        assert all(p.rows <= p.cols for p in call.problems())
    doc = inputs["doc"]
    for row, n in zip(doc, inputs["len_k"], strict=True):
        assert (np.diff(row[:n]) >= 0).all()
        assert (row[n:] == POISON).all()


def test_pages_are_permuted_disjoint_and_poisoned():
    attn = mla(paged=16)
    inputs = make_inputs(attn, {"B": 5, "M": 1, "N": 100}, tile=16)
    table, lengths = inputs["bt"], inputs["len_k"]
    assert table.shape == (5, 7)
    used = table[table >= 0]
    assert len(set(used)) == len(used) == (-(-lengths // 16)).sum()
    assert not np.array_equal(used, np.sort(used))
    for row, n in zip(table, lengths, strict=True):
        assert (row[: -(-n // 16)] >= 0).all() and (row[-(-n // 16) :] == -1).all()
    for name in "CR":
        pool = inputs[name].astype(np.float32)
        assert pool.shape[0] > len(used)
        assert (~np.isnan(pool)).all(axis=-1).sum() == lengths.sum()


@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3"])
def test_shifted_logits_are_near_a_thousand(dtype):
    attn = attention(BOTTOM_RIGHT, dtype=dtype, out="bf16" if dtype == "e4m3" else dtype)
    lse = evaluate(attn, make_inputs(attn, {"B": 1, "M": 40, "N": 40}, style="shifted"))["L"][0]
    assert (lse[:, ::2] > 900).all() and (lse[:, 1::2] < -900).all()


def test_onehot_rows_have_one_heavy_key():
    attn = attention()

    def share(style):
        """Rows whose heaviest key has more than 99 % of the weight."""
        inputs = make_inputs(attn, {"B": 2, "M": 64, "N": 64}, style=style)
        q, k = (inputs[n].astype(np.float64).transpose(0, 2, 1, 3) for n in "QK")
        return (np.exp((q @ k.swapaxes(2, 3) / 4.0).max(-1) - evaluate(attn, inputs)["L"]) > 0.99).mean()

    assert share("onehot") > 0.5
    assert share("normal") < 0.01


def test_position_values_tell_key_and_head_exactly():
    attn = attention(group=2)
    v = make_inputs(attn, {"B": 3, "M": 1, "N": 300}, style="position")["V"].astype(np.float64)
    assert np.array_equal(v[1, :, 1, 0], np.arange(300) % 251)
    assert len({tuple(np.unique(v[b, :, h, 1])) for b in range(3) for h in range(2)}) == 6


def test_given_tensors_are_taken_as_they_are():
    attn = attention("param slope[h] : f32", "score s = s - slope[h] * k")
    mine = np.array([1, 2, 3, 4], np.float32)
    assert make_inputs(attn, SIZES, given={"slope": mine})["slope"] is mine


def test_missing_size():
    with pytest.raises(KeyError, match="N"):
        make_inputs(attention(), {"B": 1, "M": 2})


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "e4m3", "e5m2"])
@pytest.mark.parametrize("fnuz", [False, True])
def test_torch_and_back_keeps_every_bit(dtype, fnuz):
    attn = attention(k="lengths len_k", dtype=dtype, out="bf16")
    inputs = make_inputs(attn, {"B": 3, "M": 4, "N": 5}, fnuz=fnuz)
    tensors = to_torch(inputs)
    assert tensors["Q"].dtype == (FNUZ[dtype] if fnuz and dtype in FNUZ else TORCH[dtype])
    np.testing.assert_array_equal(tensors["Q"].float().numpy(), inputs["Q"].astype(np.float32))
    for key, array in from_torch(tensors).items():
        assert array.dtype == inputs[key].dtype and array.tobytes() == inputs[key].tobytes()


def test_torch_copies():
    array = {
        "x": np.zeros(3, np.float32),
        "none": np.zeros((0, 4), ml_dtypes.bfloat16),
        "one": np.float32(2).reshape(()),
    }
    tensors = to_torch(array)
    tensors["x"][0] = 1
    assert array["x"][0] == 0 and tensors["none"].shape == (0, 4) and tensors["one"].shape == ()
    view = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T
    assert np.array_equal(from_torch({"v": view})["v"].astype(np.float32), [[0, 3], [1, 4], [2, 5]])
