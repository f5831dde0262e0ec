"""What is read of a code object: metadata, descriptors, instructions; and what is refused."""

from itertools import pairwise

import pytest
from emulator_kit import compiled, needs_clang

from tilec.targets import target
from tilec.targets.gfx942 import codeobject
from tilec.targets.gfx942.emulator.decode import branch_target
from tilec.targets.gfx942.emulator.families.control import waited
from tilec.targets.gfx942.listing import parse, read_instruction

SOURCE = """
#include "device.h"
extern "C" __global__ THREADS(128) void one(u32* out, u32 x, double y) {
  __shared__ u32 s[128];
  u32 t = __builtin_amdgcn_workitem_id_x();
  s[t] = x + __builtin_amdgcn_workgroup_id_y();
  barrier();
  out[t] = s[127 - t] + (u32)(float)y;
}
extern "C" __global__ void two(float* out) { out[__builtin_amdgcn_workitem_id_x()] = 1; }
"""


def test_a_folder_beside_the_targets_file_is_no_other_target():
    assert target("gfx942").arch == "gfx942"


@needs_clang
def test_metadata_and_descriptor():
    code = compiled(SOURCE).code
    one, two = code.kernels["one"], code.kernels["two"]
    assert [(a.kind, a.offset, a.size) for a in one.arguments[:3]] == [
        ("global_buffer", 0, 8),
        ("by_value", 8, 4),
        ("by_value", 16, 8),
    ]
    assert (one.lds, one.scratch, one.vgpr_spills, one.most_threads) == (512, 0, 0, 128)
    assert (one.group_ids[1], two.group_ids[1]) == (True, False)
    assert {one.entry, two.entry} <= set(compiled(SOURCE).listing.at)


@needs_clang
def test_every_byte_of_the_text_is_an_instruction():
    found = compiled(SOURCE).listing.instructions
    gaps = [b.address - a.address - a.size for a, b in pairwise(found)]
    assert set(gaps) == {0}
    assert sum(x.name == "s_endpgm" for x in found) == 2


def test_another_machine_and_a_bundle_are_refused():
    with pytest.raises(codeobject.BadCodeObject, match="not an ELF"):
        codeobject.read(b"__CLANG_OFFLOAD_BUNDLE__")


TEXTS = {
    "v_mov_b32_dpp v3, -v4 row_bcast:15 row_mask:0xa bank_mask:0xf bound_ctrl:1": (
        "v_mov_b32",
        "dpp",
        ("v3", "-v4"),
        4,
    ),
    "v_pk_fma_f32 v[2:3], v[4:5], s[8:9], v[6:7] op_sel_hi:[1,0,1]": (
        "v_pk_fma_f32",
        "",
        ("v[2:3]", "v[4:5]", "s[8:9]", "v[6:7]"),
        1,
    ),
    "v_cmp_lt_f32_e64 s[0:1], |v0|, s0": ("v_cmp_lt_f32", "e64", ("s[0:1]", "|v0|", "s0"), 0),
    "s_waitcnt vmcnt(3) lgkmcnt(0)": ("s_waitcnt", "", ("vmcnt(3)", "lgkmcnt(0)"), 0),
    "buffer_load_dword v1, s[8:11], 0 offen offset:16 lds": (
        "buffer_load_dword",
        "",
        ("v1", "s[8:11]", "0"),
        3,
    ),
    'ds_swizzle_b32 v2, v4 offset:swizzle(BITMASK_PERM,"00p1i")': ("ds_swizzle_b32", "", ("v2", "v4"), 1),
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1": (
        "s_setreg_imm32_b32",
        "",
        ("hwreg(HW_REG_MODE, 23, 1)", "1"),
        0,
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_an_instruction_reads_from_its_text(text):
    x = read_instruction(text)
    assert (x.name, x.form, x.operands, len(x.modifiers)) == TEXTS[text]


def test_a_branch_to_a_label_goes_where_it_is_encoded():
    text = "\ts_branch label_0196                      // 000000001A1C: BF820038 <label_0196>\n"
    (x,) = parse(text).instructions
    assert (x.operands, branch_target(x)) == (("56",), 0x1B00)


def test_waits_in_words_and_encoded():
    said = [waited(read_instruction(f"s_waitcnt {t}")) for t in ("vmcnt(3) lgkmcnt(0)", "0xc07f", "0x3f70", "0xf")]
    nothing = 1 << 40
    assert said == [(3, 0), (nothing, 0), (0, nothing), (15, 0)]
