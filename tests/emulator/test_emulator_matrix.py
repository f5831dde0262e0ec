"""Matrix instructions, with operands laid out lane by lane as the tables of the instruction set say."""

import ml_dtypes
import numpy as np
import pytest
from lane_kit import Lane

L = np.arange(64)
BF16, FP8, BF8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz
CASES = {  # items of A and B a lane, rows, contraction
    "v_mfma_f32_32x32x8_bf16": (BF16, BF16, 4, 32, 8),
    "v_mfma_f32_16x16x16_bf16": (BF16, BF16, 4, 16, 16),
    "v_mfma_f32_32x32x8_f16": (np.float16, np.float16, 4, 32, 8),
    "v_mfma_f32_16x16x16_f16": (np.float16, np.float16, 4, 16, 16),
    "v_mfma_f32_32x32x16_fp8_fp8": (FP8, FP8, 8, 32, 16),
    "v_mfma_f32_16x16x32_bf8_fp8": (BF8, FP8, 8, 16, 32),
    "v_mfma_f32_32x32x2_f32": (np.float32, np.float32, 1, 32, 2),
    "v_mfma_f32_16x16x4_f32": (np.float32, np.float32, 1, 16, 4),
    "v_mfma_i32_32x32x16_i8": (np.int8, np.int8, 8, 32, 16),
}


def registers(items):
    """[64, items] as rows of dwords."""
    packed = np.ascontiguousarray(items).view(np.uint8).reshape(64, -1).view(np.uint32)
    return packed.T


def span(kind, first, count):
    return f"{kind}{first}" if count == 1 else f"{kind}[{first}:{first + count - 1}]"


@pytest.mark.parametrize("accumulators", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_product(name, accumulators):
    a_type, b_type, items, m, k = CASES[name]
    rng = np.random.default_rng(3)
    whole = a_type is np.int8
    a, b = (
        (rng.integers(-9, 9, (m, k)) if whole else rng.standard_normal((m, k))).astype(t) for t in (a_type, b_type)
    )  # b is [column, k]
    row, along = L % m, items * (L // m)
    lanes_a = np.stack([a[row, along + e] for e in range(items)], axis=1)
    lanes_b = np.stack([b[row, along + e] for e in range(items)], axis=1)
    count, words = m * m // 64, items * a.dtype.itemsize // 4
    c = rng.integers(-5, 5, (count, 64)).astype(np.int32 if whole else np.float32)
    lane = Lane()
    v = lane.wave.v
    v[0:words], v[8 : 8 + words], v[256 + 16 : 256 + 16 + count] = (
        registers(lanes_a),
        registers(lanes_b),
        c.view(np.uint32),
    )
    v[16 : 16 + count] = c.view(np.uint32)
    kind = "a" if accumulators else "v"
    lane.run(f"{name} {span(kind, 32, count)}, {span('v', 0, words)}, {span('v', 8, words)}, {span(kind, 16, count)}")
    base = 256 + 32 if accumulators else 32
    got = v[base : base + count].view(c.dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for r in range(count):
        rows = 8 * (r // 4) + 4 * (L // 32) + r % 4 if m == 32 else 4 * (L // 16) + r
        np.testing.assert_allclose(got[r], exact[rows, L % m] + c[r], rtol=1e-5, atol=1e-4)


def test_a_constant_accumulator_and_inactive_lanes():
    lane = Lane()
    lane.wave.v[:8] = 0x3F803F80  # bf16 ones
    lane.exec(L < 3).run("v_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], 1.0")
    assert (lane.wave.v[4:8].view(np.float32) == 17).all()
