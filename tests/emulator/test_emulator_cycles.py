"""The cycle model: traces short enough to be counted by hand, and each effect by what it changes."""

from dataclasses import replace

import pytest
from emulator_kit import Attention, compiled, needs_clang
from lane_kit import listing_of

from tilec.targets.gfx942.cycles import MI300X, predict
from tilec.targets.gfx942.cycles.model import simulate
from tilec.targets.gfx942.emulator.decode import decode

VALU = "v_add_f32_e32 v0, v1, v2"
EXP = "v_exp_f32_e32 v0, v1"
PRODUCT = "v_mfma_f32_32x32x8_bf16 v[16:31], v[8:9], v[10:11], v[16:31]"
OTHER = "v_mfma_f32_32x32x8_bf16 v[32:47], v[8:9], v[10:11], v[32:47]"
READ = "ds_read_b128 v[4:7], v1"
LOAD = "global_load_dwordx4 v[4:7], v1, s[4:5]"
END = "s_endpgm"


def clocks(*waves, machine=MI300X, cycles=8, taken=(), resident=1):
    """Waves as lists of instructions, each walked once; LDS accesses take `cycles`."""
    texts = sorted({t for w in waves for t in w})
    steps = decode(listing_of(*texts))
    extra = {t: cycles if t.startswith("ds_") else int(t in taken) for t in texts}
    return simulate(steps, [[(texts.index(t), extra[t]) for t in w] for w in waves], machine, resident)


def test_one_wave_issues_once_in_four_clocks():
    assert clocks([VALU] * 10 + [END]).clocks == 44
    assert clocks([VALU, "s_nop 4", VALU, END]).clocks == 4 + 20 + 4 + 4


def test_transcendentals_take_four_slots():
    assert clocks([EXP] * 5 + [END]).clocks == 4 * 16 + 4 + 4, "the end does not wait for the last"
    assert clocks([EXP, VALU, END]).clocks == 16 + 4 + 4


def test_two_waves_share_the_vector_slot_of_a_simd_but_not_of_two():
    alone = [VALU] * 10 + [END]
    idle = [END]
    assert clocks(alone, alone).clocks == 44, "waves 0 and 1 are on different SIMDs"
    assert clocks(alone, idle, idle, idle, alone).clocks == 84
    scalar = ["s_add_u32 s0, s1, s2"] * 10 + [END]
    assert clocks(alone, idle, idle, idle, scalar).clocks == 44, "one of each kind a slot"


def test_products_of_a_simd_follow_each_other_and_hide_seven_instructions():
    assert clocks([PRODUCT] * 4 + [END]).clocks == 3 * 32 + 4 + 4, "the accumulator is passed on"
    covered = ([PRODUCT] + [VALU] * 7) * 4 + [END]
    assert clocks(covered).clocks == 4 * 32 + 4
    beyond = ([PRODUCT] + [VALU] * 8) * 4 + [END]
    assert clocks(beyond).clocks == 4 * 36 + 4
    two_of_four = ([PRODUCT] + [EXP] + [VALU] * 3) * 2 + [PRODUCT, END]
    assert clocks(two_of_four).clocks == 2 * 32 + 4 + 4, "one exponential is worth four others"


def test_two_waves_products_share_the_matrix_unit():
    idle = [END]
    both = clocks([PRODUCT] * 3 + [END], idle, idle, idle, [OTHER] * 3 + [END])
    assert both.clocks == 5 * 32 + 4 + 4
    apart = clocks([PRODUCT] * 3 + [END], idle, idle, idle, [VALU] * 20 + [END])
    assert apart.clocks == 4 * (20 + 3) + 4, "vector instructions of one fit behind products of the other"


def test_what_a_product_wrote_is_late_for_others():
    reader = "v_add_f32_e32 v0, v16, v2"
    assert clocks([PRODUCT, reader, END]).clocks == 32 + 8 + 4 + 4
    assert clocks([PRODUCT, VALU, END]).clocks == 4 + 4 + 4


def test_lds_is_one_pipe_for_all_waves():
    wave = [READ, "s_waitcnt lgkmcnt(0)", END]
    alone = clocks(wave).clocks
    assert alone == 8 + 64 + 4 + 4
    assert clocks(*[wave] * 8).clocks == alone + 7 * 8
    assert clocks(*[wave] * 8, cycles=64).clocks == 8 * 64 + 64 + 4 + 4, "conflicts cost what they cost"


def test_memory_has_a_rate_and_a_latency():
    wave = [LOAD, LOAD, "s_waitcnt vmcnt(1)", "s_waitcnt vmcnt(0)", END]
    assert clocks(wave).clocks == 2 * 16 + MI300X.memory_latency + 4 + 4 + (-(32 + MI300X.memory_latency) % 4)
    narrow = [LOAD.replace("x4 v[4:7]", " v4"), "s_waitcnt vmcnt(0)", END]
    assert clocks(narrow).clocks == 4 + MI300X.memory_latency + 4 + 4
    early = [LOAD, *[VALU] * 300, "s_waitcnt vmcnt(0)", END]
    assert clocks(early).clocks == 4 * 302 + 4, "issued early enough it costs nothing"


def test_barriers_join_the_waves_of_a_block():
    long, short = [VALU] * 30 + ["s_barrier", VALU, END], ["s_barrier", VALU, END]
    assert clocks(long, short).clocks == 30 * 4 + 4 + 4 + 4
    stalls = clocks(long, short).stalls
    assert stalls["barrier"] == 30 * 4
    assert clocks(long, resident=2).clocks == clocks(long, [END]).clocks, (
        "copies on other SIMDs do not wait for each other"
    )


def test_priority_decides_who_issues_first():
    idle = [END]
    late = [LOAD, "s_waitcnt vmcnt(0)", END]
    behind = clocks([VALU] * 50 + [END], idle, idle, idle, [VALU] * 5 + late)
    ahead = clocks([VALU] * 50 + [END], idle, idle, idle, ["s_setprio 1"] + [VALU] * 5 + late)
    assert ahead.clocks == 4 * 6 + 16 + MI300X.memory_latency + 8
    assert behind.clocks == 4 * 55 + 16 + MI300X.memory_latency + 8


def test_taken_branches_and_steps_of_a_loop():
    branch = "s_cbranch_scc1 65531"
    body = [VALU] * 11 + [branch]
    timing = clocks(body * 5 + [END], taken=[branch])
    assert (timing.step, timing.passes) == (11 * 4 + 16, 4)
    assert timing.busy["issue"] == pytest.approx(44 / 60 / 4), "on one of four SIMDs"


def test_a_step_of_blocks_beside_each_other_is_one_of_each():
    """Two blocks on one SIMD, of which the older goes first and walks more passes: the step is that of their mean."""
    branch = "s_cbranch_scc1 65531"
    loop = ([VALU] * 25 + ["s_nop 15", branch]) * 30 + [END]
    alone, both = (clocks(loop, [END], [END], [END], taken=[branch], resident=n) for n in (1, 2))
    assert both.step > 1.2 * alone.step, "the older one walks as if it was alone"
    assert both.busy["issue"] == pytest.approx(2 * 25 * 4 / both.step / 4, rel=0.05)


@needs_clang
def test_a_block_of_attention():
    run = Attention(256, 320).launch(compiled("attention.hip"), trace=True)
    timing = predict(run)
    assert timing.passes == 3
    assert timing.step >= 4096, "64 products of 32 clocks, twice, are the least that a tile takes"
    assert timing.matrix == pytest.approx(4096 / timing.step)
    conflicts = predict(Attention(256, 320).launch(compiled("attention.hip", "-DNO_SWIZZLE"), trace=True))
    assert conflicts.step > 1.3 * timing.step and conflicts.busy["lds"] > 2 * timing.busy["lds"]
    assert predict(run, replace(MI300X, memory_latency=9000)).step > 1.1 * timing.step
    assert predict(run, replace(MI300X, lds_latency=300)).limit == "lds"
    assert set(timing.to_data()) >= {"clocks", "step", "busy", "limit"}


@needs_clang
def test_blocks_beside_each_other():
    from dataclasses import replace as changed

    from tilec.targets.gfx942.emulator.emulator import resident

    k = compiled("attention.hip").code.kernels["attention"]
    assert resident(k, 512, 65536) == 1
    small = changed(k, vgprs=120)
    assert [resident(small, t, lds) for t, lds in ((256, 16384), (256, 40000), (512, 0), (64, 4096))] == [4, 1, 2, 16]
    run = Attention(256, 128).launch(compiled("attention.hip"), trace=True)
    assert predict(run, resident=2).clocks > 1.5 * predict(run).clocks


def test_a_run_without_a_trace_is_refused():
    from tilec.targets.gfx942.emulator.emulator import Run

    with pytest.raises(ValueError, match="not traced"):
        predict(Run(listing_of(END), (), (), 0))
