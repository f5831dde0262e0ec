"""Runs a code object on tensors of ROCm's torch, through hip-python.

It has not run on hardware: tests give it a module that records."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock
from typing import Any

import torch
from hip import hip
from torch import Tensor

from tilec.backends.base import Artifact, Run
from tilec.backends.hip.arguments import blocks, known
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import inputs_of
from tilec.dsl.faults import CallFault

FARTHEST = 2**25  # bytes between rows: a buffer of 64 rows is addressed by 32 bits


def load(artifact: Artifact, signature: Signature, device: torch.device) -> HipLauncher:
    """The launcher of `backends.base`."""
    return HipLauncher(artifact, signature, device)


def done(result: tuple[Any, ...]) -> Any:
    """The value of a call of the HIP runtime.  Raises RuntimeError where it failed."""
    error, *values = result
    if error != hip.hipError_t.hipSuccess:
        raise RuntimeError(f"HIP runtime: {error}")
    return values[0] if len(values) == 1 else tuple(values)


@dataclass
class Arguments:
    """What a launch is given; it copies all values before it returns.  `pointers`: those that hold the address of a tensor, by
    its number."""

    values: tuple[Any, ...]
    pointers: tuple[tuple[int, ctypes.c_void_p], ...]


@dataclass
class Shape:
    """One call shape: what a launch needs beside addresses; `arguments` are made at its first launch."""

    blocks: int
    extents: Mapping[str, int]
    arguments: Arguments | None = None


class Kernel:
    """A loaded kernel, called with tensors by name.  Threads may share it."""

    def __init__(self, artifact: Artifact, device: torch.device) -> None:
        self.metadata = artifact.metadata
        self.arguments = [tuple(a) for a in artifact.metadata["arguments"]]
        self.index = device.index if device.index is not None else torch.cuda.current_device()
        self.units = torch.cuda.get_device_properties(self.index).multi_processor_count
        code = next(b for n, b in artifact.binaries.items() if n.endswith(".hsaco"))
        self.module = done(hip.hipModuleLoadData(code))
        self.function = done(hip.hipModuleGetFunction(self.module, self.metadata["function"].encode()))
        self.threads = self.metadata["threads"]
        self.mutex = Lock()  # addresses are written and launched with as one
        self.names = list(dict.fromkeys(of for _, kind, of, _ in self.arguments if kind == "pointer"))
        self.names += list(
            dict.fromkeys(of for _, kind, of, _ in self.arguments if kind == "stride" and of not in self.names)
        )

    def shape(self, extents: Mapping[str, int]) -> Shape:
        """Blocks of a call."""
        values = known(self.metadata, extents, self.units)
        return Shape(blocks(self.metadata, values), values)

    def pack(self, shape: Shape, tensors: Sequence[Tensor]) -> Arguments:
        """Addresses, strides and extents in the kernel's order; tensors in the order of `names`.

        CallFault E1040 for a tensor whose rows are too far apart for 32-bit offsets."""
        values: list[Any] = []
        pointers: list[tuple[int, ctypes.c_void_p]] = []
        for _, kind, of, dimension in self.arguments:
            if kind == "extent":
                values.append(ctypes.c_int(shape.extents[of]))
                continue
            number = self.names.index(of)
            if kind == "pointer":
                values.append(ctypes.c_void_p(0))
                pointers.append((number, values[-1]))
                continue
            step = tensors[number].stride(dimension)
            for name, along, apart in self.metadata["rows"]:
                if (name, along) == (of, dimension):
                    near(of, step * apart * tensors[number].element_size())
            values.append(ctypes.c_longlong(step))
        return Arguments(tuple(values), tuple(pointers))

    def launch(self, shape: Shape, tensors: Sequence[Tensor], addresses: Sequence[int]) -> None:
        """Launches on the current stream; `tensors`, which only the first launch of a Shape needs, and their addresses are in
        the order of `names`."""
        if shape.blocks == 0:
            return
        if shape.arguments is None:
            shape.arguments = self.pack(shape, tensors)
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        with self.mutex:
            for number, held in shape.arguments.pointers:
                held.value = addresses[number]
            sizes = shape.blocks, 1, 1, self.threads, 1, 1, 0
            done(hip.hipModuleLaunchKernel(self.function, *sizes, stream, None, shape.arguments.values))


def near(of: str, step: int) -> None:
    """CallFault E1040 where rows of a tensor are too far apart."""
    if step >= FARTHEST:
        message = f"rows of `{of}` are {step:,} bytes apart"
        note = f"native kernels of gfx942 take rows less than {FARTHEST:,} bytes apart"
        raise CallFault("E1040", message, note=note, hint="a contiguous copy, or TILEC_BACKEND=triton")


class HipLauncher:
    """A kernel with its signature: what the runtime calls."""

    def __init__(self, artifact: Artifact, signature: Signature, device: torch.device) -> None:
        self.kernel = Kernel(artifact, device)
        names = [*inputs_of(signature), *(o.name for o in signature.outputs)]
        self.pick = itemgetter(*(names.index(n) for n in self.kernel.names))

    def prepare(self, bound: Bound) -> Run:
        """Strides and extents are made at the first launch."""
        launch, pick, shape = self.kernel.launch, self.pick, self.kernel.shape(bound.extents)

        def run(tensors: Sequence[Tensor], outputs: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
            launch(shape, () if shape.arguments else pick((*tensors, *outputs)), pick(addresses))

        return run
