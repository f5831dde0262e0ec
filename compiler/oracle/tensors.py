"""Calls' arrays as torch tensors and back, by their bits.  Imports torch only inside its functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# NumPy dtypes that torch knows under the same name but cannot exchange: bits travel as an integer of that width.
_BY_BITS = {
    np.dtype(ml_dtypes.bfloat16): ("bfloat16", "int16"),
    np.dtype(ml_dtypes.float8_e4m3fn): ("float8_e4m3fn", "uint8"),
    np.dtype(ml_dtypes.float8_e5m2): ("float8_e5m2", "uint8"),
    np.dtype(ml_dtypes.float8_e4m3fnuz): ("float8_e4m3fnuz", "uint8"),
    np.dtype(ml_dtypes.float8_e5m2fnuz): ("float8_e5m2fnuz", "uint8"),
}


def to_torch(arrays: Mapping[str, NDArray[Any]], device: str = "cpu") -> dict[str, Any]:
    """Contiguous torch tensors of the same bits on `device`."""
    import torch

    out = {}
    for name, array in arrays.items():
        array = np.ascontiguousarray(array).reshape(array.shape)
        if array.dtype in _BY_BITS:
            kind, bits = _BY_BITS[array.dtype]
            tensor = torch.from_numpy(array.view(bits).copy()).view(getattr(torch, kind))
        else:
            tensor = torch.from_numpy(array.copy())
        out[name] = tensor.to(device)
    return out


def from_torch(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """NumPy arrays of the same bits; waits for the device."""
    import torch

    kinds = {getattr(torch, kind): (dtype, getattr(torch, bits)) for dtype, (kind, bits) in _BY_BITS.items()}
    out = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().contiguous().cpu()
        if plain.dtype in kinds:
            dtype, bits = kinds[plain.dtype]
            out[name] = plain.view(bits).numpy().view(dtype)
        else:
            out[name] = plain.numpy()
    return out
