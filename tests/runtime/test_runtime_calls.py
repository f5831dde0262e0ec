"""Wrong calls: one golden message per mistake, each naming the tensor, the spec's line, what was expected and what came.

`pytest tests/runtime --update-golden` rewrites the messages.
"""

from pathlib import Path

import pytest
import runtime_kit as kit
import torch

from tilec.backends.runtime.checks import apart, bind, order
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.values import check_values
from tilec.dsl.codes import CODES
from tilec.dsl.faults import CallFault, Fault

GOLDEN = Path(__file__).parent / "golden"
Q, K, V = kit.dense()


def call(text, *tensors, target="cpu", out=None, **named):
    signature = kit.signature(text)
    tensors = order(signature, tensors, named)
    check_values(signature, bind(signature, tensors, target, out), tensors)


def packed(cu_q=(0, 2, 5), cu_k=(0, 3, 7), rows=(5, 7), tables=torch.int32):
    def one(n, heads):
        return torch.zeros(n, heads, 16, dtype=torch.bfloat16)

    offsets = (torch.tensor(c, dtype=tables) for c in (cu_q, cu_k))
    return one(rows[0], 3), one(rows[1], 1), one(rows[1], 1), *offsets


def paged(lengths=(3, 17), table=((0, 4, 4), (1, 2, 3)), pages=4):
    pool = torch.zeros(pages, 8, 1, 16, dtype=torch.float16)
    query = torch.zeros(2, 1, 4, 16, dtype=torch.float16)
    return query, pool, pool, torch.tensor(lengths, dtype=torch.int32), torch.tensor(table, dtype=torch.int32)


def documents(doc=((0, 0, 1), (0, 1, 1)), M=2):
    q, k = torch.zeros(2, M, 2, 8), torch.zeros(2, 3, 2, 8)
    return q, k, k, torch.tensor(doc, dtype=torch.int32)


def grouped(H=6, heads=3, D=8, M=2, N=4):
    q, k = torch.zeros(2, H, M, D), torch.zeros(2, heads, N, D)
    return q, k, k


def eight(dtype=torch.float8_e4m3fn):
    x = torch.zeros(1, 3, 4, 16).to(dtype)
    return x, x, x, torch.ones(1, 4), torch.ones(1, 4)


WRONG = {
    "E1001_missing": lambda: call(kit.CAUSAL, Q, V=V),
    "E1002_case": lambda: call(kit.CAUSAL, Q, K, v=V),
    "E1002_unknown": lambda: call(kit.CAUSAL, Q, K, V, cu_q=Q),
    "E1003_twice": lambda: call(kit.CAUSAL, Q, K, Q=Q),
    "E1004_too_many": lambda: call(kit.CAUSAL, Q, K, V, Q),
    "E1005_no_tensor": lambda: call(kit.CAUSAL, Q, K.tolist(), V),
    "E1005_sparse": lambda: call(kit.CAUSAL, Q.to_sparse(), K, V),
    "E1005_nested": lambda: call(kit.PACKED, torch.nested.nested_tensor([*packed()[0][None]]), *packed()[1:]),
    "E1006_rank": lambda: call(kit.CAUSAL, Q[0], K, V),
    "E1006_rank_packed": lambda: call(kit.PACKED, packed()[0][None], *packed()[1:]),
    "E1006_rank_paged": lambda: call(kit.PAGED, paged()[0], paged()[1][:, 0], *paged()[2:]),
    "E1007_lengths_differ": lambda: call(kit.CAUSAL, Q, K, V[:, 1:]),
    "E1007_offsets": lambda: call(kit.PACKED, *packed(cu_k=(0, 3, 5, 7))),
    "E1007_no_offsets": lambda: call(kit.PACKED, *packed(cu_q=())),
    "E1007_groups": lambda: call(kit.GROUPED, *grouped(H=5, heads=3)),
    "E1007_no_heads": lambda: call(kit.GROUPED, *grouped(heads=0)),
    "E1014_groups": lambda: call(kit.GROUPED, *grouped(H=7, heads=3)),
    "E1008_heads": lambda: call(kit.CAUSAL, Q, K.repeat(1, 1, 2, 1), V),
    "E1008_feature": lambda: call(kit.CAUSAL, Q[..., :8], K, V),
    "E1008_page": lambda: call(kit.PAGED, paged()[0], paged()[1].repeat(1, 2, 1, 1), *paged()[2:]),
    "E1009_dtype": lambda: call(kit.CAUSAL, Q, K.half(), V),
    "E1009_table": lambda: call(kit.PACKED, *packed(tables=torch.int64)),
    "E1010_fnuz": lambda: call(kit.FP8, *eight(), target="gfx942"),
    "E1010_ocp": lambda: call(kit.FP8, *eight(torch.float8_e4m3fnuz), target="sm90"),
    "E1011_devices": lambda: call(kit.CAUSAL, Q, K.to("meta"), V),
    "E1012_last_dimension": lambda: call(kit.CAUSAL, Q, K, V.mT.contiguous().mT),
    "E1013_table_strided": lambda: call(kit.PACKED, *packed()[:4], torch.tensor([0, 9, 3, 9, 7, 9]).int()[::2]),
    "E1014_assume": lambda: call(kit.GROUPED, *grouped(M=5)),
    "E1014_read_at_q": lambda: call(kit.DOCUMENTS, *documents(M=4)),
    "E1015_first_offset": lambda: call(kit.PACKED, *packed(cu_q=(1, 2, 5))),
    "E1015_decreasing": lambda: call(kit.PACKED, *packed(cu_k=(0, 8, 7))),
    "E1015_past_the_end": lambda: call(kit.PACKED, *packed(cu_q=(0, 2, 6))),
    "E1016_length": lambda: call(kit.PAGED, *paged(lengths=(3, 25))),
    "E1016_negative": lambda: call(kit.PAGED, *paged(lengths=(-1, 2))),
    "E1017_page": lambda: call(kit.PAGED, *paged(table=((0, 9, 9), (1, 4, 3)))),
    "E1018_nondecreasing": lambda: call(kit.DOCUMENTS, *documents(doc=((0, 0, 1), (1, 0, 1)))),
    "E1019_count": lambda: call(kit.CAUSAL, Q, K, V, out=(Q.clone(),)),
    "E1019_shape": lambda: call(kit.CAUSAL, Q, K, V, out=(Q.float(), torch.zeros(2, 4, 5))),
    "E1019_argument": lambda: apart(kit.signature(kit.CAUSAL), (Q, K, V), (Q.view(Q.shape), torch.zeros(2, 4, 5))),
    "E1019_overlap": lambda: call(kit.CAUSAL, Q, K, V, out=(Q[:, :1].expand(Q.shape), torch.zeros(2, 4, 5))),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_says_what_is_wrong(name, request):
    with pytest.raises(Fault) as caught:
        WRONG[name]()
    assert isinstance(caught.value, CallFault)
    assert caught.value.code == name[:5] and caught.value.code in CODES
    said, golden = f"{caught.value}\n", GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        golden.write_text(said, encoding="utf-8")
    assert said == golden.read_text(encoding="utf-8")


def test_every_golden_message_is_tested():
    assert {p.stem for p in GOLDEN.glob("E10*.txt")} == set(WRONG)


RIGHT = {
    "plain": (Q, K, V),
    "transposed outer": tuple(x.transpose(0, 1).contiguous().transpose(0, 1) for x in (Q, K, V)),
    "every second row": (Q, K.repeat_interleave(2, 1)[:, ::2], V),
    "broadcast heads": (Q, K[:, :, :1].expand(K.shape), V[:, :, :1].expand(V.shape)),
    "slices of one projection": (Q, *torch.zeros(2, 7, 2, 32, dtype=torch.bfloat16).split(16, -1)),
    "odd offset": (Q, K, torch.zeros(V.numel() + 1, dtype=V.dtype)[1:].view(V.shape)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_any_outer_strides_are_accepted(name):
    call(kit.CAUSAL, *RIGHT[name])


def test_strides_of_dimensions_of_extent_one_mean_nothing():
    text = kit.CAUSAL.replace("d : 16", "d : 1").replace("sqrt(16)", "sqrt(1)")
    q, k, v = (torch.zeros(1, n, h, 3, dtype=torch.bfloat16)[..., :1] for n, h in ((5, 4), (7, 2), (7, 2)))
    assert q.stride(-1) == 1 and q.stride(-2) == 3
    call(text, *(x.as_strided(x.shape, (99, *x.stride()[1:3], 77)) for x in (q, k, v)))


def test_rows_past_the_last_offset_are_accepted():
    call(kit.PACKED, *packed(rows=(9, 11)))


def test_block_table_entries_past_the_length_are_not_looked_at():
    call(kit.PAGED, *paged(lengths=(3, 8), table=((0, 99, -1), (3, 77, 1 << 30))))


def test_symbols_are_bound_from_shapes():
    bound = bind(kit.signature(kit.GROUPED), grouped(H=6, heads=3, D=8), "cpu")
    assert bound.extents == {"B": 2, "H": 6, "M": 2, "N": 4, "D": 8, "G": 2}
    assert dict(bound.constants) == {"D": 8, "G": 2}
    bound = bind(kit.signature(kit.PAGED), paged(), "cpu")
    assert bound.extents["N"] == bound.extents["N_rows"] == 24 and bound.extents["K_pages"] == 4
    bound = bind(kit.signature(kit.PACKED), packed(rows=(9, 11)), "cpu")
    assert (bound.extents["B"], bound.extents["M"], bound.extents["N_rows"]) == (2, 9, 11)


@pytest.mark.parametrize("text", [kit.CAUSAL, kit.PACKED, kit.PAGED, kit.GROUPED, kit.DOCUMENTS, kit.FP8])
def test_a_signature_survives_json(text):
    signature = kit.signature(text)
    assert Signature.from_json(signature.to_json()) == signature


def test_features_follow_the_addresses():
    signature = kit.signature(kit.CAUSAL)
    assert bind(signature, (Q, K, V), "cpu").features >= {"aligned", "unit"}
    assert "aligned" not in bind(signature, RIGHT["odd offset"], "cpu").features
