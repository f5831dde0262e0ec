"""The gate of machine code: what the attention kernel takes, and each reason to refuse one."""

from dataclasses import replace

from emulator_kit import compiled, needs_clang

from tilec.targets.gfx942 import gate

pytestmark = needs_clang

SPILLING = """
#include "device.h"
extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(64, 64), amdgpu_num_vgpr(24))) void many(float* x) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = x[i * 64 + __builtin_amdgcn_workitem_id_x()];
  __builtin_amdgcn_s_barrier();
  for (int i = 0; i < 64; ++i) x[i * 64 + __builtin_amdgcn_workitem_id_x()] = v[63 - i] * v[i];
}
extern "C" __global__ void none(float* x) { x[0] = 1; }
"""
PRODUCT = "v_mfma_f32_32x32x8_bf16"


def needs(emulator, kernel, **options):
    return gate.needs(emulator.code, emulator.listing, kernel, **options)


def test_a_good_kernel_passes():
    found = needs(compiled("attention.hip"), "attention")
    assert found.products == {PRODUCT: 64}, "32 for the scores of two parts of a tile, 32 for the output"
    assert (found.lds, found.barriers, found.waves, found.spills, found.scratch) == (65536, 1, 2, 0, 0)
    assert gate.complaints(found, registers=256, products={PRODUCT: 64}) == ()


def test_each_reason_is_told():
    good = needs(compiled("attention.hip"), "attention")
    assert gate.complaints(good, registers=128)[0].endswith("of 128 that 4 waves of a SIMD have")
    assert gate.complaints(good, registers=256, lds=32768) == ("65536 bytes of LDS of 32768",)
    more = needs(compiled("attention.hip"), "attention", dynamic_lds=16)
    assert gate.complaints(more, registers=256) == ("65552 bytes of LDS of 65536",)
    other = {PRODUCT: 63, "v_mfma_f32_16x16x16_bf16": 2}
    assert gate.complaints(good, registers=256, products=other) == (
        "0 of `v_mfma_f32_16x16x16_bf16`, where the program has 2",
        f"64 of `{PRODUCT}`, where the program has 63",
    )
    assert replace(good, registers=129).waves == 3 and replace(good, registers=512).waves == 1


def test_spills_and_scratch():
    bad = needs(compiled(SPILLING), "many")
    said = gate.complaints(bad, registers=256)
    assert [line.split(" ", 1)[1] for line in said] == [
        "registers are spilled",
        "bytes of a lane are in scratch memory",
    ]
    assert gate.complaints(needs(compiled(SPILLING), "none"), registers=256) == ()


def test_kernels_of_one_object_are_told_apart():
    code = compiled(SPILLING)
    texts = [gate.text_of(code.code, code.listing, k) for k in ("many", "none")]
    assert gate.count(texts[0], "scratch_") > 0 == gate.count(texts[1], "scratch_")
    assert {x.address for x in texts[0]}.isdisjoint(x.address for x in texts[1])
