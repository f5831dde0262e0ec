"""Who waits for whom: small programs whose times can be added up by hand, and derived Hopper programs."""

import xml.etree.ElementTree as xml
from itertools import pairwise

import native_kit as kit
import pytest
from feature_specs import kernel

from tilec.costs import HANDOFF, L2, LATENCY, Costs
from tilec.frontend import read_text
from tilec.ir.axes import buffer_lanes
from tilec.ir.nodes import Compute, Mma, walk
from tilec.ir.parse import parse_program
from tilec.native import HopperOptions, lower_native
from tilec.passes.specialize import Roles
from tilec.targets import target
from tilec.timeline import timeline
from tilec.timeline_show import as_svg, as_text, inside, legend, window

SM90 = target("sm90")
SIZES = {"B": 1, "M": 2048, "N": 2048}
MATRIX = 2 * 64 * 128 * 128 / 4096  # clocks of one product of a warpgroup
TILE = 128 * 128 * 2 * SM90.units / L2  # clocks of a tile of keys

PIPE = """program p on sm90
tile TK = 128
extent N, SMS
tensor K : in bf16[N, 128]
grid tiles 1 ctas 1 order linear
shared sK : bf16[k = TK, d = 128] stages STAGES layout swizzle(bytes = 128, major = d)
barrier full : mbarrier arrivals 1 stages STAGES tx
barrier empty : mbarrier arrivals 1 stages STAGES
role producer : 1 warp registers 24
  for n in 0 .. 6
    wait empty[n % STAGES] parity (n // STAGES + 1) % 2
    copy sK[n % STAGES] = K[n * TK + iota(k), iota(d)] signal full[n % STAGES]
role consumer : 1 warpgroup registers 240
  register Q : bf16[q = 64, d = 128]
  register S : f32[q = 64, k = TK]
  for n in 0 .. 6
    wait full[n % STAGES] parity n // STAGES % 2
    mma S = Q . sK[n % STAGES] queue wgmma
    await wgmma pending 0
    arrive empty[n % STAGES]
"""


def drawn(text=kit.FIXTURE, steps=12, **sizes):
    program = lower_native(read_text(text).kernels[0], "sm90")
    return timeline(program, SM90, {**SIZES, **sizes}, steps)


def pipe(stages):
    return timeline(parse_program(PIPE.replace("STAGES", str(stages))), SM90, {"N": 768})


def test_one_stage_leaves_no_overlap_and_more_hide_the_latency():
    one = pipe(1)
    products = [s for s in one.spans if s.lane == "matrix"]
    copies = [s for s in one.spans if s.lane == "memory"]
    assert len(products) == len(copies) == 6
    assert all(s.end - s.start == pytest.approx(MATRIX) for s in products)
    assert all(s.end - s.start == pytest.approx(TILE) for s in copies)
    for copy, product in zip(copies, products, strict=True):  # a wait that was blocked, and an issue
        assert product.start - copy.end == pytest.approx(LATENCY + 2 * HANDOFF)
    for product, copy in zip(products, copies[1:], strict=False):
        assert copy.start - product.end == pytest.approx(2 * HANDOFF)
    ends = [pipe(n).end for n in (1, 2, 4)]
    assert ends[0] > 1.4 * ends[1] > 1.4 * ends[2]


def test_a_wait_that_nobody_ends_is_found():
    stuck = parse_program(PIPE.replace("STAGES", "2").replace("    arrive empty[n % 2]\n", ""))
    with pytest.raises(ValueError, match="no role of the block"):
        timeline(stuck, SM90, {"N": 768})


def test_warpgroups_in_turn_keep_the_matrix_pipes_busy():
    t = drawn()
    assert t.lanes == ("memory", "producer", "consumer 0", "consumer 1", "matrix")
    assert t.busy("matrix", t.marks[6]) > 0.95
    assert t.period == pytest.approx(4 * MATRIX, rel=0.05)  # two products of two warpgroups
    alone = timeline(
        kit.after(kit.FIXTURE, HopperOptions(1, roles=Roles(turns=False)), 128)["place_buffers"], SM90, SIZES, 12
    )
    assert alone.busy("matrix", alone.marks[6]) < 0.8


def test_resources_do_one_thing_at_a_time_and_instances_too():
    t = drawn()
    for lane in t.lanes:
        spans = sorted((s for s in t.spans if s.lane == lane), key=lambda s: s.start)
        assert spans and all(s.start < s.end <= t.end for s in spans)
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(spans)), lane


@pytest.mark.parametrize("d", [64, 256])
def test_other_shapes_are_drawn(d):
    t = drawn(kernel("mask k <= q", d=f"d : {d}", scale="scale 1 / 16", schedule=""))
    assert len(t.marks) == 13 and t.period > 0


def test_a_program_that_ends_early_is_drawn_whole():
    t = drawn(M=64, N=64)
    assert window(t).start == 0 and window(t).end == t.end
    assert legend(t)[0].startswith("0 key steps")


def test_times_that_depend_on_tensors_are_refused():
    text = kernel("mask k <= q", q="q : M packed cu", k="k : N packed cu", d="d : 64", scale="scale 1", schedule="")
    with pytest.raises(ValueError, match="which only a call knows"):
        drawn(text)


def test_elements_are_counted_once():
    program = lower_native(read_text(kit.FIXTURE).kernels[0], "sm90")
    role = next(r for r in program.roles if r.name == "consumer")
    lanes = buffer_lanes((*program.buffers, *role.buffers), dict(program.tile))
    costs = Costs(SM90, lanes, {b.name: b.dtype for b in (*program.buffers, *role.buffers)})
    steps = [s for s in walk(role.body) if isinstance(s, Compute) and s.during]
    (work,) = {costs.work(s) for s in steps if "new_max" in str(s.value)}
    assert work.special == 64 * 128 / 16  # one exponential for each element
    assert work.vector == (64 * 128 + 64) / 128  # its multiply-add; the row's product
    assert {costs.matrix(s) for s in walk(role.body) if isinstance(s, Mma)} == {MATRIX}


def test_it_is_drawn_as_text_and_as_svg():
    t = drawn()
    lines = as_text(t)
    assert [x.split()[0] for x in lines[:5]] == ["memory", "producer", "consumer", "consumer", "matrix"]
    assert lines[4].count("M") > 90 and lines[-1].count("^") == 3
    assert "#" in lines[2] and "." in lines[2]
    picture = xml.fromstring(as_svg(t, "a < b"))
    bars = [r for r in picture.iter() if r.tag.endswith("rect") and len(r)]
    assert len(bars) == sum(len(inside(t, lane, window(t))) for lane in t.lanes) > 30
    assert any("copy sK" in bar[0].text for bar in bars)


def test_a_cluster_is_refused():
    text = kit.FIXTURE + "\nschedule f on sm90 { cluster 2 }"
    read = read_text(text)
    program = lower_native(read.kernels[0], "sm90", read.schedule("f", "sm90"))
    with pytest.raises(ValueError, match="wait for each other"):
        timeline(program, SM90, SIZES)
