"""Machine code of generated Triton, made without a device: what instructions it has and what it needs."""

import re

import emit_kit as kit
import pytest
from feature_specs import BY_NAME

from tilec.dsl.faults import Faults
from tilec.targets import target


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


def unscheduled(name):
    """A feature's text with the compiler's own tiles."""
    return BY_NAME[name].text.split("schedule f")[0]


MATRIX = {
    "sm80": r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32",
    "sm90": r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16",
    "sm100": r"tcgen05\.mma",
    "gfx942": r"v_mfma_f32_\d+x\d+x\d+_bf16",
    "gfx950": r"v_mfma_f32_\d+x\d+x\d+_bf16",
}


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_products_are_matrix_instructions_of_the_stored_dtype(name):
    made = kit.artifact(kit.CAUSAL_GQA, name)
    kernel = kit.compiled(made)
    text = kernel.asm.get("ptx") or kernel.asm["amdgcn"]
    assert re.search(MATRIX[name], text)
    assert "cvt.f32.bf16" not in text and "tf32" not in text
    assert kernel.metadata.shared <= target(name).shared_memory


def test_tiles_of_keys_come_through_tensor_maps():
    kernel = kit.compiled(kit.artifact(kit.CAUSAL_GQA, "sm90"))
    assert "cp.async.bulk.tensor" in kernel.asm["ptx"]
    assert "cp.async.bulk.tensor" not in kit.compiled(kit.artifact(kit.CAUSAL_GQA, "sm90", kit.GENERAL)).asm["ptx"]


PRODUCTS = [
    ("f32", "sm90", r"fma\.rn\.f32"),
    ("f16", "sm90", r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.f16\.f16"),
    ("fp8, grouped", "sm90", r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.f32\.e4m3\.e4m3"),
    ("fp8, grouped", "gfx942", r"v_mfma_f32_\d+x\d+x\d+_fp8_fp8"),
    ("e5m2", "sm89", r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.e5m2\.e5m2"),
    ("softcap", "sm90", r"tanh\.approx\.f32"),
]


@pytest.mark.parametrize(("name", "machine", "instruction"), PRODUCTS, ids=[f"{n} on {m}" for n, m, _ in PRODUCTS])
def test_instruction_of_a_dtype(name, machine, instruction):
    kernel = kit.compiled(kit.artifact(unscheduled(name), machine))
    text = kernel.asm.get("ptx") or kernel.asm["amdgcn"]
    assert re.search(instruction, text)
    assert "tf32" not in text


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("packed documents", "sm90"),
        ("paged latent", "sm90"),
        ("pair flags", "sm90"),
        ("dropout", "sm90"),
        ("head dim 72", "sm80"),
        ("two windows", "gfx942"),
        ("paged", "gfx942"),
    ],
)
def test_it_compiles_within_the_target(name, machine):
    kernel = kit.compiled(kit.artifact(unscheduled(name), machine, kit.GENERAL))
    assert 0 < kernel.metadata.shared <= target(machine).shared_memory


def test_persistent_blocks_compile():
    text = kit.CAUSAL_GQA + "schedule causal_gqa on sm90 { map persistent }"
    kernel = kit.compiled(kit.artifact(text, "sm90"))
    assert "wgmma" in kernel.asm["ptx"]


def test_fp8_is_refused_where_no_instruction_takes_it():
    with pytest.raises(Faults) as caught:
        kit.artifact(unscheduled("fp8"), "sm80")
    assert {f.code for f in caught.value.faults} == {"E0914"}


def test_a_row_too_wide_is_refused():
    text = kit.CAUSAL_GQA.replace("128", "2048")
    with pytest.raises(Faults) as caught:
        kit.artifact(text, "sm90")
    assert [f.code for f in caught.value.faults] == ["E0914"]
    assert "d = 2048 is too wide" in str(caught.value)
