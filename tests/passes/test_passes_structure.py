"""What each pass makes of the program: the loops, what is left in them, and what it refuses."""

import itertools
from dataclasses import replace

import pass_kit as kit
import pytest
from feature_specs import CAUSAL, kernel

from tilec.arith.evaluate import evaluate
from tilec.frontend import bind, read_text
from tilec.ir.expr import NEG_INFINITY, Fetch, Float, Int, Iota, Op, Read, Reduce, Var, free_vars, walk
from tilec.ir.nodes import Cluster, Compute, For, If, Let, Load, Mma, Slot, Store, map_exprs, rewrite
from tilec.ir.nodes import walk as statements
from tilec.passes.choose_tiles import Choice, choose_tiles, padded
from tilec.passes.lower_attention import lower_attention
from tilec.passes.online_softmax import online_softmax
from tilec.passes.prove_mask import MaskOptions, prove_mask
from tilec.passes.tidy import tidy


def expressions(body):
    """Every expression of these statements, whole."""
    out = []
    for s in statements(tuple(body)):
        map_exprs(s, lambda e: out.append(e) or e)
    return out


def parts(body):
    return [x for e in expressions(body) for x in walk(e)]


def lowered(*lines, **how):
    return kit.program(kernel(*lines, **how))


def loops(p):
    return {(s.proof.part, s.proof.segment): s for s in kit.key_loops(p)}


WINDOW = "mask k <= q + N - M and k > q + N - M - 70"
UNION = "mask k <= q and (k > q - 40 or k < 40)"


# ---------------------------------------------------------------------------------------------- lower_attention


def test_the_textbook_has_two_walks_of_all_keys():
    p = kit.program(kernel(CAUSAL), stage="lower_attention")
    clusters = [s for s in statements(p.roles[0].body) if isinstance(s, Cluster)]
    assert [c.kind for c in clusters] == ["map", "row_max", "weights", "finish"]
    assert kit.segments(p) == [(0, "all"), (0, "all")]
    assert all(any(x is NEG_INFINITY for x in parts(s.body)) for s in kit.key_loops(p))


def test_a_symbol_of_a_tile_must_be_bound():
    text = kernel(CAUSAL, d="d : D")
    attn = read_text(text).kernels[0]
    with pytest.raises(ValueError, match="the extent of d must be a constant here, not D"):
        lower_attention(attn, "cpu")
    assert lower_attention(bind(attn, {"D": 24}), "cpu").tile[-1][1] == 24


def test_pairs_of_unequal_factors_have_products_of_their_own():
    more = {"more": "r : 16", "dtype": "e4m3", "out": "bf16"}
    rope = ("query Qr[b, q, h, r] : e4m3 scaled qs[b, h]", "key Kr[b, k, r] : e4m3 scaled ks[b, h]")
    unequal = (rope[0].replace("qs", "rs"), rope[1])
    for lines, count in ((rope, 1), (unequal, 2)):
        p = lowered(*lines, tails=("scaled qs[b, h]", "scaled ks[b, h]", ""), **more)
        loop = kit.key_loops(p)[0]
        products = {s.dst.buffer for s in statements(loop.body) if isinstance(s, Mma) and s.dst.buffer != "acc"}
        assert len(products) == count


# ---------------------------------------------------------------------------------------------- prove_mask


@pytest.mark.parametrize(
    ("mask", "segments"),
    [
        ("", [(0, "full"), (0, "right")]),
        (CAUSAL, [(0, "full"), (0, "right")]),
        ("mask k <= q", [(0, "full"), (0, "right")]),
        ("mask k >= q", [(0, "left"), (0, "full"), (0, "right")]),
        (WINDOW, [(0, "left"), (0, "full"), (0, "right")]),
        ("mask q * k % 7 < 3", [(0, "left")]),
    ],
)
def test_loops_of_a_mask(mask, segments):
    found = kit.segments(lowered(mask))
    assert found == segments or (segments == [(0, "left")] and len(found) == 1 and found[0][1] != "full")


@pytest.mark.parametrize("mask", ["", CAUSAL, WINDOW, UNION, "mask (q - k) % 3 == 0 and k <= q"])
def test_full_loops_have_neither_mask_nor_guards(mask):
    full = [s for s in kit.key_loops(lowered(mask)) if s.proof.segment == "full"]
    assert full
    for loop in full:
        assert not any(
            isinstance(x, Op) and x.name in ("where", "and", "<", "<=", ">=", ">", "%") for x in parts(loop.body)
        )
        assert all(s.where is None for s in statements(loop.body) if isinstance(s, Load))


@pytest.mark.parametrize("mask", [CAUSAL, WINDOW, UNION])
def test_partial_loops_mask_and_guard(mask):
    for loop in kit.key_loops(lowered(mask)):
        if loop.proof.segment != "full":
            assert any(isinstance(x, Op) and x.name == "where" and x.args[2] is NEG_INFINITY for x in parts(loop.body))
            assert any(s.where is not None for s in statements(loop.body) if isinstance(s, Load)) or mask != CAUSAL


def ranges(p, sizes):
    """[lo, hi) of every key loop in each block, by evaluating the scalars before them."""
    env = {**sizes, **dict(p.tile)}
    for cta in range(int(evaluate(p.grid.ctas, env))):
        scope = {**env, "cta": cta}
        for s in statements(p.roles[0].body):
            if isinstance(s, For):
                break
            if isinstance(s, Let):
                scope[s.name] = evaluate(s.value, scope)
        yield scope, [(evaluate(s.lo, scope), evaluate(s.hi, scope)) for s in kit.key_loops(p)]


@pytest.mark.parametrize(
    "mask", [CAUSAL, WINDOW, UNION, "mask abs(q - k) < 10 or abs(q - k - 80) < 10", "mask k <= q or k < 40"]
)
def test_loops_are_ordered_and_disjoint(mask):
    p = lowered(mask)
    for m, n in ((1, 1), (33, 200), (200, 200), (200, 70), (97, 64)):
        for _, found in ranges(p, {"B": 1, "M": m, "N": n}):
            taken = [r for r in found if r[0] < r[1]]
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))
            assert all(lo >= 0 and hi <= -(-n // 32) for lo, hi in taken)


def test_no_tile_of_a_union_is_skipped_or_walked_twice():
    p = lowered(UNION)
    for scope, found in ranges(p, {"B": 1, "M": 200, "N": 200}):
        walked = [j for lo, hi in found for j in range(lo, hi)]
        rows = range(scope["q_first"], scope["q_last"] + 1)
        live = {k // 32 for q in rows for k in range(200) if k <= q and (k > q - 40 or k < 40)}
        assert len(walked) == len(set(walked)) and live <= set(walked)
        assert len(walked) <= len(live) + 1


def test_residue_classes_are_a_coordinate_and_no_test():
    p = lowered("mask (q - k) % 3 == 0 and k <= q and q - k < 200")
    assert dict(p.grid.coords)["r"] is Int(3)
    assert not any(isinstance(x, Op) and x.name == "%" for s in kit.key_loops(p) for x in parts(s.body))
    steps = [s.value for loop in kit.key_loops(p) for s in loop.body if isinstance(s, Compute) and s.dst.buffer == "k"]
    assert steps and all(any(x is Int(3) for x in walk(e)) for e in steps)


def test_an_order_without_residue_keeps_the_test():
    spec = kernel("mask (q - k) % 3 == 0 and k <= q").replace("tile q", "order q  tile q")
    p = kit.program(spec)
    assert "r" not in dict(p.grid.coords)
    assert any(isinstance(x, Op) and x.name == "%" for s in kit.key_loops(p) for x in parts(s.body))


def test_skip_none_walks_and_masks_everything():
    p = kit.program(kernel(CAUSAL).replace("tile q", "skip none  tile q"))
    assert kit.segments(p) == [(0, "all")]


def test_bounds_through_documents_are_searched_for():
    p = lowered("param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k <= q")
    assert any(type(s).__name__ == "Seek" for s in statements(p.roles[0].body))


def test_split_loops_are_not_split_again():
    attn = read_text(kernel(CAUSAL)).kernels[0]
    once = prove_mask(lower_attention(attn, "cpu"), attn)
    with pytest.raises(ValueError, match="already split"):
        prove_mask(once, attn, MaskOptions())


# ---------------------------------------------------------------------------------------------- online_softmax


def test_one_walk_in_base_two():
    p = lowered(CAUSAL)
    clusters = [s.kind for s in statements(p.roles[0].body) if isinstance(s, Cluster)]
    assert clusters == ["map", "keys", "finish"]
    names = {x.name for s in kit.key_loops(p) for x in parts(s.body) if isinstance(x, Op)}
    assert "exp2" in names and "exp" not in names and "/" not in names


def test_rows_leave_the_loop():
    """ALiBi's -slope * q cancels in the softmax: no statement of the full loop reads the rows' positions."""
    p = lowered("param slope[h] : f32", "score s = s - slope[h] * (q - k)", "mask k <= q")
    full = loops(p)[0, "full"]
    assert Read("q") not in parts(full.body)
    after = [s for s in statements(p.roles[0].body) if isinstance(s, Compute) and s.dst.buffer == "row_max"][-1]
    assert Read("q") in walk(after.value)


def test_a_term_that_is_no_row_stays():
    p = lowered("param slope[h] : f32", "score s = s - slope[h] * abs(q - k)", "mask k <= q")
    assert Read("q") in parts(loops(p)[0, "full"].body)


def test_softcap_has_one_constant_in_its_argument():
    p = lowered("score s = 5 * tanh(s / 5)", CAUSAL)
    (argument,) = {x.args[0] for x in parts(loops(p)[0, "full"].body) if isinstance(x, Op) and x.name == "tanh"}
    assert isinstance(argument, Op) and argument.name == "*" and argument.args[0] is Read("scores")
    assert argument.args[1].value == pytest.approx(0.25 / 5)
    factors = [x.value for x in parts(loops(p)[0, "full"].body) if isinstance(x, Float)]
    assert any(f == pytest.approx(5 * 1.4426950408889634) for f in factors)


@pytest.mark.parametrize(
    ("line", "guarded"),
    [
        ("score s = s * 2", False),
        ("score s = 5 * tanh(s / 5)", False),
        ("score s = s + q - k", False),
        ("bias Bt[b, k] : f32 score s = s + Bt[b, k]", True),
        ("score s = where(k == 3, log(0), s)", True),
        ("score s = s / (k % 3)", True),
    ],
)
def test_a_score_of_minus_infinity_is_guarded(line, guarded):
    p = lowered(*line.replace(" score", "\nscore").split("\n"), CAUSAL)
    full = loops(p)[0, "full"]
    assert any(isinstance(s, Compute) and s.dst.buffer == "base" for s in full.body) == guarded


def test_only_textbook_programs():
    done = lowered(CAUSAL)
    with pytest.raises(ValueError, match="textbook clusters"):
        online_softmax(done, "q", "k")
    lowered_once = kit.program(kernel(CAUSAL), stage="prove_mask")
    (weights,) = (s for s in statements(lowered_once.roles[0].body) if isinstance(s, Cluster) and s.kind == "weights")
    body = rewrite(lowered_once.roles[0].body, lambda s: () if s == weights else None)
    with pytest.raises(ValueError, match="textbook clusters"):
        online_softmax(lowered_once.with_(roles=(replace(lowered_once.roles[0], body=body),)), "q", "k")


def test_reductions_run_along_keys_alone():
    p = lowered(CAUSAL)
    assert {x.axis for x in parts(p.roles[0].body) if isinstance(x, Reduce)} == {"k"}


# ---------------------------------------------------------------------------------------------- choose_tiles


@pytest.mark.parametrize(
    ("depth", "size", "guarded"), [(16, 16, False), (33, 64, True), (40, 64, True), (64, 64, False)]
)
def test_features_are_padded_and_guarded_where_needed(depth, size, guarded):
    p = kit.program(kernel(CAUSAL, d=f"d : {depth}"), "sm90", backend="triton")
    assert dict(p.tile)["TD"] == size
    touched = [s for s in statements(p.roles[0].body) if isinstance(s, Load | Store) and s.tensor in "QKVO"]
    for s in touched:
        wheres = [] if s.where is None else [x for x in walk(s.where) if isinstance(x, Iota) and x.axis == "d"]
        assert bool(wheres) == guarded, s


def test_padding():
    assert [padded(n) for n in (1, 16, 17, 64, 65, 128, 576)] == [16, 16, 32, 64, 128, 128, 1024]


@pytest.mark.parametrize(("features", "tile", "guarded"), [(40, 64, True), (72, 96, True), (96, 96, False)])
def test_features_are_padded_to_multiples_of_a_number(features, tile, guarded):
    attn = read_text(kernel(CAUSAL, d=f"d : {features}")).kernels[0]
    p = online_softmax(prove_mask(lower_attention(attn, "cpu"), attn), "q", "k")
    chosen = choose_tiles(p, attn, Choice(32, 32, None, None, "test"), pad=32)
    ends = Op("<", (Iota("d"), Int(features)))
    loads = [s for s in statements(chosen.roles[0].body) if isinstance(s, Load) and Iota("d") in s.index]
    assert dict(chosen.tile)["TD"] == tile and len(loads) > 2
    assert {s.where is not None and ends in walk(s.where) for s in loads} == {guarded}


def test_the_interpreter_pads_nothing():
    assert dict(lowered(CAUSAL, d="d : 33").tile)["TD"] == 33


def test_choices_are_noted():
    text = kernel(CAUSAL)
    attn = read_text(text).kernels[0]
    p = online_softmax(prove_mask(lower_attention(attn, "cpu"), attn), "q", "k")
    chosen = choose_tiles(p, attn, Choice(128, 64, 8, 3, "spec"), pad="power")
    assert dict(chosen.tile) | {"TQ": 128, "TK": 64} == dict(chosen.tile)
    assert chosen.roles[0].warps == 8 and {s.stages for s in kit.key_loops(chosen)} == {3}
    assert "tiles by spec" in chosen.notes


# ---------------------------------------------------------------------------------------------- tidy


@pytest.mark.parametrize("mask", [CAUSAL, UNION, "mask (q - k) % 3 == 0"])
def test_nothing_is_left_unused(mask):
    p = lowered(mask)
    assert tidy(p) == p
    read = {n for e in expressions(p.roles[0].body) for n in free_vars(e)}
    defined = {s.name for s in statements(p.roles[0].body) if isinstance(s, Let)}
    assert defined <= read
    buffers = {x.buffer for x in parts(p.roles[0].body) if isinstance(x, Read)}
    buffers |= {x.buffer for s in statements(p.roles[0].body) if isinstance(s, Mma) for x in (s.a, s.b)}
    assert {b.name for b in p.roles[0].buffers} <= buffers


def test_a_dead_scalar_goes_and_a_live_one_stays():
    p = lowered(CAUSAL)
    role = p.roles[0]
    dead = (Let("x", Var("M")), Let("y", Var("x")), *role.body)
    assert tidy(p.with_(roles=(replace(role, body=dead),))) == p


def test_tables_are_read_where_a_sequence_has_rows():
    p = lowered(CAUSAL, q="q : M packed cu_q", k="k : N packed cu_k")
    assert any(isinstance(s, If) and any(isinstance(x, For) for x in statements(s.then)) for s in p.roles[0].body)
    assert {x.tensor for x in parts(p.roles[0].body) if isinstance(x, Fetch)} == {"cu_q", "cu_k"}
    assert Slot("q") in {s.dst for s in statements(p.roles[0].body) if isinstance(s, Compute)}
