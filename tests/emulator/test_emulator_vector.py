"""Vector instructions of integers, singles, halves and conversions, lane by lane against plain Python."""

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from lane_kit import Lane

RNG = np.random.default_rng(1)
A, B, C = (RNG.integers(0, 2**32, 64, dtype=np.uint32) for _ in range(3))
X, Y, Z = (RNG.standard_normal(64).astype(np.float32) * 3 for _ in range(3))
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def signed(x, n=32):
    return x - (1 << n) if x >> (n - 1) else x


def perm(high, low, selector):
    both = (high << 32 | low).to_bytes(8, "little")
    out = []
    for n in range(4):
        which = selector >> 8 * n & 0xFF
        out.append(both[which] if which < 8 else 0 if which == 12 else 255)
    return int.from_bytes(bytes(out), "little")


INTEGERS = {  # v0 from v1 = A, v2 = B, v3 = C
    "v_add_u32_e32 v0, v1, v2": lambda a, b, c: a + b,
    "v_sub_u32_e32 v0, v1, v2": lambda a, b, c: a - b,
    "v_subrev_u32_e32 v0, 40, v2": lambda a, b, c: b - 40,
    "v_mul_lo_u32 v0, v1, v2": lambda a, b, c: a * b,
    "v_mul_hi_u32 v0, v1, v2": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 v0, v1, v2": lambda a, b, c: signed(a) * signed(b) >> 32,
    "v_mad_u32_u24 v0, v1, v2, v3": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24 v0, v1, -12, v3": lambda a, b, c: signed(a & 0xFFFFFF, 24) * -12 + c,
    "v_lshlrev_b32_e32 v0, 7, v2": lambda a, b, c: b << 7,
    "v_ashrrev_i32_e32 v0, 31, v2": lambda a, b, c: signed(b) >> 31,
    "v_lshrrev_b32_e32 v0, v1, v2": lambda a, b, c: b >> (a & 31),
    "v_and_or_b32 v0, v1, v2, v3": lambda a, b, c: a & b | c,
    "v_or3_b32 v0, v1, v2, v3": lambda a, b, c: a | b | c,
    "v_add3_u32 v0, v1, v2, v3": lambda a, b, c: a + b + c,
    "v_xad_u32 v0, v1, v2, v3": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32 v0, v1, 3, v3": lambda a, b, c: (a << 3) + c,
    "v_lshl_or_b32 v0, v1, 5, v2": lambda a, b, c: a << 5 | b,
    "v_bfe_u32 v0, v1, 16, 1": lambda a, b, c: a >> 16 & 1,
    "v_bfe_i32 v0, v1, 4, 3": lambda a, b, c: signed(a >> 4 & 7, 3),
    "v_bfi_b32 v0, v1, v2, v3": lambda a, b, c: a & b | ~a & c,
    "v_bfrev_b32_e32 v0, v1": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_not_b32_e32 v0, v1": lambda a, b, c: ~a,
    "v_max3_i32 v0, v1, v2, v3": lambda a, b, c: max(map(signed, (a, b, c))),
    "v_min_u32_e32 v0, v1, v2": lambda a, b, c: min(a, b),
    "v_alignbit_b32 v0, v1, v2, 20": lambda a, b, c: (a << 32 | b) >> 20,
    "v_bcnt_u32_b32 v0, v1, v2": lambda a, b, c: a.bit_count() + b,
    "v_ffbh_u32_e32 v0, v1": lambda a, b, c: 32 - a.bit_length(),
    "v_perm_b32 v0, v1, v2, 0x7060302": lambda a, b, c: perm(a, b, 0x07060302),
    "v_perm_b32 v0, v1, v2, 0x50c0d00": lambda a, b, c: perm(a, b, 0x050C0D00),
    "v_mul_lo_u16_e32 v0, v1, v2": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) & 0xFFFF,
    "v_lshlrev_b16_e32 v0, 8, v1": lambda a, b, c: a << 8 & 0xFFFF,
    "v_or_b32_sdwa v0, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1": (
        lambda a, b, c: ((a >> 16 & 0xFF) | b >> 16) << 16
    ),
}


def state():
    return Lane().set(v1=A, v2=B, v3=C, v4=X, v5=Y, v6=Z)


@pytest.mark.parametrize("text", INTEGERS)
def test_integers(text):
    got = state().run(text).vector(0)
    want = [INTEGERS[text](int(a), int(b), int(c)) & M32 for a, b, c in zip(A, B, C, strict=True)]
    assert got.tolist() == want


def test_pairs_of_16_bits():
    lane = state().run(
        "v_pk_mad_u16 v7, v1, v2, v3", "v_pk_max_i16 v8, v1, v2 op_sel_hi:[0,1]", "v_pk_lshlrev_b16 v9, 3, v1"
    )
    for n in range(64):
        a, b, c = ((int(x[n]) & 0xFFFF, int(x[n]) >> 16) for x in (A, B, C))
        assert int(lane.wave.u[7][n]) == (a[0] * b[0] + c[0] & 0xFFFF) | (a[1] * b[1] + c[1] & 0xFFFF) << 16
        most = [max(signed(a[0], 16), signed(b[side], 16)) & 0xFFFF for side in (0, 1)]
        assert int(lane.wave.u[8][n]) == most[0] | most[1] << 16
        assert int(lane.wave.u[9][n]) == (a[0] << 3 & 0xFFFF) | (a[1] << 3 & 0xFFFF) << 16


def test_64_bits():
    lane = state().run(
        "v_mad_u64_u32 v[10:11], s[0:1], v1, v2, v[2:3]",
        "v_lshl_add_u64 v[12:13], v[1:2], 3, v[2:3]",
        "v_lshrrev_b64 v[14:15], 9, v[1:2]",
    )
    for n in range(64):
        a, b, c = int(A[n]), int(B[n]), int(C[n])
        ab, bc = a | b << 32, b | c << 32
        for first, want in ((10, a * b + bc), (12, (ab << 3) + bc), (14, ab >> 9)):
            assert int(lane.wave.u[first][n]) | int(lane.wave.u[first + 1][n]) << 32 == want & M64


def test_carries():
    lane = state().run("v_add_co_u32_e32 v7, vcc, v1, v2", "v_addc_co_u32_e32 v8, vcc, v3, v3, vcc")
    for n in range(64):
        total = int(A[n]) + int(B[n])
        top = 2 * int(C[n]) + (total >> 32)
        assert (int(lane.wave.u[7][n]), int(lane.wave.u[8][n])) == (total & M32, top & M32)
        assert lane.wave.get64(106) >> n & 1 == top >> 32


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


FLOATS = {  # v0 from v4 = X, v5 = Y, v6 = Z, in double and rounded
    "v_add_f32_e32 v0, v4, v5": lambda x, y, z: x + y,
    "v_mul_f32_e32 v0, 0x41000000, v5": lambda x, y, z: 8 * y,
    "v_sub_f32_e32 v0, 1.0, v5": lambda x, y, z: 1 - y,
    "v_fma_f32 v0, v4, -v5, |v6|": lambda x, y, z: x * -y + abs(z),
    "v_fmac_f32_e32 v6, v4, v5": lambda x, y, z: x * y + z,
    "v_fmamk_f32 v0, v4, 0x40400000, v6": lambda x, y, z: x * 3 + z,
    "v_max3_f32 v0, v4, v5, v6": lambda x, y, z: max(x, y, z),
    "v_med3_f32 v0, v4, v5, v6": lambda x, y, z: sorted((x, y, z))[1],
    "v_mul_f32_e64 v0, v4, v5 clamp": lambda x, y, z: min(max(x * y, 0), 1),
    "v_mul_f32_e64 v0, v4, v5 mul:2": lambda x, y, z: single(x * y) * 2,
    "v_floor_f32_e32 v0, v4": lambda x, y, z: math.floor(x),
    "v_rndne_f32_e32 v0, v4": lambda x, y, z: round(x),
    "v_ldexp_f32 v0, v4, 5": lambda x, y, z: x * 32,
    "v_exp_f32_e32 v0, v4": lambda x, y, z: 2**x,
    "v_log_f32_e64 v0, |v4|": lambda x, y, z: math.log2(abs(x)),
    "v_rcp_f32_e32 v0, v4": lambda x, y, z: 1 / x,
    "v_rsq_f32_e64 v0, |v4|": lambda x, y, z: 1 / math.sqrt(abs(x)),
    "v_sin_f32_e32 v0, v4": lambda x, y, z: math.sin(2 * math.pi * x),
}


@pytest.mark.parametrize("text", FLOATS)
def test_floats(text):
    lane = state().run(text)
    got = lane.vector(6 if "fmac" in text else 0, np.float32)
    want = np.array([FLOATS[text](*map(float, t)) for t in zip(X, Y, Z, strict=True)])
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=1e-12)


def test_packed_singles_pick_their_halves():
    lane = state().run("v_pk_fma_f32 v[10:11], v[4:5], v[4:5], v[5:6] op_sel:[0,1,0] op_sel_hi:[1,0,1] neg_lo:[0,0,1]")
    np.testing.assert_allclose(lane.vector(10, np.float32), X * Y - Y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lane.vector(11, np.float32), Y * X + Z, rtol=1e-5, atol=1e-6)
    lane.run("v_pk_mov_b32 v[10:11], v[4:5], v[4:5] op_sel:[1,0]")
    assert (lane.vector(10, np.float32) == Y).all() and (lane.vector(11, np.float32) == X).all()


DIVISIONS = [(1.0, 3.0), (7.5, -0.1), (1e30, 1e-5), (1e-38, 1e5), (3e38, 2e-3), (0.0, 5.0), (5.0, 0.0), (1e-44, 1e-44)]


@pytest.mark.parametrize(("top", "bottom"), DIVISIONS)
def test_the_sequence_of_a_division(top, bottom):
    """LLVM's expansion of f32 division: scale, reciprocal, Newton steps, v_div_fmas, v_div_fixup."""
    lane = Lane().set(v1=np.float32(top).repeat(64), v2=np.float32(bottom).repeat(64))
    lane.run(
        "v_div_scale_f32 v3, s[0:1], v2, v2, v1",
        "v_div_scale_f32 v4, vcc, v1, v2, v1",
        "v_rcp_f32_e32 v5, v3",
        "v_fma_f32 v6, -v3, v5, 1.0",
        "v_fmac_f32_e32 v5, v6, v5",
        "v_mul_f32_e32 v6, v4, v5",
        "v_fma_f32 v7, -v3, v6, v4",
        "v_fmac_f32_e32 v6, v7, v5",
        "v_fma_f32 v3, -v3, v6, v4",
        "v_div_fmas_f32 v3, v3, v5, v6",
        "v_div_fixup_f32 v0, v3, v2, v1",
    )
    with np.errstate(all="ignore"):
        want = np.float32(top) / np.float32(bottom)
    np.testing.assert_allclose(lane.vector(0, np.float32)[0], want, rtol=1.5e-7)


def test_conversions():
    lane = state().run("v_cvt_f32_i32_e32 v7, v1", "v_cvt_i32_f32_e32 v8, v4", "v_cvt_f32_ubyte2_e32 v9, v1")
    assert lane.vector(7, np.float32).tolist() == A.view(np.int32).astype(np.float32).tolist()
    assert lane.vector(8, np.int32).tolist() == [math.trunc(x) for x in X.tolist()]
    assert lane.vector(9).view(np.float32).tolist() == [float(a >> 16 & 255) for a in A.tolist()]
    lane.set(v1=np.full(64, 3e9, np.float32), v2=np.full(64, np.nan, np.float32))
    lane.run("v_cvt_i32_f32_e32 v7, v1", "v_cvt_u32_f32_e32 v8, v2")
    assert (lane.wave.u[7][0], lane.wave.u[8][0]) == (0x7FFFFFFF, 0)


def test_halves_round_and_keep_the_other_half():
    lane = state().set(v0=0xABCD1234).run("v_cvt_f16_f32_e32 v7, v4", "v_fma_mixlo_f16 v0, v4, v5, 0")
    assert lane.vector(7).tolist() == X.astype(np.float16).view(np.uint16).astype(int).tolist()
    product = (X.astype(np.float64) * Y).astype(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)
    assert (lane.vector(0) == (0xABCD0000 | product)).all()
    lane.run("v_cvt_f32_f16_sdwa v8, v7 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0")
    assert (lane.vector(8, np.float32) == X.astype(np.float16).astype(np.float32)).all()


def test_eight_bit_floats_are_fnuz():
    lane = state().set(v0=0xFFFF1111).run("v_cvt_pk_fp8_f32 v0, v4, v5 op_sel:[0,0,1]")
    want = [x.astype(ml_dtypes.float8_e4m3fnuz).view(np.uint8).astype(np.uint32) for x in (X, Y)]
    assert (lane.vector(0) == (0x1111 | want[0] << 16 | want[1] << 24)).all()
    lane.run("v_cvt_pk_f32_fp8_sdwa v[8:9], v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1")
    assert (lane.vector(9, np.float32) == Y.astype(ml_dtypes.float8_e4m3fnuz).astype(np.float32)).all()
    big = state().set(v1=1e6, v2=-1e6)
    assert big.run("v_cvt_pk_fp8_f32 v0, v1, v2").vector(0)[0] & 0xFFFF == 0x8080
    big.run("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1", "v_cvt_pk_fp8_f32 v0, v1, v2")
    assert big.vector(0)[0] & 0xFFFF == 0xFF7F, "saturated at 240 with FP16_OVFL"


def test_inactive_lanes_keep_what_they_hold():
    lane = state().set(v0=5).exec(np.arange(64) % 3 == 0).run("v_add_u32_e32 v0, v1, v2")
    assert lane.vector(0).tolist() == [
        (int(a) + int(b)) & M32 if n % 3 == 0 else 5 for n, (a, b) in enumerate(zip(A, B, strict=True))
    ]
