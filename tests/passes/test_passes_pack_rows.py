"""pack_rows: heads that share a key head as rows of one tile, which changes no result, and where it does not apply."""

import native_kit as kit
import pytest

from tilec.ir.groups import groups_of
from tilec.ir.nodes import Copy, walk
from tilec.ir.verify import verify
from tilec.native import lower_native
from tilec.passes.choose_tiles import Choice, choose_tiles
from tilec.passes.lower_attention import lower_attention
from tilec.passes.online_softmax import online_softmax
from tilec.passes.pack_rows import group_of, pack_rows
from tilec.passes.prove_mask import prove_mask

EIGHT = {"h": "h : 8", "head": "h // 4", **kit.SMALL}
SIX = {"h": "h : 6", "head": "h // 3", **kit.SMALL}
SLOPES = ("param slope[h] : f32", "score s = s - slope[h] * abs(q - k)", "sink Z[h] : f32")
SPECS = {
    "groups of 4": kit.kernel(kit.CAUSAL, **EIGHT),
    "groups of 3": kit.kernel(kit.CAUSAL, **SIX),
    "one key head": kit.kernel(kit.CAUSAL, h="h : 4", key="K[b, k, d]", value="V[b, k, d] : bf16", **kit.SMALL),
    "groups of 128": kit.kernel(kit.CAUSAL, h="h : 128", head="h // 128", lse="", **kit.SMALL),
    "groups of 80": kit.kernel(kit.CAUSAL, h="h : 80", head="h // 80", lse="", **kit.SMALL),
    "slopes and sinks": kit.kernel(*SLOPES, kit.WINDOW, **EIGHT),
    "bias, groups of 3": kit.kernel("bias T[b, h, q, k] : f32", "score s = s + T[b, h, q, k]", kit.CAUSAL, **SIX),
    "heads first": kit.kernel(kit.CAUSAL, query="Q[b, h, q, d]", output="O[b, h, q, d]", **EIGHT),
    "one query": kit.kernel("mask k <= q + N - 1", q="q : 1", **EIGHT),
    "padded": kit.kernel(kit.WINDOW, q="q : M lengths mq", k="k : N lengths nk", **EIGHT),
    "dropout": kit.kernel("dropout 0.25", **EIGHT),
    "pages": kit.kernel(kit.CAUSAL, k="k : N lengths nk", h="h : 8", head="h // 8", tails=kit.PAGES, **kit.SMALL),
}  # fmt: skip
GROUPS = {"groups of 3": (3, 4), "one key head": (4, 4), "groups of 128": (128, 128), "groups of 80": (80, 128),
          "bias, groups of 3": (3, 4),
          "pages": (8, 8)}  # fmt: skip
SIZES = ({"B": 3, "M": 1, "N": 150}, {"B": 2, "M": 37, "N": 90})
FEW = ({"B": 1, "M": 2, "N": 70},)  # positions of 80 and 128 heads


def sequential(text, q=64):
    """(attention, program before the blocks are ordered)."""
    attn = kit.attention(text)
    p = online_softmax(prove_mask(lower_attention(attn, "sm90"), attn), attn.q, attn.k)
    return attn, choose_tiles(p, attn, Choice(q, 64, None, None, "test"), pad="steps")


@pytest.mark.parametrize("name", SPECS)
def test_no_result_changes(name):
    attn, p = sequential(SPECS[name])
    packed = pack_rows(p, attn)
    assert packed != p
    verify(packed, proofs=False)
    group = group_of(attn)
    assert (group.size, group.room) == GROUPS.get(name, (4, 4))
    for seed, sizes in enumerate(FEW if group_of(kit.attention(SPECS[name])).size > 64 else SIZES):
        assert kit.complaints(packed, SPECS[name], sizes, seed) == []


@pytest.mark.parametrize("name", SPECS)
def test_native_programs_of_short_calls_are_right(name):
    p = lower_native(kit.attention(SPECS[name]), "sm90", features=frozenset({"short"}))
    (queries,) = {s.index for s in walk(p.roles[0].body) if isinstance(s, Copy) and s.tensor == "Q"}
    assert groups_of(queries).size == GROUPS.get(name, (4, 4))[1]
    for seed, sizes in enumerate(FEW if group_of(kit.attention(SPECS[name])).size > 64 else SIZES):
        assert kit.complaints(p, SPECS[name], sizes, seed, units=2) == []


LEFT = {
    "a key head for each": kit.SPECS["causal"],
    "packed rows": kit.kernel(kit.CAUSAL, **kit.PACKED, **EIGHT),
    "the head decides what is live": kit.kernel("param w[h] : i32", "mask k <= q and q - k < w[h]", **EIGHT),
    "interleaved heads": kit.kernel(h="h : 4", head="h % 2", **kit.SMALL),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_as_they_are(name):
    attn, p = sequential(LEFT[name])
    assert pack_rows(p, attn) is p


def test_rows_are_packed_before_blocks_are_ordered():
    attn = kit.attention(SPECS["groups of 4"])
    with pytest.raises(ValueError, match="before the blocks"):
        pack_rows(kit.sequential(SPECS["groups of 4"]), attn)


def test_tiles_of_short_calls_have_64_rows_unless_a_group_fills_more():
    for name, rows in (("groups of 4", 64), ("groups of 128", 192)):
        attn = kit.attention(SPECS[name])
        assert dict(lower_native(attn, "sm90", features=frozenset({"short"})).tile)["TQ"] == rows
        assert dict(lower_native(attn, "sm90").tile)["TQ"] == 192
