"""Every storage against the dense attention of each sequence, with poison wherever no sequence lies."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_specs import BOTTOM_RIGHT, attention, mla

from tilec.oracle.exact import evaluate, gradients
from tilec.oracle.inputs import make_inputs

SIZES = {"B": 7, "M": 40, "N": 48}
CLOSE = {"rtol": 0, "atol": 1e-13}


def spec(documents=True, **options):
    """Causal with slopes, documents read at q and at k, and a sink: everything whose address storage changes."""
    return attention(
        "param slope[h] : f32",
        "param doc[b, k] : i32 nondecreasing",
        "sink Z[h] : f32",
        "score s = s - slope[h] * abs(q - k)",
        f"mask k <= q + N - M and {'doc[b, q] == doc[b, k]' if documents else 'doc[b, k] != 1'}",
        "grad Q, K, V, slope, Z",
        group=2,
        **options,
    )


def rows_of(storage, inputs, name, sequence, length):
    """The rows of one sequence of a tensor whose row dimension is stored so; [1, length, …]."""
    array = inputs[name]
    kind, table = storage.split() if storage else ("dense", "")
    if kind == "packed":
        start = inputs[table][sequence]
        return array[start : start + length][None]
    return array[sequence : sequence + 1, :length]


def lengths_of(storage, inputs, count, extent):
    if not storage:
        return [extent] * count
    kind, table = storage.split()
    return list(np.diff(inputs[table])) if kind == "packed" else list(inputs[table])


@pytest.mark.parametrize(
    ("q", "k"),
    [
        ("packed cu_q", "packed cu_k"),
        ("packed cu", "packed cu"),
        ("lengths len_q", "lengths len_k"),
        ("", "lengths len_k"),
        ("packed cu_q", "lengths len_k"),
        ("lengths len_q", ""),
        ("", "packed cu_k"),
    ],
)
def test_each_sequence_is_the_dense_attention_of_its_rows(q, k):
    # Rows past a sequence's keys could not read a document of their own.
    documents = bool(q) or not k
    attn, dense = spec(documents, q=q, k=k), spec(documents)
    inputs = make_inputs(attn, SIZES, tile=16, tail=5)
    rng = np.random.default_rng(1)
    got = evaluate(attn, inputs)
    d_out, d_lse = rng.standard_normal(got["O"].shape), rng.standard_normal(got["L"].shape)
    grads = gradients(attn, inputs, d_out, d_lse)
    seen = {n: np.zeros(x.shape, np.bool_) for n, x in {**got, **grads}.items()}
    shared = {n: np.zeros_like(grads[n]) for n in ("slope", "Z")}
    ms = lengths_of(q, inputs, 7, 40)
    ns = lengths_of(k, inputs, 7, 48)
    assert set(ms) | set(ns) >= {0, 1, 15, 16, 17}
    for i, (m, n) in enumerate(zip(ms, ns, strict=True)):
        own = {x: rows_of(q, inputs, x, i, m) for x in ("Q",)}
        own |= {x: rows_of(k, inputs, x, i, n) for x in ("K", "V", "doc")}
        own |= {x: inputs[x] for x in ("slope", "Z")}
        expected = evaluate(dense, own)
        cut = {x: rows_of(q, {**inputs, **got, "dO": d_out}, x, i, m) for x in ("O", "dO")}
        np.testing.assert_allclose(cut["O"], expected["O"], **CLOSE)
        if q.startswith("packed"):
            start = inputs[q.split()[1]][i]
            lanes = np.s_[:, start : start + m]
        else:
            lanes = np.s_[i, :, :m]
        np.testing.assert_allclose(got["L"][lanes], expected["L"][0], **CLOSE)
        seen["L"][lanes] = True
        wanted = gradients(dense, own, cut["dO"], d_lse[lanes][None])
        for name, storage, length in (("Q", q, m), ("K", k, n), ("V", k, n)):
            np.testing.assert_allclose(rows_of(storage, {**inputs, **grads}, name, i, length), wanted[name], **CLOSE)
            rows_of(storage, {**inputs, **seen}, name, i, length)[...] = True
        rows_of(q, {**inputs, **seen}, "O", i, m)[...] = True
        for name in shared:
            shared[name] += wanted[name]
    for name, total in shared.items():
        np.testing.assert_allclose(grads[name], total, rtol=1e-12, atol=1e-12)
    for name in ("Q", "K", "V"):
        assert not grads[name][~seen[name]].any()
    assert not got["O"][~seen["O"]].any()
    assert np.all(got["L"][~seen["L"]] == -np.inf)


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("q", ["", "packed cu_q"])
def test_paged_is_padded_read_through_a_table(page, q):
    paged, padded = (attention(BOTTOM_RIGHT, group=2, q=q, k="lengths len_k", paged=p) for p in (page, None))
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
    paged, dense = mla("grad C, R, Q", paged=16), mla("grad C, R, Q")
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
    attn = attention(k="lengths len_k", paged=16)
    inputs = make_inputs(attn, {"B": 2, "M": 3, "N": 48}, lengths={"k": [20, 17]})
    inputs["len_k"] = np.asarray([20, 33], np.int32)
    with pytest.raises(IndexError, match="tables lead outside"):
        evaluate(attn, inputs)


def test_a_document_read_at_q_must_lie_inside():
    attn = spec(q="packed cu_q", k="packed cu_k")
    inputs = make_inputs(attn, {"B": 2, "M": 9, "N": 9}, lengths={"q": [9, 3], "k": [4, 9]})
    with pytest.raises(IndexError, match="doc"):
        evaluate(attn, inputs)
