"""Lengths that are no multiple of a tile, with poison behind every tensor, and tables that are looked up at every position."""

import ast

import numpy as np
import pytest
from case_kit import spec

from tilec.aot import compile_all
from tilec.frontend import read_text

NESTED = {
    "a table by a table": spec(
        "param group[b, k] : i32", "param t[g] : f32", "score s = s + t[group[b, k]]", more=", g : 4"
    ),
    "a table by pairs": spec(
        "param group[q, k] : i32", "param t[g] : f32", "score s = s + t[group[q, k]]", more=", g : 4"
    ),
    "pages": spec(k="lengths n", tails="paged pages[b, k // 16]"),
}

EDGES = [1, 2, 15, 16, 17, 31, 48, 65]


@pytest.mark.parametrize("mask", ["mask true", "mask k <= q + N - M"])
@pytest.mark.parametrize("m", EDGES)
def test_any_length_is_right(attend, m, mask):
    """https://github.com/jax-ml/jax/issues/27224"""
    text = spec(mask, heads=1, d=16)
    for n in EDGES:
        attend(text, {"B": 1, "M": m, "N": n})


@pytest.mark.parametrize("tile", [(16, 64), (64, 16), (64, 64)])
def test_any_length_is_right_for_tall_and_wide_tiles(attend, tile):
    """https://github.com/jax-ml/jax/issues/27224"""
    text = spec("mask k <= q + N - M", heads=1, d=16, tile=tile)
    for m, n in ((1, 63), (63, 1), (64, 65), (65, 64), (127, 130), (10, 10)):
        attend(text, {"B": 1, "M": m, "N": n})


def test_keys_that_do_not_exist_weigh_nothing(attend):
    """https://github.com/jax-ml/jax/issues/27224"""
    n = 17
    one = np.ones((1, n, 2, 32), np.float32)
    r = attend(spec(dtype="f32"), {"B": 1, "M": 5, "N": n}, inputs={"K": 0 * one, "V": one})
    assert np.allclose(r.o, 1) and np.allclose(r.lse, np.log(n))


LOOKUPS = {
    "a mask by document": ("param doc[b, k] : i32", "mask doc[b, q] == doc[b, k]"),
    "documents in order": ("param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k <= q"),
    "flags of keys": ("param keep[b, k] : bool", "mask keep[b, k]"),
    "flags of rows": ("param keep[b, q] : bool", "mask keep[b, q]"),
    "a bias of keys": ("bias T[b, k] : f32", "score s = s + T[b, k]"),
    "a bias of rows": ("param T[q] : f32", "score s = s * T[q]"),
    "a bias of pairs": ("bias T[h, q, k] : f32", "score s = s + T[h, q, k]"),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_tables_are_not_read_past_their_end(attend, name):
    """https://github.com/pytorch/pytorch/issues/137801"""
    attend(spec(*LOOKUPS[name]), {"B": 2, "M": 46, "N": 46})


def test_what_lies_past_the_end_is_no_index(attend):
    """A table read through another: a position past the end would give an address far outside.

    https://github.com/pytorch/pytorch/issues/137801"""
    rng = np.random.default_rng(0)
    given = {"group": rng.integers(0, 4, (2, 46)).astype(np.int32)}
    attend(NESTED["a table by a table"], {"B": 2, "M": 46, "N": 46}, inputs=given)


def loads(tree):
    """Calls of tl.load under a node, and whether each has a mask."""
    for x in ast.walk(tree):
        if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute) and x.func.attr == "load":
            yield x, any(w.arg == "mask" for w in x.keywords)


def varies(x, name="k"):
    return any(isinstance(y, ast.Name) and y.id == name for y in ast.walk(x))


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
@pytest.mark.parametrize("name", NESTED)
def test_reads_inside_an_index_exist_as_well(name, target):
    """https://github.com/pytorch/pytorch/issues/137801"""
    read = read_text(NESTED[name])
    files = compile_all(read, read.kernels[0], target, "triton")[-1].sources
    (text,) = (t for n, t in files.items() if n.endswith(".py"))
    last = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.For)][
        -1
    ]  # the tiles that may hold positions past the end
    found = [(x, has) for x, has in loads(last) if varies(x)]
    assert len(found) > 2 and all(has for _, has in found)
