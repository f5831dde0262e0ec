"""Masks and scores that read values of keys and rows, as machine code: what full tiles are spared, and that it fits."""

import re
from functools import cache

import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.base import Variant
from tilec.backends.cuda import ALIGNED, BACKEND
from tilec.backends.cuda.emit import emit
from tilec.frontend import read_text
from tilec.native import lower_native
from tilec.schedule import EMPTY
from tilec.targets.inspect import sass

DOCUMENTS = ("param doc[b, k] : i32 nondecreasing", "mask doc[b, q] == doc[b, k] and k <= q")


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", scale=f"scale 1 / sqrt({d})", schedule="", **parts)


SPECS = {
    "documents, 64": spec(*DOCUMENTS, d=64, k="k : M"),
    "documents, 128": spec(*DOCUMENTS, k="k : M"),
    "documents, 256": spec(*DOCUMENTS, d=256, k="k : M"),
    "packed documents": spec(*DOCUMENTS, q="q : M packed cu", k="k : M packed cu"),
    "flags of keys": spec("param keep[b, k] : bool", "mask keep[b, k] and k <= q + N - M"),
    "flags of pairs": spec("param keep[b, q, k] : bool", "mask keep[b, q, k]", d=64),
    "scores of keys and rows": spec("param x[b, k] : f32", "param y[b, q] : bf16", "score s = s * x[b, k] + y[b, q]", CAUSAL),
}  # fmt: skip


@cache
def artifact(name):
    return BACKEND.compile(read_text(SPECS[name]).kernels[0], "sm90", EMPTY, Variant((), ALIGNED))


@pytest.mark.skipif(sass.disassembler() is None, reason="no nvdisasm here")
@pytest.mark.parametrize("name", SPECS)
def test_it_compiles_at_full_width(name):
    made = artifact(name)
    assert made.metadata["registers"] <= 168 and made.metadata["machine"]["steps"]


def loops(text):
    """Text of each key loop of the consumers, by segment."""
    consumer = text[text.index("// role consumer") :]
    parts = re.split(r"// (left|full|right) \(", consumer)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def printed(name):
    return emit(lower_native(read_text(SPECS[name]).kernels[0], "sm90")).text


def test_full_tiles_have_no_mask_and_read_no_document():
    found = loops(printed("documents, 128"))
    assert "from_lanes(" in found["left"] and "from_lanes(" in found["right"]
    full = found["full"]
    assert "doc_ptr" not in full and "doc_tile" not in full and "from_lanes(" not in full


def test_lanes_search_together_and_the_consumers_do_not():
    text = printed("documents, 128")
    producer, consumer = text[text.index("// role producer") :].split("// role consumer")
    assert producer.count("for (int end_1 = M, end_2 = M;") == 1 and producer.count("narrow(") == 2
    assert "narrow(" not in consumer and "lanes_where(" not in consumer


def test_a_lane_passes_each_value_on_once_for_both_rows():
    left = loops(printed("documents, 128"))["left"]
    assert left.count("from_lanes(") == 1 and "x < 32" in left  # 64 registers of 2 rows


def test_a_vector_of_an_uneven_tile_ends_where_the_tile_does():
    assert "lane + 32 * x < 80 ?" in printed("documents, 256")
