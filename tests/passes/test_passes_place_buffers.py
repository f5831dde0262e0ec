"""place_buffers: layouts and sums, and tiles that take each other's place only where nobody notices."""

from dataclasses import replace

import native_kit as kit
import pytest

from tilec.dsl.faults import ScheduleFault
from tilec.ir.build import add, call, mul
from tilec.ir.expr import Float, Read
from tilec.ir.nodes import Compute, Layout, Slot, rewrite
from tilec.ir.nodes import walk as statements
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline
from tilec.passes.place_buffers import PARTS, place_buffers
from tilec.passes.specialize import Roles

WIDE = HopperOptions(2, Pipeline(wait=20), Roles(queries="shared", turns=False))


def causal(depth):
    return kit.kernel(kit.CAUSAL, d=f"d : {depth}", schedule="")


@pytest.mark.parametrize("name", ["causal", "window, softcap, alibi, sink", "dropout", "bias"])
def test_results_are_the_same_bits(name):
    programs = kit.after(kit.SPECS[name])
    one, other = (kit.outputs(programs[n], kit.SPECS[name], kit.SIZES[0])[2] for n in ("specialize", "place_buffers"))
    assert all((one[n] == other[n]).all() for n in one)


@pytest.mark.parametrize(("depth", "room"), [(16, 64), (40, 64), (64, None), (72, 128), (96, 128), (128, None)])
def test_panels_are_whole(depth, room):
    p = kit.after(causal(depth))["place_buffers"]
    tiles = [b for b in p.buffers if b.axes]
    columns = () if room is None else (("columns", room),)
    assert {b.layout for b in tiles} == {Layout("swizzle", (("bytes", 128), ("major", "d"), *columns))}
    assert all(b.layout is None for b in p.buffers if not b.axes)
    assert f"sK 2 x {64 * (room or depth) * 2:,}" in "\n".join(p.notes)


@pytest.mark.parametrize("depth", [40, 72])
def test_tiles_of_contracted_features_are_whole_steps(depth):
    text = causal(depth)
    programs = kit.after(text)
    p = programs["place_buffers"]
    assert dict(p.tile)["TD"] == depth + 8
    assert kit.complaints(p, text, kit.SIZES[0]) == []
    one, other = (kit.outputs(programs[n], text, kit.SIZES[0])[2] for n in ("map_blocks", "use_boxes"))
    assert all((one[n] == other[n]).all() for n in one)


def test_fragments():
    p = kit.after(causal(128), k=96)["place_buffers"]

    def fragment(shape, operand):
        return Layout("fragment", (("mma", shape), ("operand", operand)))

    found = {b.name: b.layout for b in p.roles[1].buffers if b.layout is not None}
    assert found == {
        "Q_tile": fragment("m64n96k16", "A"),
        "scores": fragment("m64n96k16", "C"),
        "rounded": fragment("m64n128k16", "A"),
        "acc": fragment("m64n128k16", "C"),
        "row_sum": PARTS,
    }


def test_a_bias_lies_like_the_scores():
    buffers = {b.name: b for b in kit.after(kit.SPECS["bias"])["place_buffers"].roles[1].buffers}
    assert buffers["Bt_tile"].layout == buffers["scores"].layout != None  # noqa: E711


def test_sums_are_noted():
    notes = "\n".join(kit.after(causal(128), k=128)["place_buffers"].notes)
    assert "sQ 2 x 16,384 + sK 2 x 32,768 + sV 2 x 32,768" in notes and "= 163,976 of 232,448 bytes" in notes
    assert "scores 64 + acc 64 + rounded 32 + Q_tile 32 + rows 10 = 202 registers of 240" in notes


def test_head_dim_256_reads_queries_from_shared_memory():
    p = kit.after(causal(256), WIDE, 80)["place_buffers"]
    assert kit.complaints(p, causal(256), kit.SIZES[1]) == []
    with pytest.raises(ScheduleFault) as caught:
        kit.after(causal(256), HopperOptions(2), 80)
    assert caught.value.code == "E0812" and "= 262 registers of 240" in caught.value.note


@pytest.mark.parametrize(
    ("depth", "warpgroups", "keys", "fits"),
    [(128, 2, 144, True), (128, 2, 160, False), (64, 3, 112, True), (64, 3, 128, False), (64, 2, 192, True)],
)
def test_what_spilled_is_refused(depth, warpgroups, keys, fits):
    if fits:
        assert kit.after(causal(depth), HopperOptions(warpgroups), keys)["place_buffers"]
        return
    with pytest.raises(ScheduleFault) as caught:
        kit.after(causal(depth), HopperOptions(warpgroups), keys)
    assert caught.value.code == "E0812" and "registers" in caught.value.message


def test_too_much_shared_memory_is_refused_with_the_sum():
    with pytest.raises(ScheduleFault) as caught:
        kit.after(causal(128), HopperOptions(2, roles=Roles(stages=4)), 128)
    assert (
        caught.value.code == "E0803"
        and "sK 4 x 32,768" in caught.value.note
        and "295,112 of 232,448" in caught.value.note
    )


@pytest.mark.parametrize(("depth", "keys"), [(264, 64), (64, 40), (64, 264)])
def test_shapes_without_an_instruction_are_refused(depth, keys):
    options = HopperOptions(2, Pipeline(wait=0))
    with pytest.raises(ScheduleFault) as caught:
        kit.after(causal(depth), options, keys)
    assert caught.value.code in ("E0812", "E0811")


# ---------------------------------------------------------------------------------------------- rule REUSE


def consumer(p):
    return p.roles[1]


def test_weights_take_the_place_of_scores():
    names = {
        n: {b.name for b in consumer(p).buffers} for n, p in kit.after(kit.SPECS["causal"]).items() if len(p.roles) > 1
    }
    assert names["specialize"] - names["place_buffers"] == {"weights"}


def test_scores_that_are_read_again_stay():
    p = kit.after(kit.SPECS["causal"])["specialize"]

    def rule(s):
        """The operand made of the scores as well as of the weights."""
        if isinstance(s, Compute) and s.dst == Slot("rounded"):
            return (replace(s, value=add(Read("weights"), mul(Float(0.0), call("tanh", Read("scores"))))),)
        return None

    role = consumer(p)
    changed = p.with_(roles=(p.roles[0], replace(role, body=rewrite(role.body, rule))))
    placed = place_buffers(changed)
    assert {b.name for b in consumer(placed).buffers} >= {"scores", "weights"}
    assert [s.dst.buffer for s in statements(consumer(placed).body) if isinstance(s, Compute) and s.during] == [
        "weights"
    ] * 2


def test_a_sum_in_parts_only_where_every_step_is_linear_in_it():
    def parts(name):
        consumer = kit.after(kit.SPECS[name])["place_buffers"].roles[1]
        return [b.name for b in consumer.buffers if b.layout == PARTS]

    assert parts("causal") == parts("no mask, f16") == parts("dropout") == ["row_sum"]
    assert (
        parts("window, softcap, alibi, sink") == []
    )  # it starts as the sink's weight, which one lane of four would hold
