"""overlap: the pipelined walk adds up the same tiles, whatever loops there are and however few tiles they have."""

import native_kit as kit
import pytest

from tilec.dsl.faults import ScheduleFault
from tilec.ir import errors
from tilec.ir.expr import NEG_INFINITY, Op, Read, Var, walk
from tilec.ir.nodes import Await, Cluster, Compute, For, If, Load, Mma, map_exprs
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.ir.verify import IRError
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline, overlap
from tilec.passes.split_rows import split_rows


def overlapped(name, **pipeline):
    return kit.after(kit.SPECS[name], HopperOptions(pipeline=Pipeline(**pipeline)))["overlap"]


def edited(p, old, new):
    text = show_program(p)
    assert old in text, old
    return parse_program(text.replace(old, new))


def loops(p):
    return [s for s in statements(p.roles[0].body) if isinstance(s, For)]


def cluster(p, kind):
    (found,) = (s for s in statements(p.roles[0].body) if isinstance(s, Cluster) and s.kind == kind)
    return found


# ---------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("name", kit.SPECS)
def test_steps_trail_and_nothing_is_lost(name):
    p = overlapped(name)
    for sizes in (kit.SIZES[1], kit.SQUARE):
        assert kit.complaints(p, kit.SPECS[name], sizes) == [], sizes


@pytest.mark.parametrize("name", ["causal", "window", "two pairs"])
def test_products_one_after_the_other(name):
    p = overlapped(name, lag=False)
    for sizes in kit.SIZES:
        assert kit.complaints(p, kit.SPECS[name], sizes) == []
    assert {s.pending for s in statements(p.roles[0].body) if isinstance(s, Await)} == {0}


@pytest.mark.parametrize("name", ["window", "chunks and first", "two windows"])
@pytest.mark.parametrize("keys", [1, 64, 65, 200])
def test_loops_of_any_length(name, keys):
    """Rows and keys such that each loop, and all but one, is empty in some tile."""
    p = overlapped(name)
    for rows in (1, 300):
        assert kit.complaints(p, kit.SPECS[name], {"B": 1, "M": rows, "N": keys}) == []


@pytest.mark.parametrize("style", ["shifted", "onehot", "position"])
def test_other_inputs(style):
    p = overlapped("window, softcap, alibi, sink")
    assert kit.complaints(p, kit.SPECS["window, softcap, alibi, sink"], kit.SIZES[0], style=style) == []


# ---------------------------------------------------------------------------------------------- form


@pytest.mark.parametrize(
    ("name", "segments"),
    [
        ("causal", ["right", "full"]),
        ("window", ["right", "full", "left"]),
        ("window and first", ["right", "full", "left", "right", "full"]),
        ("opaque", ["right"]),
    ],
)
def test_loops_run_backwards_from_the_peeled_tile(name, segments):
    found = loops(overlapped(name))
    assert [s.proof.segment for s in found] == segments and all(s.down and s.stages is None for s in found)
    assert all(Var("j_first") in walk(s.hi) for s in found)


def test_the_first_tile_is_the_last_of_the_last_part_that_has_any():
    p = overlapped("window and first")
    lets = {s.name: str(s.value) for s in statements(p.roles[0].body) if hasattr(s, "name")}
    assert lets["j_first"] == "where(first1 < end1, end1, end0) - 1"
    assert any(isinstance(s, If) and str(s.cond) == "0 < end0 or first1 < end1" for s in statements(p.roles[0].body))


def test_a_step_issues_both_products_before_it_awaits_one():
    for loop in loops(overlapped("causal")):
        kinds = [type(s).__name__ for s in loop.body if isinstance(s, Load | Mma | Await)]
        assert kinds == ["Load", "Mma", "Load", "Mma", "Await"]
        assert [s.pending for s in loop.body if isinstance(s, Await)] == [1]
        (host,) = (s for s in loop.body if isinstance(s, Compute) and s.during)
        assert host.during == (Await("wgmma", 0),) and host.dst.buffer == "weights"


def test_steps_sum_weights_in_the_chains_that_were_asked_for():
    p = overlapped("causal", chains=2)
    sums = [
        str(s.value) for loop in loops(p) for s in loop.body if isinstance(s, Compute) and s.dst.buffer == "row_sum"
    ]
    assert sums == ["@row_sum * @shrink + sum[k, 2](@weights)"] * 2
    assert parse_program(show_program(p)) == p
    assert kit.complaints(p, kit.SPECS["causal"], kit.SIZES[0]) == []


def test_the_first_step_knows_what_it_starts_from():
    body = cluster(overlapped("causal"), "prologue").body
    read = set()
    for s in body:
        map_exprs(s, lambda e: read.update(walk(e)) or e)
    assert not read & {Read("row_max"), Read("row_sum"), Read("acc"), Read("shrink")}
    assert {s.dst.buffer for s in body if isinstance(s, Compute)} >= {"row_max", "row_sum", "rounded"}


def test_the_peeled_step_masks_if_any_loop_does():
    def masks(p):
        return any(
            isinstance(x, Op) and x.name == "where" and x.args[2] is NEG_INFINITY
            for s in cluster(p, "prologue").body
            if isinstance(s, Compute)
            for x in walk(s.value)
        )

    assert masks(overlapped("causal")) and masks(overlapped("no mask, f16"))


@pytest.mark.parametrize(("wait", "after"), [(None, 4), (0, 0), (7, 7), (16, 16)])
def test_where_the_values_are_awaited(wait, after):
    p = overlapped("causal", wait=wait)
    assert {(s.after, s.of) for s in statements(p.roles[0].body) if isinstance(s, Compute) and s.during} == {
        (after, 16)
    }


# ---------------------------------------------------------------------------------------------- refusals and mistakes


def test_a_wait_outside_the_exponentials_is_refused():
    with pytest.raises(ScheduleFault) as caught:
        overlapped("causal", wait=17)
    assert caught.value.code == "E0808"


def test_a_tile_that_is_keys_and_values_is_refused():
    with pytest.raises(ScheduleFault) as caught:
        overlap(split_rows(kit.sequential(kit.kernel(kit.CAUSAL, value="K", **kit.SMALL)), 2))
    assert caught.value.code == "E0811" and "keys and values at once" in caught.value.message


def test_asynchronous_products_are_not_overlapped_again():
    with pytest.raises(ValueError, match="asynchronous already"):
        overlap(overlapped("causal"))


def test_a_loop_that_keeps_the_peeled_tile_is_wrong():
    """Where the right loop is empty, the peeled tile is the full loop's."""
    p = edited(overlapped("no mask, f16"), "min(edge, j_first)", "edge")
    assert kit.complaints(p, kit.SPECS["no mask, f16"], {"B": 1, "M": 70, "N": 128})


def test_values_of_the_tile_above_are_wrong_between_parts():
    loops, epilogue = show_program(overlapped("window and first")).split("cluster epilogue")
    p = parse_program(loops.replace("j_prev * TK", "(j + 1) * TK") + "cluster epilogue" + epilogue)
    assert kit.complaints(p, kit.SPECS["window and first"], kit.SQUARE)


def test_an_unmasked_first_step_is_wrong():
    p = overlapped("causal")
    line = "scores = where(j_first * TK + iota(k) <= q_row + iota(q) + N - M and j_first * TK + iota(k) < N, @scores, -inf)"
    assert kit.complaints(edited(p, line, "scores = @scores"), kit.SPECS["causal"], kit.SIZES[0])


def test_a_skipped_tile_is_refused_by_its_proof():
    p = edited(overlapped("window and first"), ".. min(end0, j_first) down", ".. min(end0, j_first) - 1 down")
    with pytest.raises(IRError, match="is not walked"):
        kit.verify(p)


@pytest.mark.parametrize("pending", [0, 1])
def test_a_missing_await_is_a_race(pending):
    line = f"        await wgmma pending {pending}\n"
    text = show_program(overlapped("causal"))
    at = text.index("for j in")
    assert line in text[at:]
    p = parse_program(text[:at] + text[at:].replace(("  " if pending == 0 else "") + line, ""))
    with pytest.raises(errors.Race):
        kit.complaints(p, kit.SPECS["causal"], kit.SIZES[0])
