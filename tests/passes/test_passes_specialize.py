"""specialize: a producer and consumers that agree under every order, in the form of the hand-written program."""

from pathlib import Path

import native_kit as kit
import pytest

from tilec.dsl.faults import ScheduleFault
from tilec.ir import errors
from tilec.ir.expr import Read, Var, walk
from tilec.ir.interp import Order, adversaries
from tilec.ir.nodes import (
    Arrive,
    Await,
    Claim,
    Cluster,
    Compute,
    Copy,
    For,
    If,
    Let,
    Mma,
    Slot,
    Sync,
    Wait,
    While,
)
from tilec.ir.nodes import walk as statements
from tilec.ir.parse import parse_program
from tilec.ir.print import show_program
from tilec.native import HopperOptions
from tilec.passes.overlap import Pipeline
from tilec.passes.rings import Position
from tilec.passes.specialize import Roles, specialize, split_registers

FIXTURE = parse_program((Path(__file__).parents[1] / "ir" / "programs" / "hopper_causal_d128.tp").read_text("utf-8"))
DERIVED = kit.after(kit.FIXTURE, k=128)["place_buffers"]
BUSY = {"B": 1, "M": 257, "N": 400}  # 12 tiles, on 3 CTAs
DEAD = {"B": 1, "M": 333, "N": 200}  # rows without keys, and a tile without any


def specialized(name, warpgroups=2, pipeline=Pipeline(), **roles):  # noqa: B008
    return kit.after(kit.SPECS[name], HopperOptions(warpgroups, pipeline, Roles(**roles)))["specialize"]


# ---------------------------------------------------------------------------------------------- the hand-written program

NAMES = {"scores": "S", "rounded": "P", "acc": "O", "Q_tile": "Q"}  # ours: theirs


def named(s):
    return (NAMES.get(s.buffer, s.buffer), str(s.stage))


def skeleton(body):
    """What synchronises and what is asynchronous, in order and nested as it is; the rest left out."""
    out = []
    for s in body:
        match s:
            case Wait(bar, parity):
                out.append(("wait", bar.name, str(bar.stage), str(parity)))
            case Arrive(bar) | Sync(bar):
                out.append((type(s).__name__, bar.name, str(bar.stage)))
            case Copy():
                out.append(("copy", named(s.dst), s.tensor, s.signal.name, str(s.signal.stage)))
            case Mma():
                out.append(("mma", named(s.dst), named(s.a), named(s.b), s.accumulate, s.queue))
            case Await(queue, pending):
                out.append(("await", queue, pending))
            case Claim():
                out.append(("claim", s.name))
            case Let(name, value) if name in ("t", "it", "n"):
                out.append(("let", name, str(value)))
            case Compute() if s.during:
                out.append(("during", s.after, s.of, skeleton(s.during)))
            case Compute(Slot("slots", stage), value):
                out.append(("slots", str(stage), str(value)))
            case Compute() if any(isinstance(x, Read) and x.buffer.startswith("s") for x in walk(s.value)):
                out += [("read", named(s.dst), str(s.value))] if isinstance(s.value, Read) and s.value.stage else []
            case For() | While():
                segment = s.proof.segment if isinstance(s, For) and s.proof else None
                found = skeleton(s.body)
                out += [(type(s).__name__, segment, getattr(s, "down", None), found)] if found else []
            case If():
                out.append(("if", skeleton(s.then), skeleton(s.orelse)))
            case Cluster(kind, inner):
                out += [(kind, skeleton(inner))] if kind in ("prologue", "epilogue") else skeleton(inner)
    return out


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_derives_the_hand_written_roles(role):
    (theirs,) = (r for r in FIXTURE.roles if r.name == role)
    (ours,) = (r for r in DERIVED.roles if r.name == role)
    assert skeleton(ours.body) == skeleton(theirs.body)
    assert (ours.unit, ours.count, ours.var, ours.registers) == (
        theirs.unit,
        theirs.count,
        theirs.var,
        theirs.registers,
    )


def test_derives_the_hand_written_declarations():
    assert set(DERIVED.barriers) == set(FIXTURE.barriers)

    def shape(b):
        return b.name, b.space, b.dtype, tuple(a.name for a in b.axes), b.stages, b.layout

    assert {shape(b) for b in DERIVED.buffers} == {shape(b) for b in FIXTURE.buffers}
    assert DERIVED.grid.ctas.args[0] is Var("SMS") and DERIVED.grid.ctas.args[1] is DERIVED.grid.tiles
    assert [t.name for t in DERIVED.tensors if t.mode == "counter"] == ["counter"]


@pytest.mark.parametrize("order", adversaries(DERIVED), ids=str)
def test_adversarial_orders(order):
    for seed in range(2):
        assert kit.complaints(DERIVED, kit.FIXTURE, BUSY, seed, order, units=3) == []
    assert kit.complaints(DERIVED, kit.FIXTURE, DEAD, 3, order, units=1) == []


def test_many_seeds_give_the_same_bits():
    _, inputs, first = kit.outputs(DERIVED, kit.FIXTURE, BUSY, units=3)
    for seed in range(1, 8):
        arrays = {n: kit.np.full_like(a, kit.np.nan) for n, a in first.items()}
        kit.run(DERIVED, {**inputs, **arrays}, {**BUSY, "SMS": 3}, seed=seed)
        assert all((first[n] == arrays[n]).all() for n in first)


# ---------------------------------------------------------------------------------------------- other programs and options


@pytest.mark.parametrize("name", kit.SPECS)
def test_roles_keep_the_meaning(name):
    p = specialized(name)
    orders = adversaries(p)
    for n, sizes in enumerate((kit.SIZES[0], kit.SIZES[2])):
        assert kit.complaints(p, kit.SPECS[name], sizes, n, orders[(7 * n + len(name)) % len(orders)]) == []


OPTIONS = [
    (1, Pipeline(), {"stages": 3, "work": "static"}),
    (3, Pipeline(wait=0), {"stages": 1, "work": "one", "queries": "shared"}),
    (3, Pipeline(wait=16), {"stages": 4}),
    (2, Pipeline(lag=False), {"turns": False}),
    (2, Pipeline(lag=False), {"stages": 1, "queries": "shared", "work": "static"}),
    (2, Pipeline(), {"turns": False, "queries": "shared"}),
    (3, Pipeline(wait=0), {"queries": "shared", "query_slots": 2}),
    (1, Pipeline(), {"query_slots": 2, "work": "static"}),
]


@pytest.mark.parametrize("name", ["window", "chunks and first", "two pairs"])
@pytest.mark.parametrize(("warpgroups", "pipeline", "roles"), OPTIONS, ids=str)
def test_options_keep_the_meaning(name, warpgroups, pipeline, roles):
    p = specialized(name, warpgroups, pipeline, **roles)
    orders = (Order(), *adversaries(p))
    assert kit.complaints(p, kit.SPECS[name], kit.SQUARE, 1, orders[len(name) % len(orders)]) == []
    assert kit.complaints(p, kit.SPECS[name], kit.SIZES[1], 2, orders[warpgroups]) == []


def test_a_second_slot_of_queries_is_filled_while_the_first_is_read():
    p = specialized("causal", queries="shared", query_slots=2)
    (q,) = (b for b in p.buffers if b.name == "sQ")
    waits = {
        str(s.bar.stage): str(s.parity)
        for s in statements(p.roles[0].body)
        if isinstance(s, Wait) and s.bar.name == "q_empty"
    }
    assert q.stages == 4 and waits == {"2 * (it % 2) + half": "(it // 2 + 1) % 2"}


def test_the_producer_walks_each_part_once():
    for name, count in (("causal", 1), ("window", 1), ("window and first", 2), ("no mask, f16", 1)):
        producer = specialized(name).roles[0]
        assert sum(isinstance(s, For) and s.down for s in statements(producer.body)) == count
        assert not any(isinstance(s, Mma | Await | Sync) for s in statements(producer.body))


def test_one_tile_per_cta_needs_no_scheduler():
    p = specialized("causal", work="one")
    assert "SMS" not in p.extents and p.grid.ctas is p.grid.tiles
    assert {b.name for b in p.barriers} == {"q_full", "q_empty", "k_full", "k_empty", "v_full", "v_empty", "turn"}
    assert not any(isinstance(s, While | Claim) for r in p.roles for s in statements(r.body))


@pytest.mark.parametrize(("one", "other"), [("n", "t"), ("it", "half"), ("wg", "tiles_"), ("slots", "counter")])
def test_names_of_the_spec_stay_free(one, other):
    text = kit.kernel(kit.CAUSAL, h=f"{one} : 2, {other} : 1", query=f"Q[b, q, {one}, {other}, d]",
                      key=f"K[b, k, {one}, d]", value=f"V[b, k, {one}, d] : bf16",
                      output=f"O[b, q, {one}, {other}, d]", lse="", **kit.SMALL)  # fmt: skip
    p = kit.after(text)["place_buffers"]
    assert kit.complaints(p, text, kit.SIZES[0]) == []


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_registers_add_up(consumers):
    few, many = split_registers(consumers)
    assert few + consumers * many <= {1: 512, 2: 504, 3: 512}[consumers]


@pytest.mark.parametrize("asked", [(32, 240), (24, 248), (24, 236), (16, 240)])
def test_registers_that_do_not_add_up(asked):
    with pytest.raises(ScheduleFault) as caught:
        split_registers(2, asked)
    assert caught.value.code == "E0808" and "504" in caught.value.note


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (kit.kernel(kit.CAUSAL, dtype="f32", **kit.SMALL), "`Q` is f32"),
        (kit.kernel(k="k : N lengths ln", tails=("", "paged bt[b, k // 12]", ""), **kit.SMALL), "`K` is no box"),
    ],
)
def test_what_is_not_copied_as_boxes_is_refused(text, says):
    with pytest.raises(ScheduleFault) as caught:
        kit.after(text)
    assert caught.value.code == "E0811" and says in caught.value.message


def test_counts_out_of_range():
    for warpgroups, roles in ((2, {"stages": 0}), (2, {"stages": 9}), (4, {}), (2, {"registers": (40, 240)})):
        with pytest.raises(ScheduleFault) as caught:
            specialized("causal", warpgroups, **roles)
        assert caught.value.code == "E0808"


def test_only_the_one_role_form():
    with pytest.raises(ValueError):
        specialize(specialized("causal"))
    with pytest.raises(ValueError, match="rows split"):
        specialize(kit.sequential(kit.SPECS["causal"]))


def test_rings_that_drift_apart_are_not_counted():
    where = Position(Var("n"), leader=None, lags={"sV": -1})
    with pytest.raises(ValueError, match="drift"):
        where.stays({})


# ---------------------------------------------------------------------------------------------- mistakes

STUCK, FILL = (errors.Deadlock,), (errors.DoubleFill,)
EARLY = (errors.OverArrival, errors.Race, errors.Undefined)
MISTAKES = {
    "K is never released": ("arrive k_empty[n % 2]", "priority 0", STUCK),
    "V is never released": ("arrive v_empty[(n - 1) % 2]", "priority 0", STUCK),
    "Q is released before it is read": ("wait q_full[wg] parity it % 2", "arrive q_empty[wg]", EARLY),
    "values of the step itself": ("rounded . sV[(n - 1) % 2]", "rounded . sV[n % 2]", EARLY),
    "K by the parity of the filler": ("parity n // 2 % 2", "parity (n // 2 + 1) % 2", EARLY + STUCK),
    "the first turn is kept": ("if wg == 1", "if wg == 2", STUCK),
    "turns are not passed on": ("arrive turn[1 - wg]", "priority 0", STUCK),
    "one slot of K": ("sK[n % 2]", "sK[0]", FILL),
    "the next tile is read early": ("wait slot_full[(it - 1) % 2] parity (it - 1) // 2 % 2", "priority 0", EARLY),
    "slots count from the first tile": ("(it - 1)", "it", STUCK),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name):
    old, new, expected = MISTAKES[name]
    text = show_program(specialized("causal"))
    assert old in text
    p = parse_program(text.replace(old, new))
    sizes = kit.SIZES[1] if "early" in name else {"B": 1, "M": 400, "N": 400}  # keyless tiles run ahead
    for seed in range(2):
        with pytest.raises(expected):
            kit.complaints(p, kit.SPECS["causal"], sizes, seed, units=1)
