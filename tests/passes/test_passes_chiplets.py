"""Block maps for chiplets: permutations for every count, heads on chiplets of their own, folds of equal length."""

import itertools

import pass_kit as kit
import pytest
from feature_specs import CAUSAL, kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from map_kit import blocks_of, extents, tiles_of

from tilec.backends.triton.emit import emit
from tilec.ir.nodes import Cluster, walk
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.ir.verify import verify
from tilec.passes.map_blocks import BlockMap, map_blocks
from tilec.passes.tidy import tidy

XCDS = 8
PROGRAM = kit.program(
    kernel(CAUSAL, h="h : H", head="h // 2"), stage="choose_tiles"
)  # two query heads to a key head, rows first in the order of the coordinates
PACKED = kit.program(kernel(q="q : M packed cu"), stage="choose_tiles")
DILATED = kit.program(kernel("mask (q - k) % 3 == 0"), stage="choose_tiles")

maps = st.builds(
    BlockMap,
    st.sampled_from(["linear", "block_first", "longest_first"]),
    st.sampled_from([2, 3, 8]),
    st.sampled_from([None, None, 1, 7, 304]),
    chunk=st.one_of(st.none(), st.integers(1, 9)),
    window=st.one_of(st.none(), st.integers(1, 9)),
) | st.builds(
    BlockMap,
    st.just("longest_first"),
    st.sampled_from([2, 3, 8]),
    st.sampled_from([None, 7]),
    chunk=st.integers(1, 9),
    span=st.integers(1, 200),
)
folds = st.builds(
    BlockMap,
    st.sampled_from(["linear", "block_first"]),
    st.sampled_from([1, 3, 8]),
    fold=st.just(True),
).flatmap(lambda m: st.just(m) if m.xcds == 1 else st.one_of(st.none(), st.integers(1, 9)).map(
    lambda chunk: BlockMap(m.order, m.xcds, chunk=chunk, fold=True)))  # fmt: skip
sizes = st.fixed_dictionaries({"B": st.integers(0, 3), "H": st.integers(1, 6), "M": st.integers(0, 400)})


@given(st.one_of(maps, folds), sizes)
@settings(max_examples=150, deadline=None)
def test_each_tile_once_for_every_count(chosen, counts):
    counts = {**counts, "H": 2 * counts["H"], "N": 40}
    p = map_blocks(PROGRAM, chosen)
    assert sorted(tiles_of(p, counts)) == sorted(itertools.product(*(range(n) for n in extents(p, counts))))


@pytest.mark.parametrize("base", [PACKED, DILATED])
@pytest.mark.parametrize("chosen", [BlockMap(xcds=8, chunk=2), BlockMap("block_first", xcds=8, chunk=3)])
def test_other_coordinates_are_permuted_as_well(base, chosen):
    p = map_blocks(base, chosen)
    for counts in ({"B": 3, "M": 100, "N": 40}, {"B": 1, "M": 7, "N": 7}):
        assert sorted(tiles_of(p, counts)) == sorted(itertools.product(*(range(n) for n in extents(p, counts))))


def on_xcd(p, counts, xcd):
    """Tiles of one chiplet in order."""
    return tiles_of(p, counts)[xcd::XCDS]


@pytest.mark.parametrize("heads", [8, 16, 24])
def test_a_head_stays_on_its_chiplet(heads):
    """The head-first map of Chiplet FA: chiplet x walks the heads x, x + 8, …, one at a time."""
    counts = {"B": 1, "H": heads, "M": 200, "N": 200}
    p = map_blocks(PROGRAM, BlockMap(xcds=XCDS, chunk=1))
    rows = extents(p, counts)[0]
    for xcd in range(XCDS):
        wanted = [(m, h, 0) for h in range(xcd, heads, XCDS) for m in range(rows)]
        assert on_xcd(p, counts, xcd) == wanted


def test_a_key_head_stays_on_its_chiplet():
    """With grouped heads a chiplet takes whole groups: one stream of keys at a time."""
    counts = {"B": 2, "H": 16, "M": 200, "N": 200}
    p = map_blocks(PROGRAM, BlockMap("longest_first", XCDS, chunk=2))
    for xcd in range(XCDS):
        streams = [(b, h // 2) for _, h, b in on_xcd(p, counts, xcd)]
        assert len(set(streams)) == 2 and [x for x, _ in itertools.groupby(streams)] == sorted(set(streams))
        rows = [m for m, _, _ in on_xcd(p, counts, xcd)]
        assert rows == 2 * [m for m in range(extents(p, counts)[0] - 1, -1, -1) for _ in range(2)]


def test_what_no_cycle_holds_is_shared_by_all_chiplets():
    counts = {"B": 1, "H": 12, "M": 800, "N": 800}
    p = map_blocks(PROGRAM, BlockMap(xcds=XCDS, chunk=1))
    rows = extents(p, counts)[0]
    for xcd in range(XCDS):
        mine = on_xcd(p, counts, xcd)
        assert {h for _, h, _ in mine[:rows]} == {xcd}
        assert abs(len(mine) - 12 * rows / XCDS) < 1


def test_heads_of_no_cycle_are_one_section():
    counts = {"B": 1, "H": 22, "M": 800, "N": 800}
    p = map_blocks(PROGRAM, BlockMap("longest_first", XCDS, chunk=2))
    rows = extents(p, counts)[0]
    found = tiles_of(p, counts)
    assert found[: 6 * rows] == [(m, h, 0) for m in range(rows - 1, -1, -1) for h in range(16, 22)]
    for xcd in range(XCDS):  # and then chunks of heads, as ever
        assert len({h // 2 for _, h, _ in found[6 * rows :][xcd::XCDS]}) == 1


@pytest.mark.parametrize(("length", "heads"), [(32, 16), (64, 8), (100, 4), (400, 2)])
def test_a_span_widens_the_chunks_of_short_heads(length, heads):
    counts = {"B": 8, "H": 16, "M": length, "N": 40}
    p = map_blocks(PROGRAM, BlockMap("longest_first", XCDS, chunk=2, span=128))
    rows = extents(p, counts)[0]
    assert heads == 2 * -(-128 // (16 * rows))
    mine = on_xcd(p, counts, 0)
    assert {m for m, _, _ in mine[:heads]} == {rows - 1}
    assert rows == 1 or mine[heads][0] == rows - 2


def test_block_first_takes_a_row_of_every_head():
    counts = {"B": 2, "H": 4, "M": 100, "N": 100}
    p = map_blocks(PROGRAM, BlockMap("block_first"))
    rows = extents(p, counts)[0]
    assert tiles_of(p, counts) == [(m, h, b) for m in range(rows) for b in range(2) for h in range(4)]


@pytest.mark.parametrize("rows", [1, 2, 7, 8])
def test_a_fold_pairs_long_and_short(rows):
    size = dict(PROGRAM.tile)["TQ"]
    counts = {"B": 1, "H": 4, "M": rows * size, "N": 100}
    blocks = blocks_of(map_blocks(PROGRAM, BlockMap(xcds=XCDS, chunk=1, fold=True)), counts)
    assert len(blocks) == 4 * ((rows + 1) // 2)
    for b in blocks:
        (long, *head), *short = b
        assert long >= rows // 2
        assert short == ([] if 2 * long + 1 == rows else [(rows - 1 - long, *head)])


FORMS = {
    "chunk": BlockMap(xcds=XCDS, chunk=2),
    "window": BlockMap("longest_first", XCDS, chunk=4, window=2),
    "span": BlockMap("longest_first", XCDS, chunk=2, span=30),
    "block first": BlockMap("block_first"),
    "fold": BlockMap(xcds=XCDS, chunk=2, fold=True),
    "fold by rows": BlockMap("block_first", XCDS, fold=True),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.mark.parametrize("name", ["causal", "gqa"])
@pytest.mark.parametrize("form", FORMS)
def test_a_map_keeps_the_meaning_and_is_text(form, name, folder):
    counts, inputs, bound = kit.call(name, folder)
    p = tidy(map_blocks(kit.after(name, "cpu")["choose_tiles"], FORMS[form]))
    verify(p)
    assert kit.complaints(p, name, inputs, bound, counts) == []
    text = show_program(p)
    assert parse_program(text) == p
    assert p.grid.order == FORMS[form].name and p.grid.numbers == FORMS[form].numbers
    assert any(isinstance(s, Cluster) and s.kind == "map" for s in walk(p.roles[0].body))
    assert compile(emit(p).text, "kernel", "exec")


def test_numbers_of_a_map_are_printed():
    text = show_program(map_blocks(PROGRAM, FORMS["window"]))
    assert "order longest_first_xcd8(chunk = 4, window = 2)\n" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"fold": True, "units": 4},
        {"fold": True, "order": "longest_first"},
        {"chunk": 2},
        {"xcds": 8, "chunk": 0},
        {"span": 9, "xcds": 8},
    ],
)
def test_maps_that_contradict_themselves_are_refused(wrong):
    with pytest.raises(ValueError):
        BlockMap(**wrong)
