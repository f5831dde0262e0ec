"""The spec's dtypes as NumPy dtypes; bf16 and the fp8 types come from ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilec.ir.attention import Dtype

NUMPY: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
FNUZ: dict[str, np.dtype[Any]] = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2fnuz),
}

# 2**-p for p significant bits: the largest relative error of one rounding to nearest.
UNIT_ROUNDOFF: dict[str, float] = {
    "f32": 2.0**-24,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "e4m3": 2.0**-4,
    "e5m2": 2.0**-3,
}


def numpy_dtype(name: Dtype, *, fnuz: bool = False) -> np.dtype[Any]:
    """The NumPy dtype of a spec dtype; `fnuz` picks gfx942's encoding of the fp8 types."""
    return FNUZ[name] if fnuz and name in FNUZ else NUMPY[name]
