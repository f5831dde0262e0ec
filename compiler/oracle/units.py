"""How a target's matrix and special-function units round: the arithmetic of `numerics`, one entry for each fact that a target
table states under `features`.

    short_fp8_sums  products of 8-bit operands, 32 at a time: all addends aligned to the largest and cut off 13 bits below it
                    (DeepSeek-V3 technical report, section 3.3.2: "around 14 bits")
    cut_sums        products of 16-bit operands, 16 at a time: each sum with the accumulator is cut off, not rounded, to f32
                    (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Comput. Sci. 7:e330)
    short_tanh      tanh is good to a relative 2^-11 (PTX ISA, tanh.approx.f32)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from tilec.ir.attention import Dtype
from tilec.oracle.dtypes import numpy_dtype
from tilec.oracle.weights import Arithmetic, matmul

if TYPE_CHECKING:
    from tilec.targets import Target

Array = NDArray[Any]
SHORT_BITS, SHORT_TERMS = 13, 32
CUT_TERMS = 16
TANH_BITS = 11


@dataclass(frozen=True)
class Units:
    """`fnuz`: gfx942's encodings of fp8; the others as above.  The default rounds to nearest everywhere."""

    fnuz: bool = False
    short_sums: bool = False
    cut_sums: bool = False
    short_tanh: bool = False

    @property
    def arithmetic(self) -> Arithmetic:
        """float32 with roundings to storage dtypes."""
        tanh = short_tanh if self.short_tanh else np.tanh
        return Arithmetic(np.float32, partial(_rounded, fnuz=self.fnuz), self.product, tanh)

    def product(self, a: Array, b: Array, dtype: str) -> Array:
        """a @ b of operands that were stored as `dtype`."""
        if self.short_sums and dtype in ("e4m3", "e5m2"):
            return short_product(a, b)
        if self.cut_sums and dtype in ("bf16", "f16"):
            return cut_product(a, b)
        return matmul(a, b, dtype)


NEAREST = Units()


def units_of(target: Target) -> Units:
    """The units of a target's table."""
    has = target.features.__contains__
    return Units(target.fp8 == "fnuz", has("short_fp8_sums"), has("cut_sums"), has("short_tanh"))


def _rounded(x: Array, dtype: str, *, fnuz: bool) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(numpy_dtype(cast("Dtype", dtype), fnuz=fnuz)).astype(np.float32)


def short_product(a: Array, b: Array) -> Array:
    """a @ b by the rule of `short_fp8_sums`."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for rows in range(0, a.shape[0], 64):
        at = slice(rows, rows + 64)
        for first in range(0, a.shape[1], SHORT_TERMS):
            terms = a[at, first : first + SHORT_TERMS, None] * b[None, first : first + SHORT_TERMS]
            addends = np.concatenate([terms, out[at, None]], axis=1)
            unit = np.ldexp(1.0, np.frexp(np.abs(addends).max(axis=1, keepdims=True))[1] - 1 - SHORT_BITS)
            out[at] = (np.trunc(addends / unit) * unit).sum(axis=1)
    return out


def cut_product(a: Array, b: Array) -> Array:
    """a @ b by the rule of `cut_sums`."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, a.shape[1], CUT_TERMS):
            some = slice(first, first + CUT_TERMS)
            out = _cut(out + a[:, some].astype(np.float64) @ b[some].astype(np.float64))
    return out


def _cut(x: Array) -> Array:
    """float64 to float32, towards zero."""
    near: Array = x.astype(np.float32)
    past: Array = np.abs(near) > np.abs(x)
    cut: Array = np.where(past, np.nextafter(near, np.float32(0)), near)
    return cut


def short_tanh(x: Array) -> Array:
    """tanh by the rule of `short_tanh`: rounded to 11 bits."""
    mantissa, exponent = np.frexp(np.tanh(x))
    found: Array = np.ldexp(np.rint(np.ldexp(mantissa, TANH_BITS)), exponent - TANH_BITS).astype(x.dtype)
    return found
