"""What crosses lanes: comparisons to masks, selection, permutations, single lanes."""

import numpy as np
import pytest
from lane_kit import Lane

RNG = np.random.default_rng(2)
A = RNG.integers(0, 2**32, 64, dtype=np.uint32)
L = np.arange(64)


def mask(lanes):
    return sum(1 << n for n, on in enumerate(lanes) if on)


def test_comparisons_write_the_active_lanes():
    x = np.array([1, -1, np.nan, 0] * 16, np.float32)
    lane = Lane().set(v1=x, v2=np.zeros(64, np.float32)).exec(L < 32)
    for condition, want in {
        "lt": x < 0,
        "nlt": ~(x < 0),
        "o": x == x,
        "u": x != x,
        "neq": ~(x == 0),
        "lg": (x < 0) | (x > 0),
    }.items():
        lane.run(f"v_cmp_{condition}_f32_e32 vcc, v1, v2")
        assert lane.wave.get64(106) == mask(want & (L < 32)), condition
    lane.set(v1=A).run("v_cmp_gt_i32_e64 s[8:9], 0, v1")
    assert lane.wave.get64(8) == mask((A.view(np.int32) < 0) & (L < 32))
    lane.run("v_cmpx_gt_i32_e64 s[2:3], 0, v1")
    assert lane.wave.exec_mask == mask((A.view(np.int32) < 0) & (L < 32))


def test_classes():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.5, -2.0, 1e-45] * 8, np.float32)
    lane = Lane().set(v1=x).run("v_cmp_class_f32_e64 s[0:1], v1, 0x204")
    assert lane.wave.get64(0) == mask(np.isinf(x))


def test_selection():
    lane = Lane().set(v1=A, v2=~A, vcc=mask(L % 5 == 0)).run("v_cndmask_b32_e32 v0, v1, v2, vcc")
    assert (lane.vector(0) == np.where(L % 5 == 0, ~A, A)).all()
    lane.set(v3=np.full(64, 2, np.float32)).run("v_cndmask_b32_e64 v0, 1.0, -v3, vcc")
    assert (lane.vector(0, np.float32) == np.where(L % 5 == 0, -2, 1)).all()


def test_single_lanes():
    lane = Lane().set(v1=A, s3=9).exec(L >= 5).run("v_readfirstlane_b32 s0, v1", "v_readlane_b32 s1, v1, s3")
    assert lane.wave.s[:2] == [A[5], A[9]]
    lane.run("v_writelane_b32 v1, s3, 2")
    assert lane.vector(1)[2] == 9 and lane.vector(1)[1] == A[1]


def test_count_of_lanes_below():
    lane = Lane().run("v_mbcnt_lo_u32_b32 v0, -1, 0", "v_mbcnt_hi_u32_b32 v0, -1, v0")
    assert lane.vector(0).tolist() == L.tolist()
    lane.set(s0=0x55555555).run("v_mbcnt_lo_u32_b32 v0, s0, 3")
    assert lane.vector(0)[10] == 3 + 5


PERMUTED = {  # lane read by each lane, or -1 where there is none
    "quad_perm:[1,0,3,2]": L ^ 1,
    "row_shr:3": np.where(L % 16 >= 3, L - 3, -1),
    "row_shl:8": np.where(L % 16 < 8, L + 8, -1),
    "row_ror:4": L // 16 * 16 + (L - 4) % 16,
    "row_mirror": L // 16 * 16 + 15 - L % 16,
    "row_half_mirror": L // 8 * 8 + 7 - L % 8,
    "row_bcast:15": np.where(L >= 16, L // 16 * 16 - 1, -1),
    "row_bcast:31": np.where(L >= 32, 31, -1),
}


@pytest.mark.parametrize("how", PERMUTED)
@pytest.mark.parametrize("zero", [False, True])
def test_dpp(how, zero):
    lane = Lane().set(v0=7, v1=A).run(f"v_mov_b32_dpp v0, v1 {how} row_mask:0xd bank_mask:0xf{' bound_ctrl:1' * zero}")
    take, written = PERMUTED[how], L // 16 != 1
    moved = np.where(take >= 0, A[take], 0 if zero else 7)
    assert (lane.vector(0) == np.where(written, moved, 7)).all()


def test_dpp_reads_nothing_of_an_inactive_lane():
    lane = (
        Lane().set(v0=7, v1=A).exec(L != 4).run("v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf")
    )
    assert lane.vector(0)[5] == 7 and lane.vector(0)[6] == A[7]


def test_permutations_through_the_crossbar():
    at = RNG.permutation(64).astype(np.uint32)
    lane = Lane().set(v1=at * 4, v2=A).run("ds_bpermute_b32 v0, v1, v2", "ds_permute_b32 v3, v1, v2")
    assert (lane.vector(0) == A[at]).all() and (lane.vector(3)[at] == A).all()
    swapped = lane.run("ds_swizzle_b32 v0, v2 offset:swizzle(SWAP,16)").vector(0)
    assert (swapped == A[L ^ 16]).all()
    masked = lane.run('ds_swizzle_b32 v0, v2 offset:swizzle(BITMASK_PERM,"01pip")').vector(0)
    assert (masked == A[L // 32 * 32 + 8 + (L & 4) + (~L & 2) + (L & 1)]).all()
