"""`explain`: counts agree with brute force, reasons and carets are shown, figures follow from the target's table."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tilec.cli import main
from tilec.count import count_tiles
from tilec.explain import explain_kernel, to_data, to_text
from tilec.frontend import read_text
from tilec.oracle.scalar import evaluate
from tilec.pipeline import lower
from tilec.targets import target

KERNEL = """
kernel attend {{
  index  b : B, h : 4, q : M, k : N{storage}, d : {depth}
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h // 2, d] : bf16
  value  V[b, k, h // 2, d] : bf16
  output O[b, q, h, d] : bf16
  {more}
  scale  1
  mask   {mask}
}}
"""


def spec(mask, *, storage="", more="", depth=64):
    return read_text(KERNEL.format(mask=mask, storage=storage, more=more, depth=depth))


def brute(attn, sizes, tile):
    """(live elements, key tiles with a live element), over every batch entry and head."""
    m, n = sizes["M"], sizes["N"]
    live = tiles = 0
    for h in range(4):
        env = {**sizes, "h": h, "q": np.arange(m)[:, None], "k": np.arange(n)[None, :]}
        kept = np.broadcast_to(evaluate(attn.mask, env, None), (m, n))
        live += int(kept.sum())
        for i in range(0, m, tile["q"]):
            for j in range(0, n, tile["k"]):
                tiles += bool(kept[i : i + tile["q"], j : j + tile["k"]].any())
    return live * sizes["B"], tiles * sizes["B"]


EXACT = [
    "true",
    "k <= q + N - M",
    "k <= q and q - k < 100",
    "abs(q - k) <= 70 or k < 3",
    "k // 96 == q // 96",
    "k <= q + 64 * h",
]
LOOSE = ["(q * k) % 3 == 0 and k <= q", "(q - k) % 4 == 0 and k <= q", "k % 2 == 0"]


@pytest.mark.parametrize(
    "sizes", [{"B": 2, "M": 300, "N": 300}, {"B": 1, "M": 130, "N": 257}, {"B": 1, "M": 1, "N": 200}]
)
@pytest.mark.parametrize("mask", EXACT + LOOSE)
def test_counts_agree_with_brute_force(mask, sizes):
    attn = spec(mask).kernels[0]
    program = lower(attn, "sm90")
    found = count_tiles(program, attn, sizes)
    tile = {"q": dict(program.tile)["TQ"], "k": dict(program.tile)["TK"]}
    live, tiles = brute(attn, sizes, tile)
    assert found.live == live
    assert found.full <= found.visited <= found.tiles or "%" in mask
    if mask in EXACT:
        assert found.visited == tiles


def test_counts_are_unknown_where_they_depend_on_tensors():
    attn = spec("doc[b, q] == doc[b, k]", more="param doc[b, k] : i32 nondecreasing").kernels[0]
    assert count_tiles(lower(attn, "cpu"), attn, {"B": 1, "M": 64, "N": 64}) is None
    found = explain_kernel(
        spec("doc[b, q] == doc[b, k]", more="param doc[b, k] : i32 nondecreasing"),
        attn,
        "sm90",
        shape={"B": 1, "M": 64, "N": 64},
    )
    assert "depend on the values of tensors" in to_text(found)
    assert "the first" in to_text(found)
    assert found.roof is None


def test_lengths_are_taken_at_their_longest():
    attn = spec("k <= q + N - M", storage=" lengths n").kernels[0]
    found = count_tiles(lower(attn, "sm90"), attn, {"B": 2, "M": 100, "N": 100, "N_rows": 100})
    assert found.live == 2 * 4 * 100 * 101 // 2


def test_an_unknown_part_is_quoted_with_a_caret():
    read = spec("k <= q and (q * k) % 3 == 0")
    found = explain_kernel(read, read.kernels[0], "sm90")
    assert [u.text for u in found.unknown] == ["q * k"]
    text = to_text(found)
    assert "warning[W0503]" in text
    assert "^^^^^" in text
    assert to_data(found)["unknown"][0]["expression"] == "q * k"


def test_the_roofline_follows_the_target_table():
    read = spec("k <= q", more="score s = 3 * tanh(s / 3)")
    sizes = {"B": 2, "M": 512, "N": 512}
    found = explain_kernel(read, read.kernels[0], "sm90", shape=sizes)
    live = 2 * 4 * 512 * 513 // 2
    machine = target("sm90")
    assert found.roof.flops == 2 * live * 128
    assert found.roof.matrix == pytest.approx(found.roof.flops / (4096 * 132 * machine.sustained_clock))
    assert found.roof.exps == 2 * live
    assert found.roof.special == pytest.approx(2 * live / (16 * 132 * machine.sustained_clock))
    assert found.roof.bytes == 2 * 512 * 64 * 2 * (4 + 2 + 2 + 4)
    assert found.roof.memory == pytest.approx(found.roof.bytes / 4.8e12)
    assert found.roof.seconds == max(found.roof.matrix, found.roof.special, found.roof.memory)
    assert found.roof.bound == "special functions"
    assert explain_kernel(read, read.kernels[0], "cpu", shape=sizes).roof is None


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "spec.tile"
    path.write_text(KERNEL.format(mask="k <= q + N - M", storage="", more="", depth="D"))
    return lambda *words: CliRunner().invoke(main, ["explain", str(path), *words])


def test_the_command_prints_text_and_json(run):
    result = run("--target", "gfx942", "--set", "D=128", "--shape", "B=1,M=1024,N=1024")
    assert result.exit_code == 0, result.output
    for part in ("MI300X", "no mask", "because k <= q + N - M", "skipped", "bound by", "65,536 bytes"):
        assert part in result.stdout
    data = json.loads(run("--target", "gfx942", "--set", "D=128", "--json").stdout)
    assert data[0]["target"] == "gfx942"
    assert data[0]["counts"] is None
    assert {loop["segment"] for loop in data[0]["loops"]} <= {"left", "full", "right", "all"}


def test_a_missing_size_is_named(run):
    result = run("--target", "sm90")
    assert result.exit_code == 1
    assert "error[E0905]: `attend` needs values for D" in result.stderr
    assert "--set D=" in result.stderr
    result = run("--target", "sm90", "--set", "D=64", "--shape", "B=1,M=8")
    assert "needs values for N" in result.stderr


@pytest.mark.parametrize(
    ("mask", "safe", "text"),
    [
        ("k <= q", True, "every row keeps a key"),
        ("k < q", False, "row 0 keeps no key"),
        ("k <= q + N - M", None, "when M > N"),
    ],
)
def test_rows_that_may_keep_no_key(mask, safe, text):
    read = read_text(KERNEL.format(mask=mask, storage="", more="assume N >= 1", depth=64))
    found = explain_kernel(read, read.kernels[0], "sm90")
    assert found.rows.safe is safe
    assert text in to_text(found)
    assert to_data(found)["rows"]["keep_a_key"] is safe
