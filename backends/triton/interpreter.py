"""Corrections to Triton's CPU interpreter, so that an interpreted kernel computes what a compiled one does.

Triton 3.6 there truncates where hardware rounds to nearest even, turns NaN into a number, multiplies bf16 as the integers
that hold its bits, and reads loop bounds in a way that NumPy 2.4 refuses.  `correct` is for the process of `worker` alone.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

FLOATS = {
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
}


def values(handle: Any) -> Any:
    """A tile's numbers, of its own dtype: the interpreter keeps bf16 and fp8 as unsigned integers."""
    return handle.data.view(FLOATS[str(handle.dtype.scalar)])


def correct() -> None:
    """Replaces the operations named above; takes effect for every kernel that this process interprets."""
    from triton.runtime import interpreter

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        exact = np.ascontiguousarray(data).view(FLOATS[str(source.scalar)])
        out = exact.astype(FLOATS[str(target.scalar)])
        return out.view(f"u{out.dtype.itemsize}")

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        product = np.matmul(values(a).astype(np.float32), values(b).astype(np.float32))
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter._patch_lang_tensor = patch_tensor
