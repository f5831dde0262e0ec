"""Dropout in CUDA C++: the bits of `ir.philox`, by the printed function itself, compiled for the host."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.cuda.emit import emit
from tilec.backends.cuda.prelude import FUNCTIONS
from tilec.frontend import read_text
from tilec.ir.philox import uniform
from tilec.native import lower_native

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
SPEC = kernel("dropout 0.25", CAUSAL, d="d : 64", h="g : 2, h : 2", query="Q[b, q, g, h, d]", lse="",
              output="O[b, q, g, h, d]", schedule="")  # fmt: skip
SEEDS = [(0, 0), (2**40 + 12345, 3), (-7, 2**33 + 1), (2**63 - 1, 2**32 - 1)]


@pytest.fixture(scope="module")
def philox(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("needs a C++ compiler for this machine")
    folder = tmp_path_factory.mktemp("philox")
    text = '#define DEVICE extern "C"\n#pragma GCC diagnostic ignored "-Wunknown-pragmas"\n' + FUNCTIONS["philox"]
    (folder / "p.cpp").write_text(text)
    subprocess.run(
        [COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", folder / "p.so", folder / "p.cpp"], check=True
    )
    found = ctypes.CDLL(folder / "p.so").philox
    found.restype, found.argtypes = ctypes.c_float, [ctypes.c_longlong] * 2 + [ctypes.c_uint] * 4
    return found


@pytest.mark.parametrize(("seed", "offset"), SEEDS)
def test_bits_are_those_of_the_interpreter(philox, seed, offset):
    words = np.random.default_rng(0).integers(0, 2**31, (200, 4))
    words[:4] = [[0, 0, 0, 0], [1, 2, 3, 4], [2**31 - 1] * 4, [0, 0, 0, 1]]
    expected = uniform(seed, offset, *words.T)
    assert [philox(seed, offset, *map(int, w)) for w in words] == expected.tolist()


def test_a_draw_is_that_of_its_batch_head_row_and_key():
    text = emit(lower_native(read_text(SPEC).kernels[0], "sm90")).text
    assert "long long seed = rng_ptr[" in text and "long long offset = rng_ptr[" in text
    joined = " ".join(text.split())
    draws = {d.partition(") >= 0.25f ?")[0] for d in joined.split("] = philox(")[1:]}
    assert draws and all(d.startswith("seed, offset, b, g_ * 2 + h, q_row + (row0 + 8 * row_of(e)), ") for d in draws)
    assert {d.rpartition(", ")[2] for d in draws} == {f"{j} * TK + (col0 + column_of(e))" for j in ("j", "j_first")}
