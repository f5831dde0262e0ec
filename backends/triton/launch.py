"""Runs a Triton kernel on CUDA or HIP tensors, or under Triton's interpreter on CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilec.backends.base import Artifact
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import inputs_of
from tilec.backends.triton.build import compile_kernel


def load(artifact: Artifact, signature: Signature, device: torch.device) -> TritonLauncher | InterpretedLauncher:
    """The launcher of `backends.base`."""
    if artifact.metadata["interpret"]:
        return InterpretedLauncher(artifact, signature)
    return TritonLauncher(artifact, signature)


def source_of(artifact: Artifact) -> tuple[str, str]:
    """(file name, text) of the generated Triton module."""
    return next((n, t) for n, t in artifact.sources.items() if n.endswith(".triton.py"))


def scalars(artifact: Artifact, signature: Signature, bound: Bound) -> tuple[list[int], int]:
    """(strides and extents in the kernel's order, number of blocks) of one call shape."""
    outputs = bound.output_strides or tuple(_contiguous(o.shape) for o in bound.outputs)
    strides = dict(
        zip([*signature.names, *(o.name for o in signature.outputs)], (*bound.strides, *outputs), strict=True)
    )
    values: list[int] = []
    for _, kind, of, dimension in artifact.metadata["arguments"]:
        if kind in ("stride", "extent"):
            values.append(strides[of][dimension] if kind == "stride" else bound.extents[of])
    scope = {**bound.extents, **artifact.metadata["tile"], "min": min, "max": max}
    return values, int(eval(artifact.metadata["ctas"], {"__builtins__": {}}, scope))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(1, n)
    return tuple(reversed(strides))


def order_of(artifact: Artifact, signature: Signature) -> list[int]:
    """For each tensor argument of the kernel, which of (arguments + outputs) it is."""
    names = [*inputs_of(signature), *(o.name for o in signature.outputs)]
    return [names.index(of) for _, kind, of, _ in artifact.metadata["arguments"] if kind in ("pointer", "box")]


class Box:
    """What Triton's launcher reads of a tensor descriptor, without the checks that `aligned` has already made."""

    __slots__ = ("base", "padding", "shape", "strides")

    def __init__(self, base: Tensor) -> None:
        self.base, self.shape, self.strides, self.padding = base, base.shape, base.stride(), "zero"


class TritonLauncher:
    """One compiled kernel.  Launches Triton's compiled object directly: no binder, no key of arguments per call."""

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        self.artifact, self.signature = artifact, signature
        name, source = source_of(artifact)
        aligned = "aligned" in artifact.variant.features
        self.kernel = compile_kernel(name, source, artifact.metadata, artifact.target, aligned=aligned)
        kinds = [kind for _, kind, _, _ in artifact.metadata["arguments"]]
        self.order = list(zip(order_of(artifact, signature), (k == "box" for k in kinds), strict=False))
        self.constants = tuple(artifact.metadata["constants"].values())

    def __call__(self, bound: Bound, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        prepared = bound.memo.get("triton")
        if prepared is None:
            values, blocks = scalars(self.artifact, self.signature, bound)
            kernel = self.kernel
            run, function, packed = kernel.run, kernel.function, kernel.packed_metadata
            tail = (*values, *self.constants)
            index = bound.device.index if bound.device.index is not None else torch.cuda.current_device()
            prepared = bound.memo["triton"] = (run, function, packed, blocks, tail, index)
        run, function, packed, blocks, tail, index = prepared  # type: ignore[misc]
        both = (*tensors, *outputs)
        pointers = [Box(both[i]) if box else both[i].data_ptr() for i, box in self.order]
        stream = torch._C._cuda_getCurrentRawStream(index)
        run(blocks, 1, 1, stream, function, packed, None, None, None, *pointers, *tail)


class InterpretedLauncher:
    """The same kernel under Triton's CPU interpreter, in a process of its own (see `worker`)."""

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        self.artifact, self.signature = artifact, signature
        self.order = order_of(artifact, signature)

    def __call__(self, bound: Bound, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        from tilec.backends.triton.worker import client

        values, blocks = scalars(self.artifact, self.signature, bound)
        both: list[Any] = [*tensors, *outputs]
        written = {both[i].data_ptr() for i in range(len(tensors), len(both))}
        client().run(
            source_of(self.artifact),
            self.artifact.metadata,
            [both[i] for i in self.order],
            [both[i].data_ptr() in written for i in self.order],
            values,
            blocks,
        )
