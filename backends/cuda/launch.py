"""Runs a cubin on CUDA tensors through the driver: tensor maps and argument arrays are made once per address and shape."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from cuda.bindings import driver
from torch import Tensor

from tilec.backends.base import Artifact
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import inputs_of

CALLS = 64  # argument arrays kept per call shape; an allocator hands out few addresses
PANEL = 64  # columns of a box: 128 bytes, the width of the swizzle
LEGAL_STRIDE = 16  # bytes
MAP_DTYPES = {
    "bf16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "f16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
}


def load(artifact: Artifact, signature: Signature, device: torch.device) -> CudaLauncher:
    """The launcher of `backends.base`."""
    return CudaLauncher(artifact, signature, device)


def done(result: tuple[Any, ...]) -> Any:
    """The value of a driver call.  Raises RuntimeError where it failed."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise RuntimeError(f"CUDA driver: {text.decode() if text else error}")
    return values[0] if len(values) == 1 else tuple(values)


def tensor_map(t: Tensor, dtype: str, box: Mapping[str, int]) -> Any:
    """Map of `t`, rank 5, over (64 columns, rows, panels, other dimensions from the last to the first), or for boxes of a single
    panel over (columns, rows, other dimensions).

    A dimension of one element may have any stride in torch; the hardware wants a multiple of 16 bytes there too."""
    axis, size = box["axis"], t.element_size()
    strides = [s * size if n > 1 else LEGAL_STRIDE for n, s in zip(t.shape, t.stride(), strict=True)]
    others = [n for n in reversed(range(t.ndim - 1)) if n != axis]
    if box["single"]:
        columns, panels, between = t.shape[-1], [], []
    else:
        columns, panels, between = PANEL, [box["columns"] // PANEL], [PANEL * size]
    dims = [columns, t.shape[axis], *panels, *(t.shape[n] for n in others)]
    steps = [strides[axis], *between, *(strides[n] for n in others)]
    tile = [PANEL, box["rows"], *panels, *(1 for _ in others)]
    pad = 5 - len(dims)
    return done(
        driver.cuTensorMapEncodeTiled(
            MAP_DTYPES[dtype],
            5,
            t.data_ptr(),
            [driver.cuuint64_t(n) for n in [*dims, *[1] * pad]],
            [driver.cuuint64_t(n) for n in [*steps, *[LEGAL_STRIDE] * pad]],
            [driver.cuuint32_t(n) for n in [*tile, *[1] * pad]],
            [driver.cuuint32_t(1)] * 5,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


class Shape:
    """One call shape: what a launch needs beside addresses.  `calls`: argument arrays by the tensors' addresses."""

    def __init__(self, blocks: int, extents: Mapping[str, int]) -> None:
        self.blocks, self.extents = blocks, extents
        self.calls: dict[tuple[int, ...], tuple[Any, list[Any]]] = {}


class Kernel:
    """A loaded kernel, called with tensors by name."""

    def __init__(self, artifact: Artifact, device: torch.device) -> None:
        self.metadata = artifact.metadata
        self.arguments = [tuple(a) for a in artifact.metadata["arguments"]]
        self.index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device(device.type, self.index)
        self.units = torch.cuda.get_device_properties(self.index).multi_processor_count
        torch.cuda.current_stream(self.index)  # the primary context exists from here on
        torch.zeros(1, device=self.device)
        cubin = next(b for n, b in artifact.binaries.items() if n.endswith(".cubin"))
        self.module = done(driver.cuModuleLoadData(cubin))
        self.function = done(driver.cuModuleGetFunction(self.module, self.metadata["function"].encode()))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        done(driver.cuFuncSetAttribute(self.function, attribute, self.metadata["shared"]))
        self.counted = next((of for _, kind, of, _ in self.arguments if self._mode(of, kind) == "counter"), None)
        self.counters: dict[int, Tensor] = {}  # of each stream: launches of one stream follow each other
        self.names = list(dict.fromkeys(of for _, kind, of, _ in self.arguments if kind in ("map", "pointer")))
        self.names = [n for n in self.names if n != self.counted]

    def _mode(self, of: str, kind: str) -> str:
        return cast("str", self.metadata["tensors"][of][0]) if kind == "pointer" else ""

    def shape(self, extents: Mapping[str, int]) -> Shape:
        """Blocks of a call.  The extent that it does not say is the device's: its multiprocessors."""
        known = {**dict.fromkeys(self.metadata["extents"], self.units), **extents}
        scope = {**known, **self.metadata["tile"], "min": min, "max": max}
        return Shape(int(eval(self.metadata["ctas"], {"__builtins__": {}}, scope)), known)

    def __call__(self, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        """Launches on the current stream.  Tensors of one Shape have equal shapes and strides."""
        if shape.blocks == 0:
            return
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        counter = self._counter(stream) if self.counted else 0
        key = (counter, *[tensors[n].data_ptr() for n in self.names])
        found = shape.calls.get(key)
        if found is None:
            if len(shape.calls) >= CALLS:
                shape.calls.clear()
            found = shape.calls[key] = self._pack(shape, tensors, counter)
        if self.counted:
            done(driver.cuMemsetD32Async(counter, shape.blocks, 1, stream))
        threads, shared = self.metadata["threads"], self.metadata["shared"]
        done(
            driver.cuLaunchKernel(
                self.function, shape.blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(found[0]), 0
            )
        )

    def _counter(self, stream: int) -> int:
        """Address of this stream's counter."""
        found = self.counters.get(stream)
        if found is None:
            found = self.counters[stream] = torch.empty(1, dtype=torch.int32, device=self.device)
        return int(found.data_ptr())

    def _pack(self, shape: Shape, tensors: Mapping[str, Tensor], counter: int) -> tuple[Any, list[Any]]:
        """The array of pointers to arguments, and what must live as long."""
        alive: list[Any] = []
        pointers: list[int] = []
        for name, kind, of, dimension in self.arguments:
            if kind == "map":
                held = tensor_map(tensors[of], self.metadata["tensors"][of][1], self.metadata["boxes"][name])
                pointers.append(held.getPtr())
            else:
                match kind:
                    case "pointer":
                        address = counter if of == self.counted else tensors[of].data_ptr()
                        held = ctypes.c_void_p(address)
                    case "stride":
                        held = ctypes.c_longlong(tensors[of].stride(dimension))
                    case _:
                        held = ctypes.c_int(shape.extents[of])
                pointers.append(ctypes.addressof(held))
            alive.append(held)
        return (ctypes.c_void_p * len(pointers))(*pointers), alive


class CudaLauncher:
    """A kernel with its signature: what the runtime calls."""

    def __init__(self, artifact: Artifact, signature: Signature, device: torch.device) -> None:
        self.kernel = Kernel(artifact, device)
        self.names = [*inputs_of(signature), *(o.name for o in signature.outputs)]

    def __call__(self, bound: Bound, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        shape = cast("Shape | None", bound.memo.get("cuda"))
        if shape is None:
            shape = self.kernel.shape(bound.extents)
            bound.memo["cuda"] = shape
        self.kernel(shape, dict(zip(self.names, (*tensors, *outputs), strict=True)))
