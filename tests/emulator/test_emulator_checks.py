"""Each check on a short program that it must accept, and on the mutant of it that it must not."""

import numpy as np
import pytest
from lane_kit import found, program

from tilec.targets.gfx942.emulator.memory import Memory

L = np.arange(64)


def memory_of():
    memory = Memory()
    return memory, memory.place("data", np.arange(256, dtype=np.uint32))


def run(lines, **options):
    """Findings of lines (or a text of lines) with s[4:7] a resource over `data`, v1 = 4 * lane and v2 = 4 * thread."""
    memory, base = memory_of()

    def set_up(w):
        w.put64(4, base)
        w.s[6:8] = [1024, 0x20000]
        w.u[1][...] = L * 4
        w.u[2][...] = L * 4 + 256 * w.number

    lines = [x.strip() for x in lines.strip().splitlines()] if isinstance(lines, str) else lines
    _, log = program(*lines, memory=memory, set_up=set_up, lds=4096, **options)
    return found(log)


def drop(lines, text, by="s_nop 0"):
    out = [x.strip() for x in lines.strip().splitlines()]
    assert out.count(text) == 1
    return [by if x == text else x for x in out]


WAITS = """
global_load_dword v3, v1, s[4:5]
global_load_dword v4, v1, s[4:5] offset:4
s_load_dword s8, s[4:5], 0x0
ds_write_b32 v1, v1
ds_read_b32 v5, v1
s_waitcnt vmcnt(1)
v_add_u32_e32 v6, v3, v3
s_waitcnt lgkmcnt(0)
v_add_u32_e32 v6, s8, v5
s_waitcnt vmcnt(0)
v_mov_b32_e32 v4, 0
s_endpgm
"""


def test_waits():
    assert run(WAITS) == []
    assert run(drop(WAITS, "s_waitcnt vmcnt(1)", "s_waitcnt vmcnt(2)")) == [("wait", "v_add_u32_e32 v6, v3, v3")]
    assert run(drop(WAITS, "s_waitcnt vmcnt(0)")) == [("wait", "v_mov_b32_e32 v4, 0")]
    late = run(drop(WAITS, "s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(1)"))
    assert late == [("wait", "v_add_u32_e32 v6, s8, v5")], "a scalar load under way: no count but 0 says anything"


def test_a_count_lets_later_lds_reads_stay_under_way():
    lines = """
    ds_write_b32 v1, v1
    ds_read_b32 v3, v1
    ds_read_b32 v4, v1
    s_waitcnt lgkmcnt(1)
    v_mov_b32_e32 v5, v3
    s_endpgm
    """
    assert run(lines) == []
    assert run(drop(lines, "v_mov_b32_e32 v5, v3", "v_mov_b32_e32 v5, v4")) == [("wait", "v_mov_b32_e32 v5, v4")]


EXCHANGE = """
ds_write_b32 v2, v2
s_waitcnt lgkmcnt(0)
s_barrier
v_xor_b32_e32 v3, 0x100, v2
ds_read_b32 v4, v3
s_waitcnt lgkmcnt(0)
s_barrier
ds_write_b32 v2, v4
s_endpgm
"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_races(seed):
    several = {"waves": 2, "seed": seed}
    assert run(EXCHANGE, **several) == []
    lines = [x.strip() for x in EXCHANGE.strip().splitlines()]
    first = [x if n != 2 else "s_nop 0" for n, x in enumerate(lines)]
    assert {k for k, _ in run(first, **several)} == {"race"}, "read after write"
    second = [x if n != 6 else "s_nop 0" for n, x in enumerate(lines)]
    assert {k for k, _ in run(second, **several)} == {"race"}, "write after read"
    unwaited = [x if n != 1 else "s_nop 0" for n, x in enumerate(lines)]
    assert {k for k, _ in run(unwaited, **several)} == {"race"}, "a write still under way at the barrier"
    early = [*lines[:5], "s_barrier", "ds_write_b32 v2, v2", "s_waitcnt lgkmcnt(0)", "s_endpgm"]
    assert {k for k, _ in run(early, **several)} == {"race"}, "a read still under way at the barrier"


def test_writes_of_the_same_value_are_no_race_and_of_others_are():
    same = ["ds_write_b32 v1, v1", "s_waitcnt lgkmcnt(0)", "s_barrier", "ds_read_b32 v3, v1", "s_endpgm"]
    assert run(same, waves=2) == []
    assert {k for k, _ in run(["ds_write_b32 v1, v2", *same[1:]], waves=2)} == {"race"}


def test_halves_of_a_dword_belong_to_two_waves():
    lines = ["v_mov_b32_e32 v3, s12", "v_lshl_add_u32 v3, v3, 1, v1", "ds_write_b16 v3, v1", "s_endpgm"]
    memory, _ = memory_of()

    def set_up(w):
        w.s[12] = w.number
        w.u[1][...] = L * 4

    _, log = program(*lines, memory=memory, set_up=set_up, lds=4096, waves=2)
    assert found(log) == []


DMA = """
s_lshl_b32 s9, s8, 8
s_mov_b32 m0, s9
s_nop 0
buffer_load_dword v1, s[4:7], 0 offen lds
s_waitcnt vmcnt(0)
s_barrier
v_xor_b32_e32 v3, 0x100, v2
ds_read_b32 v4, v3
s_waitcnt lgkmcnt(0)
s_endpgm
"""


def dma(lines):
    memory, base = memory_of()

    def set_up(w):
        w.put64(4, base)
        w.s[6:9] = [1024, 0x20000, w.number]
        w.u[1][...] = L * 4
        w.u[2][...] = L * 4 + 256 * w.number

    lines = [x.strip() for x in lines.strip().splitlines()] if isinstance(lines, str) else lines
    _, log = program(*lines, memory=memory, set_up=set_up, lds=4096, waves=2)
    return {k for k, _ in found(log)}


def test_dma_reads_m0_a_wait_state_after_it_was_written():
    assert dma(drop(DMA, "s_nop 0", "s_mov_b32 s10, 0")) == set(), "any instruction will do"
    lines = [x.strip() for x in DMA.strip().splitlines()]
    assert dma([x for x in lines if x != "s_nop 0"]) == {"hazard"}


def test_dma_needs_its_own_waves_wait_and_then_a_barrier():
    assert dma(DMA) == set()
    assert dma(drop(DMA, "s_waitcnt vmcnt(0)")) == {"race"}
    assert dma(drop(DMA, "s_barrier")) == {"race"}
    alone = drop(DMA, "v_xor_b32_e32 v3, 0x100, v2", "v_mov_b32_e32 v3, v2")
    assert dma(alone) == set()
    assert dma(["s_nop 0" if x == "s_waitcnt vmcnt(0)" else x for x in alone]) == {"race"}
    overtaken = """
    ds_write_b32 v2, v1
    ds_read_b32 v4, v2
    s_lshl_b32 s9, s8, 8
    s_mov_b32 m0, s9
    s_waitcnt lgkmcnt(0)
    buffer_load_dword v1, s[4:7], 0 offen lds
    s_endpgm
    """
    assert dma(overtaken) == set()
    assert dma(drop(overtaken, "s_waitcnt lgkmcnt(0)")) == {"race"}


def test_barrier_counts():
    lines = ["s_cmp_eq_u32 s8, 0", "s_cbranch_scc1 1", "s_barrier", "s_barrier", "s_endpgm"]

    def launch(texts):
        def set_up(w):
            w.s[8] = w.number

        return found(program(*texts, waves=2, set_up=set_up)[1])

    assert launch(lines) == [("barrier", "s_barrier")]
    offset = [*lines[:4], "s_cmp_lg_u32 s8, 0", "s_cbranch_scc1 1", "s_barrier", "s_endpgm"]
    assert launch(offset) == [], "one barrier more at the start of one wave, and at the end of the other"


MATRIX = """
v_mfma_f32_32x32x8_bf16 v[16:31], v[8:9], v[10:11], 0
s_nop 9
s_nop 0
v_add_f32_e32 v3, v16, v16
v_mov_b32_e32 v8, v3
s_nop 1
v_mfma_f32_16x16x16_bf16 v[16:19], v[8:9], v[10:11], v[32:35]
v_mfma_f32_16x16x16_bf16 v[16:19], v[8:9], v[10:11], v[16:19]
s_nop 6
ds_write_b128 v1, v[16:19]
v_exp_f32_e32 v3, v4
s_nop 0
v_add_f32_e32 v3, v3, v3
v_cmp_lt_f32_e32 vcc, v3, v4
s_nop 1
v_cndmask_b32_e32 v3, v3, v4, vcc
s_endpgm
"""
SHORT = {  # what to change, and the instruction that comes too early
    ("s_nop 9", "s_nop 8"): "v_add_f32_e32 v3, v16, v16",
    ("s_nop 6", "s_nop 5"): "ds_write_b128 v1, v[16:19]",
    ("v_mov_b32_e32 v8, v3", "v_mov_b32_e32 v35, v3"): None,
    (
        "v_mfma_f32_16x16x16_bf16 v[16:19], v[8:9], v[10:11], v[16:19]",
        "v_mfma_f32_16x16x16_bf16 v[18:21], v[8:9], v[10:11], v[18:21]",
    ): ("v_mfma_f32_16x16x16_bf16 v[18:21], v[8:9], v[10:11], v[18:21]"),
    ("v_exp_f32_e32 v3, v4", "v_readfirstlane_b32 s0, v4"): None,
}


@pytest.mark.parametrize("change", SHORT, ids=lambda c: c[1])
def test_wait_states(change):
    assert run(MATRIX) == []
    late = SHORT[change]
    got = run(drop(MATRIX, *change))
    assert got == ([] if late is None else [("hazard", late)])


NEIGHBOURS = {
    "v_mov_b32_e32 v8, v3; v_mfma_f32_16x16x16_bf16 v[16:19], v[8:9], v[10:11], 0": "written just before a product",
    "v_exp_f32_e32 v3, v4; v_add_f32_e32 v3, v3, v3": "a transcendental",
    "v_cmp_lt_f32_e32 vcc, v3, v4; v_cndmask_b32_e32 v3, v3, v4, vcc": "a mask",
    "v_readfirstlane_b32 s4, v4; s_nop 3; global_load_dword v3, v1, s[4:5]": "a base address",
    "v_readfirstlane_b32 s9, v4; s_nop 2; v_readlane_b32 s10, v4, s9": "a lane number",
    "v_mov_b32_e32 v3, v4; v_mov_b32_dpp v5, v3 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": "a permutation",
    "v_mfma_f32_32x32x8_bf16 v[16:31], v[8:9], v[10:11], v[32:47]; s_nop 5; v_mov_b32_e32 v33, 0": "C overwritten",
}


@pytest.mark.parametrize("lines", NEIGHBOURS, ids=NEIGHBOURS.values())
def test_wait_states_between_neighbours(lines):
    *before, last = lines.split("; ")

    def hazards(texts):
        return [x for x in run([*texts, "s_endpgm"]) if x[0] == "hazard"]

    assert hazards([*before, last]) == [("hazard", last)]
    assert hazards([*before, "s_nop 1", last]) == []


def test_a_later_result_stands_before_an_earlier_one():
    first = "v_mfma_f32_32x32x8_bf16 v[16:31], v[8:9], v[10:11], v[16:31]"
    second = "v_mfma_f32_32x32x8_bf16 v[14:29], v[8:9], v[10:11], v[32:47]"
    same = "v_mfma_f32_32x32x8_bf16 v[14:29], v[8:9], v[10:11], v[14:29]"
    overlapping = "v_mfma_f32_32x32x8_bf16 v[18:33], v[8:9], v[10:11], v[18:33]"
    assert run([first, second, same, "s_endpgm"]) == [], "v16 to v29 are the second's, and the same C"
    assert run([first, overlapping, "s_endpgm"]) == [("hazard", overlapping)]
    assert run([first, "s_nop 8", overlapping, "s_endpgm"]) == []


def test_products_of_singles_have_rules_of_their_own():
    product = "v_mfma_f32_16x16x4_f32 v[16:19], v8, v10, v[16:19]"
    read, overwrite = "v_mov_b32_e32 v3, v16", "v_mov_b32_e32 v35, v3"
    assert run([product, "s_nop 9", read, "s_endpgm"]) == []
    assert run([product, "s_nop 8", read, "s_endpgm"]) == [("hazard", read)]
    other = "v_mfma_f32_16x16x4_f32 v[16:19], v8, v10, v[32:35]"
    assert run([other, overwrite, "s_endpgm"]) == []


def undefined(lines, say=found, **options):
    memory, base = memory_of()

    def set_up(w):
        from tilec.targets.gfx942.emulator.definedness import set_bits, set_lanes

        w.put64(4, base)
        w.u[1][...] = L * 4
        set_lanes(w, 1, 0)
        for n in (4, 5, 126, 127):
            set_bits(w, n, 0)

    _, log = program(*lines, "s_endpgm", memory=memory, set_up=set_up, lds=4096, known=False, **options)
    return say(log)


def test_undefined_values_may_travel_but_not_arrive():
    fine = ["v_add_u32_e32 v3, v2, v2", "v_mov_b32_e32 v3, 5", "global_store_dword v1, v3, s[4:5]"]
    assert undefined(fine) == []
    bad = ["v_mov_b32_e32 v3, v2", "v_add_u32_e32 v3, 1, v3", "global_store_dword v1, v3, s[4:5]"]
    assert undefined(bad) == [("undefined", bad[-1])]
    assert undefined(["global_load_dword v3, v2, s[4:5]"])[0][0] == "undefined"
    assert undefined(["s_cmp_eq_u32 s8, 0", "s_cbranch_scc1 0"]) == [("undefined", "s_cbranch_scc1 0")]
    assert undefined(["v_cmp_eq_u32_e32 vcc, v2, v1", "s_cbranch_vccz 0"]) == [("undefined", "s_cbranch_vccz 0")]


def test_undefined_lanes_are_told_from_defined_ones():
    some = "s_mov_b64 exec, 0xff", "v_mov_b32_e32 v3, 5"
    store = "global_store_dword v1, v3, s[4:5]"
    assert undefined([*some, store]) == []
    assert undefined([*some, "s_mov_b64 exec, -1", store]) == [("undefined", store)]
    chosen = ["s_mov_b64 exec, -1", "s_mov_b64 vcc, 0xff", "v_cndmask_b32_e32 v3, 1.0, v3, vcc", store]
    assert undefined([*some, *chosen]) == []
    masked = ["s_mov_b64 exec, -1", "v_cmp_eq_u32_e32 vcc, 5, v3", "s_and_b64 vcc, vcc, 0xff", "s_cbranch_vccz 0"]
    assert undefined([*some, *masked]) == []
    product = "v_mfma_f32_16x16x16_bf16 v[4:7], v[2:3], v[2:3], 0"
    stored = "global_store_dword v1, v4, s[4:5]"
    assert undefined([*some, "s_nop 1", product, "s_nop 15", stored]) == [("undefined", stored)]


HALVES = {  # v4 is defined, v5 is not: what writes v6 and v7, and the half that is defined
    "v_mad_u64_u32 v[6:7], s[10:11], v1, v1, v[4:5]": "v6",
    "v_lshl_add_u64 v[6:7], v[4:5], 1, v[4:5]": "v6",
    "v_lshlrev_b64 v[6:7], 2, v[4:5]": "v6",
    "v_lshrrev_b64 v[6:7], 2, v[4:5]": None,
    "v_lshrrev_b64 v[6:7], 2, v[3:4]": "v7",
    "v_ashrrev_i64 v[6:7], 2, v[3:4]": "v7",
    "v_mov_b64_e32 v[6:7], v[4:5]": "v6",
    "v_mad_u64_u32 v[6:7], s[10:11], v2, v1, v[4:5]": None,
    "v_mad_u64_u32 v[6:7], s[10:11], v1, s8, v[4:5]": None,
    "v_mad_u64_u32 v[6:7], s[10:11], v1, v1, v[2:3]": None,
}


@pytest.mark.parametrize("line", HALVES)
def test_halves_that_depend_on_what_is_undefined(line):
    for half in ("v6", "v7"):
        store = f"global_store_dword v1, {half}, s[4:5]"
        want = [] if HALVES[line] == half else [("undefined", store)]
        assert undefined(["v_mov_b32_e32 v4, 5", line, store]) == want


def test_a_shift_of_scalars_moves_what_is_undefined():
    define, branch = "s_mov_b32 s8, 3", ["s_cmp_eq_u32 s10, 0", "s_cbranch_scc1 0"]
    assert undefined([define, "s_lshl_b64 s[10:11], s[8:9], 2", *branch]) == []
    assert undefined([define, "s_lshr_b64 s[10:11], s[8:9], 2", *branch]) == [("undefined", branch[1])]


def test_a_finding_names_the_first_read_of_the_value_that_arrived():
    harmless, first, store = "v_add_u32_e32 v3, v2, v2", "v_add_u32_e32 v6, 1, v5", "global_store_dword v1, v7, s[4:5]"
    lines = [harmless, first, "v_mov_b32_e32 v7, v6", store]
    (message,) = undefined(lines, say=lambda log: [f.message for f in log.findings.values()])
    assert first in message and harmless not in message


def test_lds_that_nobody_wrote():
    write, read = "ds_write_b32 v1, v1", "ds_read_b32 v3, v1 offset:4"
    wait, store = "s_waitcnt lgkmcnt(0)", "global_store_dword v1, v3, s[4:5]"
    assert undefined([write, "ds_read_b32 v3, v1", wait, store]) == []
    assert undefined([write, read, wait, store]) == [("undefined", store)], (
        "the last lane reads behind what was written"
    )
    assert undefined([write, read, wait, "s_mov_b64 exec, 0xff", store]) == []


def test_bounds():
    assert run(["global_load_dword v3, v1, s[4:5] offset:1024", "s_endpgm"])[0][0] == "bounds"
    assert run(["ds_read_b32 v3, v1 offset:4000", "s_endpgm"])[0][0] == "bounds"
    assert run(["s_load_dwordx4 s[8:11], s[4:5], 0x3f8", "s_endpgm"])[0][0] == "bounds"
    assert (
        run(["s_mov_b32 m0, 0xff0", "s_nop 0", "buffer_load_dword v1, s[4:7], 0 offen lds", "s_endpgm"])[0][0]
        == "bounds"
    )


def test_an_endless_loop_is_found():
    assert run(["s_branch 65535", "s_endpgm"], limit=100) == [("runaway", "s_branch 65535")]
