"""Scalar instructions and program control, against Python's integers."""

import pytest
from lane_kit import Lane, program

A, B = 0x9234_5678, 0x0FED_CBA9
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
WIDE, OTHER = 0x8000_0001_F000_000F, 0x0123_4567_89AB_CDEF


def signed(x, n=32):
    return x - (1 << n) if x >> (n - 1) else x


# text with s1 = A, s2 = B, s[4:5] = WIDE, s[6:7] = OTHER: s0 (s[0:1] of 64 bits) and SCC after (None: as it was)
CASES = {
    "s_add_u32 s0, s1, s2": ((A + B) & M32, int(A + B > M32)),
    "s_sub_u32 s0, s2, s1": ((B - A) & M32, 1),
    "s_addc_u32 s0, s1, s2": ((A + B + 1) & M32, int(A + B + 1 > M32)),
    "s_subb_u32 s0, s1, s2": (A - B - 1, 0),
    "s_add_i32 s0, s1, s1": (2 * A & M32, 1),
    "s_mul_i32 s0, s1, s2": (A * B & M32, None),
    "s_mul_hi_u32 s0, s1, s2": (A * B >> 32, None),
    "s_mul_hi_i32 s0, s1, s2": (signed(A) * B >> 32 & M32, None),
    "s_min_i32 s0, s1, s2": (A, 1),
    "s_max_u32 s0, s2, s1": (A, 0),
    "s_abs_i32 s0, s1": (-signed(A), 1),
    "s_and_b64 s[0:1], s[4:5], s[6:7]": (WIDE & OTHER, 1),
    "s_andn2_b64 s[0:1], s[4:5], s[6:7]": (WIDE & ~OTHER, 1),
    "s_xor_b32 s0, s1, s1": (0, 0),
    "s_not_b32 s0, s1": (~A & M32, 1),
    "s_lshl_b64 s[0:1], s[4:5], 4": (WIDE << 4 & M64, 1),
    "s_lshr_b32 s0, s1, 33": (A >> 1, 1),
    "s_ashr_i32 s0, s1, 4": (signed(A) >> 4 & M32, 1),
    "s_lshl2_add_u32 s0, s1, s2": ((A * 4 + B) & M32, 1),
    "s_bfe_u32 s0, s1, 0x80004": (A >> 4 & 0xFF, 1),
    "s_bfe_i32 s0, s1, 0x4001c": (signed(A >> 28, 4) & M32, 1),
    "s_bfe_i64 s[0:1], s[4:5], 0x100000": (0x000F, 1),
    "s_bitset1_b32 s0, 31": (0x8000_0000, None),
    "s_sext_i32_i16 s0, 0x8001": (0xFFFF_8001, None),
    "s_bcnt1_i32_b64 s0, s[4:5]": (WIDE.bit_count(), 1),
    "s_ff1_i32_b32 s0, s1": (3, None),
    "s_flbit_i32_b32 s0, s2": (4, None),
    "s_brev_b32 s0, 1": (0x8000_0000, None),
    "s_pack_ll_b32_b16 s0, s1, s2": (0xCBA9_5678, None),
    "s_movk_i32 s0, 0xffff": (M32, None),
    "s_cselect_b32 s0, s1, s2": (A, None),
    "s_mov_b64 s[0:1], -1": (M64, None),
    "s_mov_b32 s0, 1.0": (0x3F80_0000, None),
}


@pytest.mark.parametrize("text", CASES)
def test_arithmetic(text):
    lane = Lane()
    w = lane.wave
    w.put64(0, 0)
    w.s[1:3] = [A, B]
    if "s[0:1]" in text:
        w.s[0:3] = [0, 0, B]
    w.put64(4, WIDE)
    w.put64(6, OTHER)
    w.scc = 1
    lane.run(text)
    value, scc = CASES[text]
    got = w.get64(0) if "s[0:1]" in text else w.s[0]
    assert (got, w.scc) == (value, 1 if scc is None else scc)


COMPARISONS = {
    "s_cmp_lt_i32 s1, s2": 1,
    "s_cmp_lt_u32 s1, s2": 0,
    "s_cmp_eq_u64 s[4:5], s[4:5]": 1,
    "s_cmpk_gt_i32 s2, 0xffff": 1,
    "s_cmpk_lg_u32 s2, 0xcba9": 1,
    "s_bitcmp1_b32 s1, 31": 1,
}


@pytest.mark.parametrize("text", COMPARISONS)
def test_comparison(text):
    lane = Lane()
    lane.wave.s[1:3] = [A, B]
    lane.wave.put64(4, WIDE)
    assert lane.run(text).wave.scc == COMPARISONS[text]


def test_exec_is_saved_and_masked():
    lane = Lane().set(vcc=0xF0)
    lane.wave.set_exec(0x3C)
    lane.run("s_and_saveexec_b64 s[2:3], vcc")
    assert (lane.wave.get64(2), lane.wave.exec_mask, lane.wave.scc) == (0x3C, 0x30, 1)
    lane.run("s_or_b64 exec, exec, s[2:3]")
    assert (lane.wave.exec_mask, lane.wave.lanes.sum()) == (0x3C, 4)


def test_a_loop_runs_as_often_as_it_counts():
    group, log = program(
        "s_mov_b32 s0, 5",
        "s_mov_b32 s1, 0",
        "s_add_u32 s1, s1, s0",
        "s_sub_u32 s0, s0, 1",
        "s_cmp_lg_u32 s0, 0",
        "s_cbranch_scc1 65532",
        "s_endpgm",
    )
    assert (group.waves[0].s[1], log.executed, log.findings) == (15, 2 + 5 * 4 + 1, {})


def test_scalar_loads_and_program_counter():
    import numpy as np

    from tilec.targets.gfx942.emulator.memory import Memory

    memory = Memory()
    base = memory.place("table", np.arange(8, dtype=np.uint32) * 11)

    def set_up(w):
        w.put64(2, base)

    lines = "s_load_dwordx4 s[4:7], s[2:3], 0x8", "s_getpc_b64 s[8:9]", "s_waitcnt lgkmcnt(0)", "s_endpgm"
    group, log = program(*lines, memory=memory, set_up=set_up)
    assert (group.waves[0].s[4:8], group.waves[0].s[8], log.findings) == ([22, 33, 44, 55], 8, {})
