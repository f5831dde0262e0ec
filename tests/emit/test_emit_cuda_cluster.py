"""Kernels in clusters of two: what they print, and that the assembler keeps their registers and products."""

from functools import cache

import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.cuda import compile_program
from tilec.frontend import read_text
from tilec.native import lower_native


def spec(*lines, d=128, **parts):
    schedule = parts.pop("schedule", "schedule f on sm90 { cluster 2 }")
    return kernel(*lines, d=f"d : {d}", scale=f"scale 1 / sqrt({d})", schedule=schedule, **parts)


CASES = {
    "64, no mask": (spec(d=64), "rows"),
    "128, no mask": (spec(h="h : 4", head="h // 2"), "heads"),
    "128, causal": (spec(CAUSAL), "rows"),
    "128, causal, one key head": (spec(CAUSAL, h="h : 4", head="h // 4"), "heads"),
    "96, causal": (spec(CAUSAL, d=96), "rows"),
    "256, causal": (spec(CAUSAL, d=256), "rows"),
}


@cache
def compiled(text):
    read = read_text(text)
    program = lower_native(read.kernels[0], "sm90", read.schedule("f", "sm90"))
    return program, compile_program(program)


@pytest.mark.parametrize("name", CASES)
def test_a_pair_shares_its_copies(name):
    text, pairs = CASES[name]
    program, made = compiled(text)
    (source,) = (t for n, t in made.sources.items() if n.endswith(".cu"))
    assert program.grid.cluster == made.metadata["cluster"] == 2
    assert any(c.endswith("_pair") for c, _ in program.grid.coords) == (pairs == "heads")
    assert "__cluster_dims__(2, 1, 1)" in source and "cluster_ready();" in source
    assert source.count("copy_box_everywhere<2>(") == 4 and source.count("copy_box(") == 2  # Q once, and its definition
    assert "release.cluster.shared" not in source


def test_blocks_without_a_cluster_know_nothing_of_it():
    _, made = compiled(spec(CAUSAL, schedule="schedule f on sm90 { cluster 1 }"))
    (source,) = (t for n, t in made.sources.items() if n.endswith(".cu"))
    assert made.metadata["cluster"] == 1 and "everywhere" not in source and "cluster_ready" not in source
