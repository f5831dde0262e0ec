"""Every storage against the dense attention of each sequence, with poison wherever no sequence lies."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_specs import BOTTOM_RIGHT, attention, b, fetch, h, k, mla, op, q, s

from tilec.ir.attention import Storage, Tensor
from tilec.oracle.exact import evaluate, gradients
from tilec.oracle.inputs import make_inputs

CU_Q, CU_K = Storage("packed", "cu_q"), Storage("packed", "cu_k")
LEN_Q, LEN_K = Storage("lengths", "len_q"), Storage("lengths", "len_k")
GRAD = ("Q", "K", "V", "slope", "Z")
SIZES = {"B": 7, "M": 40, "N": 48}
CLOSE = {"rtol": 0, "atol": 1e-13}


def spec(documents=True, **options):
    """Causal with slopes, documents read at q and at k, and a sink: everything whose address storage changes."""
    same = op("==", fetch("doc", b, q), fetch("doc", b, k))
    same = same if documents else op("!=", fetch("doc", b, k), 1)
    params = (
        Tensor("slope", "param", (h,), "f32"),
        Tensor("doc", "param", (b, k), "i32", facts=frozenset({"nondecreasing"})),
    )
    return attention(
        heads=4,
        group=2,
        params=params,
        sink=True,
        grad=GRAD,
        scores=(op("-", s, op("*", fetch("slope", h), op("abs", op("-", q, k)))),),
        mask=op("and", BOTTOM_RIGHT, same),
        **options,
    )


def rows_of(storage, inputs, name, sequence, length):
    """The rows of one sequence of a tensor whose row dimension is stored so; [1, length, …]."""
    array = inputs[name]
    if storage.kind == "packed":
        start = inputs[storage.table][sequence]
        return array[start : start + length][None]
    return array[sequence : sequence + 1, :length]


def lengths_of(storage, inputs, count, extent):
    if storage.kind == "dense":
        return [extent] * count
    table = inputs[storage.table]
    return list(np.diff(table)) if storage.kind == "packed" else list(table)


@pytest.mark.parametrize(
    ("q_storage", "k_storage"),
    [
        (CU_Q, CU_K),
        (CU_Q, Storage("packed", "cu_q")),
        (LEN_Q, LEN_K),
        (Storage(), LEN_K),
        (CU_Q, LEN_K),
        (LEN_Q, Storage()),
        (Storage(), CU_K),
    ],
    ids=lambda st: f"{st.kind}-{st.table}",
)
def test_each_sequence_is_the_dense_attention_of_its_rows(q_storage, k_storage):
    # Rows past a sequence's keys could not read a document of their own.
    documents = q_storage.kind != "dense" or k_storage.kind == "dense"
    attn, dense = spec(documents, q_storage=q_storage, k_storage=k_storage), spec(documents)
    inputs = make_inputs(attn, SIZES, tile=16, tail=5)
    rng = np.random.default_rng(1)
    got = evaluate(attn, inputs)
    d_out, d_lse = rng.standard_normal(got["O"].shape), rng.standard_normal(got["L"].shape)
    grads = gradients(attn, inputs, d_out, d_lse)
    seen = {n: np.zeros(x.shape, np.bool_) for n, x in {**got, **grads}.items()}
    shared = {n: np.zeros_like(grads[n]) for n in ("slope", "Z")}
    ms = lengths_of(q_storage, inputs, 7, 40)
    ns = lengths_of(k_storage, inputs, 7, 48)
    assert set(ms) | set(ns) >= {0, 1, 15, 16, 17}
    for i, (m, n) in enumerate(zip(ms, ns, strict=True)):
        own = {x: rows_of(q_storage, inputs, x, i, m) for x in ("Q",)}
        own |= {x: rows_of(k_storage, inputs, x, i, n) for x in ("K", "V", "doc")}
        own |= {x: inputs[x] for x in ("slope", "Z")}
        expected = evaluate(dense, own)
        cut = {x: rows_of(q_storage, {**inputs, **got, "dO": d_out}, x, i, m) for x in ("O", "dO")}
        np.testing.assert_allclose(cut["O"], expected["O"], **CLOSE)
        if q_storage.kind == "packed":
            start = inputs["cu_q"][i]
            lanes = np.s_[:, start : start + m]
        else:
            lanes = np.s_[i, :, :m]
        np.testing.assert_allclose(got["L"][lanes], expected["L"][0], **CLOSE)
        seen["L"][lanes] = True
        wanted = gradients(dense, own, cut["dO"], d_lse[lanes][None])
        for name, storage, length in (("Q", q_storage, m), ("K", k_storage, n), ("V", k_storage, n)):
            np.testing.assert_allclose(rows_of(storage, {**inputs, **grads}, name, i, length), wanted[name], **CLOSE)
            rows_of(storage, {**inputs, **seen}, name, i, length)[...] = True
        rows_of(q_storage, {**inputs, **seen}, "O", i, m)[...] = True
        for name in shared:
            shared[name] += wanted[name]
    for name, total in shared.items():
        np.testing.assert_allclose(grads[name], total, rtol=1e-12, atol=1e-12)
    for name in ("Q", "K", "V"):
        assert not grads[name][~seen[name]].any()
    assert not got["O"][~seen["O"]].any()
    assert np.all(got["L"][~seen["L"]] == -np.inf)


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("q_storage", [Storage(), CU_Q], ids=["dense", "packed"])
def test_paged_is_padded_read_through_a_table(page, q_storage):
    paged, padded = (
        attention(group=2, mask=BOTTOM_RIGHT, q_storage=q_storage, k_storage=LEN_K, paged=p) for p in (page, None)
    )
    inputs = make_inputs(paged, SIZES, tile=16)
    flat = {n: x for n, x in inputs.items() if n != "bt"}
    positions = np.arange(48)
    pages = inputs["bt"][:, positions // page]
    assert (inputs["bt"] == -1).any()
    assert np.isnan(inputs["K"].astype(np.float64)).any()
    for name in "KV":
        rows = inputs[name].astype(np.float64)[pages, positions % page]
        flat[name] = np.where((positions < inputs["len_k"][:, None])[..., None, None], rows, np.nan)
    for name, array in evaluate(padded, flat).items():
        got = evaluate(paged, inputs)[name]
        np.testing.assert_array_equal(got, array)
        assert not np.isnan(got).any()


def test_paged_latent_attention_and_its_gradient():
    paged, dense = mla(paged=16, grad=("C", "R", "Q")), mla(grad=("C", "R", "Q"))
    inputs = make_inputs(paged, {"B": 3, "M": 2, "N": 48}, lengths={"k": [48, 5, 16]})
    out = evaluate(paged, inputs)["O"]
    d_out = np.random.default_rng(0).standard_normal(out.shape)
    grads = gradients(paged, inputs, d_out)
    for i, n in enumerate([48, 5, 16]):
        at = (inputs["bt"][i, np.arange(n) // 16], np.arange(n) % 16)
        own = {x: inputs[x][i : i + 1] for x in ("Q", "Qr")} | {x: inputs[x][at][None] for x in "CR"}
        np.testing.assert_allclose(out[i : i + 1], evaluate(dense, own)["O"], **CLOSE)
        wanted = gradients(dense, own, d_out[i : i + 1])
        for name in "CR":
            np.testing.assert_allclose(grads[name][at], wanted[name][0], **CLOSE)
    used = np.zeros(grads["C"].shape[:2], np.bool_)
    for i, n in enumerate([48, 5, 16]):
        used[inputs["bt"][i, np.arange(n) // 16], np.arange(n) % 16] = True
    assert not grads["C"][~used].any()


def test_an_unused_table_entry_must_stay_unread():
    attn = attention(k_storage=LEN_K, paged=16)
    inputs = make_inputs(attn, {"B": 2, "M": 3, "N": 48}, lengths={"k": [20, 17]})
    inputs["len_k"] = np.asarray([20, 33], np.int32)
    with pytest.raises(IndexError, match="tables lead outside"):
        evaluate(attn, inputs)


def test_a_document_read_at_q_must_lie_inside():
    attn = spec(q_storage=CU_Q, k_storage=CU_K)
    inputs = make_inputs(attn, {"B": 2, "M": 9, "N": 9}, lengths={"q": [9, 3], "k": [4, 9]})
    with pytest.raises(IndexError, match="doc"):
        evaluate(attn, inputs)
