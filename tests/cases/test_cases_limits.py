"""Limits: offsets beyond 32 bits, more blocks than an axis of the grid has, and tiles that fit the memory of each target."""

from math import prod

import numpy as np
import pytest
from address_audit import Wraps, audit
from case_kit import spec

from tilec.backends.base import Variant, backend
from tilec.backends.triton.launch import source_of
from tilec.budget import shared_memory
from tilec.dsl.faults import Faults
from tilec.frontend import read_text
from tilec.ir.nodes import For, walk
from tilec.pipeline import lower
from tilec.targets import target as target_table

TARGETS = ("sm80", "sm90", "gfx942")


def compiled(text, target):
    """Source and metadata of the variant for any strides."""
    read = read_text(text)
    attn = read.kernels[0]
    artifact = backend("triton").compile(attn, target, read.schedule(attn.name, target), Variant())
    return source_of(artifact)[1], artifact.metadata


def contiguous(*shape):
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def blocks_of(metadata, extents):
    """Blocks of a launch, as the launcher counts them."""
    scope = {**extents, **metadata["tile"], "min": min, "max": max}
    return eval(metadata["ctas"], {"__builtins__": {}}, scope)


def end_of(strides, shape):
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


DENSE = {"B": 3, "M": 2000, "N": 3000}
SHAPES = {"Q": (3, 2000, 2, 32), "K": (3, 3000, 2, 32), "V": (3, 3000, 2, 32), "O": (3, 2000, 2, 32), "L": (3, 2, 2000)}
WIDE = {  # one dimension at a time with a stride that takes its end past 2**32
    "batches": lambda shape: (2**32, *contiguous(*shape)[1:]),
    "rows": lambda shape: (contiguous(*shape)[0], 9_728_000, *contiguous(*shape)[2:]),
    "heads": lambda shape: (*contiguous(*shape)[:2], 2**33, 1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("name", ["Q", "K", "V", "O"])
def test_offsets_of_a_wide_tensor_do_not_wrap(name, wide, target):
    """https://github.com/Dao-AILab/flash-attention/issues/2611"""
    source, metadata = compiled(spec("mask k <= q + N - M", tile=(64, 64)), target)
    strides = {n: contiguous(*shape) for n, shape in SHAPES.items()}
    strides[name] = WIDE[wide](SHAPES[name])
    last = {"b": 2, "h": 1, "m": 31}
    reached = audit(source, metadata, DENSE, strides, blocks=blocks_of(metadata, DENSE), last=last)
    assert reached.keys() == SHAPES.keys()
    assert all(reached[n] >= end_of(strides[n], SHAPES[n]) for n in SHAPES) and reached[name] > 2**32


def test_the_audit_finds_a_narrow_product():
    """https://github.com/Dao-AILab/flash-attention/issues/2611"""
    source, metadata = compiled(spec(tile=(64, 64)), "sm90")
    strides = {n: contiguous(*shape) for n, shape in SHAPES.items()}
    narrow = source.replace("q.to(tl.int64) * Q_s1", "q * 9728000")
    assert narrow != source
    with pytest.raises(Wraps, match="9728000"):
        audit(narrow, metadata, DENSE, strides, blocks=1, last={"b": 2, "h": 1, "m": 31})


@pytest.mark.parametrize("target", TARGETS)
def test_offsets_of_packed_rows_do_not_wrap(target):
    """https://github.com/Dao-AILab/flash-attention/issues/2611"""
    text = spec("mask k <= q + N - M", heads=16, d=96, q="packed cu_q", k="packed cu_k", tile=(64, 64))
    source, metadata = compiled(text, target)
    rows, sequences = 410_923, 7
    shape, wide = (rows, 16, 96), (9728, 96, 1)
    extents = {"M_rows": rows, "N_rows": rows, "B": sequences}
    strides = dict.fromkeys("QKVO", wide) | {"L": (rows, 1), "cu_q": (1,), "cu_k": (1,)}
    offsets = {n: lambda at: rows * at // sequences for n in ("cu_q", "cu_k")}
    last = {"b": sequences - 1, "h": 15, "m": (rows - rows * 6 // 7 - 1) // 64}
    blocks = blocks_of(metadata, extents)
    reached = audit(source, metadata, extents, strides, blocks=blocks, last=last, tables=offsets)
    assert all(reached[n] >= end_of(wide, shape) > 2**31 for n in "QKVO") and reached["L"] >= 16 * rows - 1


@pytest.mark.parametrize("target", TARGETS)
def test_offsets_of_pages_do_not_wrap(target):
    """https://github.com/Dao-AILab/flash-attention/issues/2611"""
    text = spec(k="lengths n", tails="paged pages[b, k // 64]", tile=(64, 64))
    source, metadata = compiled(text, target)
    pool = 1_000_000
    extents = {"B": 4, "M": 1, "K_pages": pool, "V_pages": pool, "pages_width": 100, "N_rows": 6400}
    strides = {"Q": contiguous(4, 1, 2, 32), "O": contiguous(4, 1, 2, 32), "L": (2, 1, 1), "pages": (100, 1), "n": (1,)}
    strides |= {n: contiguous(pool, 64, 2, 32) for n in "KV"}
    tables = {"pages": lambda at: pool - 1, "n": lambda at: 6400}
    last = {"b": 3, "h": 1, "m": 0}
    reached = audit(source, metadata, extents, strides, blocks=8, last=last, tables=tables)
    assert all(reached[n] >= pool * 64 * 64 - 1 > 2**31 for n in "KV")
    assert reached["pages"] >= 399


@pytest.mark.parametrize("target", TARGETS)
def test_offsets_of_biases_and_params_do_not_wrap(target):
    """https://github.com/Dao-AILab/flash-attention/issues/2611"""
    lines = "bias T[b, h, q, k] : f32", "param near[q, k] : bool", "score s = s + T[b, h, q, k]", "mask near[q, k]"
    source, metadata = compiled(spec(*lines, tile=(64, 64)), target)
    n = 65536
    extents = {"B": 2, "M": n, "N": n}
    strides = {x: contiguous(2, n, 2, 32) for x in "QKVO"} | {"L": (2 * n, n, 1), "near": (n, 1)}
    strides["T"] = contiguous(2, 2, n, n)
    last = {"b": 1, "h": 1, "m": n // 64 - 1}
    reached = audit(source, metadata, extents, strides, blocks=blocks_of(metadata, extents), last=last)
    assert reached["T"] == 4 * n * n - 1 and reached["near"] == n * n - 1


GRIDS = {
    "65535 sequences": (spec(), {"B": 65535, "M": 16, "N": 16}),
    "65536 sequences": (spec(), {"B": 65536, "M": 16, "N": 16}),
    "many heads": (spec(heads="H"), {"B": 1, "M": 16, "N": 16, "H": 65536}),
    "a long sequence": (spec(), {"B": 1, "M": 2**24, "N": 16}),
    "packed": (spec(q="packed cu", k="packed cu").replace("N packed", "M packed"), {"B": 80000, "M_rows": 1_280_000}),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRIDS)
def test_any_number_of_sequences_is_one_axis_of_blocks(name, target):
    """https://github.com/Dao-AILab/flash-attention/issues/1786"""
    text, extents = GRIDS[name]
    source, metadata = compiled(text, target)
    blocks = blocks_of(metadata, extents)
    assert prod(v for n, v in extents.items() if n in "BH") <= blocks <= target_table(target).grid[0]
    assert "program_id(1)" not in source and "program_id(2)" not in source


def test_every_one_of_many_sequences_is_computed(attend):
    """https://github.com/Dao-AILab/flash-attention/issues/1786"""
    rows = [1] * 50
    text = spec(heads=1, d=16, q="packed cu_q", k="packed cu_k", dtype="f32")
    r = attend(text, {"B": 50, "M": 1, "N": 1}, lengths={"q": rows, "k": rows})
    assert np.array_equal(r.outputs["O"], r.inputs["V"])


WIDTHS = [(192, 128), (192, 192), (256, 256), (512, 512)]


@pytest.mark.parametrize("target", ["sm80", "sm89", "sm90", "sm100", "gfx942", "gfx950"])
@pytest.mark.parametrize(("d", "e"), WIDTHS)
def test_chosen_tiles_fit_the_target(d, e, target):
    """https://github.com/pytorch/pytorch/issues/180278"""
    machine = target_table(target)
    for lines in (("mask k <= q",), ("bias T[h, q, k] : f32", "score s = s + T[h, q, k]"), ("sink Z[h] : f32",)):
        read = read_text(spec(*lines, d=d, e=e, tile=None))
        program = lower(read.kernels[0], target)
        tile = {n.lower(): v for n, v in program.tile}
        stages = max([s.stages or 1 for s in walk(program.roles[0].body) if isinstance(s, For)], default=1)
        budget = shared_memory(read.kernels[0], machine, tile["tq"], tile["tk"], stages)
        assert budget.fits, f"{tile}: {budget}"


@pytest.mark.parametrize("target", ["sm80", "gfx942"])
def test_tiles_too_large_for_a_target_are_refused_with_the_sum(target):
    """https://github.com/pytorch/pytorch/issues/180278"""
    read = read_text(spec(d=256, tile=(256, 256)))
    with pytest.raises(Faults, match="bytes of shared memory") as refused:
        lower(read.kernels[0], target, read.schedule("case", target))
    assert "would fit" in str(refused.value)
