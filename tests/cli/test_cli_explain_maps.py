"""`explain` on a chip of dies: every block map with its rates and its time, and the one that runs."""

import json

import pytest
from click.testing import CliRunner

from tilec.cli import main
from tilec.frontend import read_text
from tilec.targets import target
from tilec.tune.bound import bound
from tilec.tune.caches import OVERHEAD

SPEC = """
kernel attend {{
  index  b : B, h : 16, q : M, k : N{storage}, d : 64
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h // 2, d] : bf16
  value  V[b, k, h // 2, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / 8
  {mask}
}}
{schedule}
"""
SHAPE = ("--shape", "B=1,M=1024,N=1024")


@pytest.fixture
def run(tmp_path):
    def explained(*words, mask="mask k <= q + N - M", schedule="", storage="", on="gfx942"):
        path = tmp_path / "spec.tile"
        path.write_text(SPEC.format(mask=mask, schedule=schedule, storage=storage))
        result = CliRunner().invoke(main, ["explain", str(path), "--target", on, *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    return explained


def test_maps_are_shown_with_the_chosen_one(run):
    (found,) = json.loads(run(*SHAPE, "--json"))
    maps, chosen = found["maps"]["maps"], found["maps"]["chosen"]
    assert chosen == "heads_longest_first" and found["maps"]["by"] == "the record of simulations"
    assert {"linear", "block_first", "runs", "heads_fold"} < set(maps)
    for m in maps.values():
        assert 0 <= m["l2"] <= 1 and 0 <= m["llc"] <= 1 and m["seconds"] >= m["ideal"] > 0
        assert m["memory"] == pytest.approx((1 - m["l2"]) * (1 - m["llc"]))
    assert maps[chosen]["seconds"] <= 1.01 * maps["linear"]["seconds"]
    shown = run(*SHAPE)
    assert f"blocks    {found['order']}(chunk = 2, span = 1216)" in shown
    assert "block maps on 8 dies of 38 units with 4 MB of L2" in shown and "predicted, not measured" in shown
    (line,) = (x for x in shown.splitlines() if x.endswith("  chosen"))
    assert line.split()[0] == chosen and f"{maps[chosen]['l2']:.1%}" in line


def test_the_work_of_all_maps_is_the_kernels(run):
    """Full rows: 16 heads of 8 row tiles take 16 steps each, of the static bound's clocks."""
    words = (*SHAPE, "--json", "--backend", "triton")
    (found,) = json.loads(run(*words, mask="", schedule="schedule attend on gfx942 { tile q = 128, k = 64 }"))
    ideal = {m["ideal"] for m in found["maps"]["maps"].values()}
    attn = read_text(SPEC.format(mask="", schedule="", storage="")).kernels[0]
    step = bound(attn, target("gfx942"), 128, 64, 4, resident=2).clocks
    tiles = 16 * 8
    assert list(ideal) == pytest.approx([tiles * (16 * 2 * step + OVERHEAD) / (2 * 304) / 1_137_000_000])


def test_a_line_is_named_and_its_map_shown(run):
    lines = "schedule attend on gfx942 { map persistent }"
    (found,) = json.loads(run(*SHAPE, "--json", schedule=lines))
    assert found["maps"]["by"] == "the spec's line" and found["maps"]["chosen"] == "longest_first_persistent"
    assert found["maps"]["chosen"] in found["maps"]["maps"]


def test_indices_may_be_called_what_programs_say(run, tmp_path):
    path = tmp_path / "named.tile"
    text = SPEC.format(mask="mask k <= q + 64 * cta", schedule="", storage="").replace("h :", "cta :")
    path.write_text(text.replace("q, h,", "q, cta,").replace("h // 2", "cta // 2"))
    result = CliRunner().invoke(main, ["explain", str(path), "--target", "gfx942", *SHAPE, "--json"])
    maps = json.loads(result.stdout)[0]["maps"]["maps"]
    assert len({round(m["ideal"], 12) for m in maps.values()}) == 1


@pytest.mark.parametrize("on", ["gfx942", "sm80"])
def test_a_mask_may_keep_nothing(run, on):
    (found,) = json.loads(run(*SHAPE, "--json", mask="mask k > q + N + M", on=on))
    assert (found["loops"], found["maps"], found["step"], list(found["tile"])) == ([], None, None, ["q"])
    assert "none: the mask keeps nothing" in run(*SHAPE, mask="mask k > q + N + M", on=on)


def test_no_maps_where_nothing_is_known_of_dies_or_lengths(run):
    for words, more in (((), {}), (SHAPE, {"on": "sm80"}), (SHAPE, {"on": "gfx950"})):
        (found,) = json.loads(run(*words, "--json", **more))
        assert found["maps"] is None


def test_a_step_is_shown_part_by_part(run):
    lines = "schedule attend on gfx942 { tile q = 128, k = 64  warps split_q(8) }"
    (found,) = json.loads(run("--json", schedule=lines))
    step = found["step"]
    assert step["parts"]["matrix"] == 2 * 128 * 64 * 128 / 2048 and step["parts"]["memory"] == 64 * 128 * 2 / 64
    assert step["instructions"]["products"] == 32 and step["instructions"]["special"] == 32
    assert step["clocks"] == max(step["parts"].values()) and step["parts"][step["by"]] == step["clocks"]
    shown = run(*SHAPE, schedule=lines)
    assert f"a step of 128 rows and 64 keys on a unit, {step['waves']} waves to a SIMD" in shown
    assert "32 matrix, " in shown and f"{step['flops_per_second'] / 1e12:.0f} TFLOP/s of such ones" in shown
    assert "within the power limit 708 of 1,307 TFLOP/s of bf16 at the peak clock: AMD, Measuring" in shown
    assert "predicted" not in run(on="sm80") and json.loads(run("--json", on="sm80"))[0]["step"] is None


def test_a_step_has_the_waves_of_the_roles(run):
    lines = "schedule attend on gfx942 { tile q = 256, k = 64  warps ping_pong(wave = 8) }"
    (found,) = json.loads(run("--json", schedule=lines))
    assert found["backend"] == "hip" and found["step"]["shape"]["warps"] == 8
    assert found["step"]["waves"] == 2 * found["step"]["resident"]
