"""Runs a tile program on CPU tensors: their memory is handed to the interpreter as NumPy arrays, whatever the strides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from tilec.backends.base import Artifact, Run
from tilec.backends.cpu import PROGRAM, RECORD
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import inputs_of

# dtypes that NumPy has no name for: the torch integer of the same width, and the ml_dtypes type of the same bits
_FOREIGN = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


def as_numpy(t: Tensor) -> np.ndarray:
    """The tensor's own memory as an array of the same shape, strides and dtype: writes go through."""
    t = t.detach()
    if t.dtype in _FOREIGN:
        word, dtype = _FOREIGN[t.dtype]
        bits: np.ndarray = t.view(word).numpy()
        return bits.view(dtype)
    plain: np.ndarray = t.numpy()
    return plain


class CpuLauncher:
    """One program and the attention it came from, ready to interpret."""

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        from tilec.ir.parse import parse_program
        from tilec.ir.record import read_record

        self.signature = signature
        self.program = parse_program(artifact.sources[PROGRAM])
        self.attention = read_record(artifact.sources[RECORD])

    def prepare(self, bound: Bound) -> Run:
        """The interpreter, for that shape."""
        return partial(self.run, bound)

    def run(
        self, bound: Bound, tensors: Sequence[Tensor], outputs: Sequence[Tensor], addresses: tuple[int, ...] = ()
    ) -> None:
        """Fills `outputs`."""
        from tilec.ir.interp import run

        names = (*inputs_of(self.signature), *(o.name for o in self.signature.outputs))
        arrays = {n: as_numpy(t) for n, t in zip(names, (*tensors, *outputs), strict=True)}
        run(self.program, arrays, dict(bound.extents))

    def backward(
        self,
        bound: Bound,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        d_outputs: Sequence[Tensor | None],
        d_inputs: Sequence[Tensor],
    ) -> None:
        """Gradients in float64 by the oracle, rounded once to the inputs' dtypes."""
        from tilec.oracle.exact import gradients

        signature = self.signature
        arrays = {n: as_numpy(t) for n, t in zip(inputs_of(signature), tensors, strict=True)}
        given = [None if d is None else as_numpy(d) for d in d_outputs]
        d_output = np.zeros(outputs[0].shape) if given[0] is None else given[0]
        draw = dict(zip(("seed", "offset"), arrays.pop(signature.dropout or "", ()), strict=False))
        found = gradients(self.attention, arrays, d_output, *given[1:], **draw)
        for name, into in zip(signature.gradients, d_inputs, strict=True):
            array = as_numpy(into)
            array[...] = found[name].astype(array.dtype)


def load(artifact: Artifact, signature: Signature, device: torch.device) -> CpuLauncher:
    """The launcher of `backends.base`."""
    return CpuLauncher(artifact, signature)
