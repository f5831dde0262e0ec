"""Runs a cubin on CUDA tensors through the driver: arguments are made once per call shape, and then only addresses change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from threading import Lock
from typing import Any, cast

import torch
from cuda.bindings import driver
from torch import Tensor

from tilec.backends.base import Artifact, Run
from tilec.backends.cuda.maps import geometry
from tilec.backends.runtime.capture import loading
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import inputs_of

MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a CUtensorMap (cuda.h)
SLAB = 1024  # counters allocated at once
MAP_DTYPES = {
    "bf16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "f16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
}


def load(artifact: Artifact, signature: Signature, device: torch.device) -> CudaLauncher:
    """The launcher of `backends.base`."""
    return CudaLauncher(artifact, signature, device)


class NoContext(RuntimeError):
    """The thread has no CUDA context: it has made no call of the runtime API yet."""


def done(result: tuple[Any, ...]) -> Any:
    """The value of a driver call.  Raises RuntimeError where it failed, NoContext for want of a context."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        kind = NoContext if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT else RuntimeError
        raise kind(f"CUDA driver: {text.decode() if text else error}")
    return values[0] if len(values) == 1 else tuple(values)


def tensor_map(t: Tensor, dtype: str, box: Mapping[str, Any]) -> tuple[Any, int]:
    """Map of `t` for such boxes, of rank 5 and 128-byte swizzled (see `geometry`), and its first element's bytes from `t`'s."""
    g = geometry(t.shape, t.stride(), t.element_size(), box)
    held = done(
        driver.cuTensorMapEncodeTiled(
            MAP_DTYPES[dtype],
            len(g.dims),
            t.data_ptr() + g.offset,
            [driver.cuuint64_t(n) for n in g.dims],
            [driver.cuuint64_t(n) for n in g.steps],
            [driver.cuuint32_t(n) for n in g.box],
            [driver.cuuint32_t(1)] * len(g.dims),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return held, g.offset


def placed(held: Any) -> tuple[Any, Any]:
    """The same map at a multiple of 64 bytes, as the driver's API wants it and Python's objects are not; and its memory."""
    memory = ctypes.create_string_buffer(2 * MAP_BYTES)
    at = -(-ctypes.addressof(memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    ctypes.memmove(at, held.getPtr(), MAP_BYTES)
    return driver.CUtensorMap(_ptr=at), memory


class Shape:
    """One call shape: what a launch needs beside addresses.  `start(stream, arguments, 0)` launches its blocks; `arguments` are
    made at its first launch."""

    def __init__(self, blocks: int, extents: Mapping[str, int], start: Callable[..., tuple[Any, ...]]) -> None:
        self.blocks, self.extents, self.start = blocks, extents, start
        self.arguments: Arguments | None = None


class Early:
    """cuLaunchKernel for kernels that may begin before the launch in front of them has ended.  One thread at a time."""

    def __init__(self, function: Any, x: int, y: int, z: int, tx: int, ty: int, tz: int, shared: int) -> None:
        self.function, self.config, self.stream = function, driver.CUlaunchConfig(), 0
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = x, y, z
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = tx, ty, tz
        self.config.sharedMemBytes = shared
        early = driver.CUlaunchAttribute()
        early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        self.config.attrs = [early]
        self.config.numAttrs = 1

    def __call__(self, stream: int, arguments: int, extra: int) -> tuple[Any, ...]:
        if stream != self.stream:
            self.config.hStream = self.stream = stream
        return cast("tuple[Any, ...]", driver.cuLaunchKernelEx(self.config, self.function, arguments, extra))


class Arguments:
    """What cuLaunchKernel reads, at `address`: pointers to `values`, some of which lie in `memory`.  A launch copies all values
    before it returns, so the next one may write other addresses of tensors into them.

    `maps` and `pointers` are those values that hold the address of a tensor, by its number, a map's with an offset; `counter`
    is the one that changes from launch to launch, None without one."""

    def __init__(
        self,
        values: Sequence[Any],
        maps: Sequence[tuple[int, Any, int]],
        pointers: Sequence[tuple[int, ctypes.c_void_p]],
        counter: ctypes.c_void_p | None,
        memory: Sequence[Any] = (),
    ) -> None:
        self.values, self.maps, self.pointers, self.counter, self.memory = values, maps, pointers, counter, memory
        self.addresses: tuple[int, ...] = ()
        places = [v.getPtr() if hasattr(v, "getPtr") else ctypes.addressof(v) for v in values]
        self.array = (ctypes.c_void_p * len(places))(*places)
        self.address = ctypes.addressof(self.array)

    def move(self, addresses: tuple[int, ...]) -> None:
        """The tensors are at `addresses` now."""
        before, self.addresses = self.addresses or (None,) * len(addresses), ()  # a failure leaves nothing known
        for number, held, offset in self.maps:
            if addresses[number] != before[number]:
                done(driver.cuTensorMapReplaceAddress(held, addresses[number] + offset))
        for number, held in self.pointers:
            held.value = addresses[number]
        self.addresses = addresses


class Counters:
    """Counters that kernels claim tiles from: 0 before a launch, and 0 again after it (`claim` wraps).

    Launches of one stream follow each other and share one.  A captured launch has its own: its graph may be replayed
    beside that stream.  Their memory is the driver's and cleared by a stream of its own, so that no capture sees either."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.streams: dict[int, int] = {}
        self.own = done(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.free = self._allocate()

    def of(self, stream: int) -> int:
        """Address of a counter for a launch on the current stream, which is `stream`."""
        captured = torch._C._cuda_isCurrentStreamCapturing()
        found = None if captured else self.streams.get(stream)
        if found is None:
            if not self.free:
                self.free = self._allocate()
            found = self.free.pop()
            if not captured:
                self.streams[stream] = found
        return found

    def _allocate(self) -> list[int]:
        with loading(torch.device("cuda"), self.kernel):
            base = int(done(driver.cuMemAlloc(4 * SLAB)))
            done(driver.cuMemsetD32Async(base, 0, SLAB, self.own))
            done(driver.cuStreamSynchronize(self.own))  # streams that take one later do not wait for this one
        return [base + 4 * n for n in range(SLAB)]


class Kernel:
    """A loaded kernel, called with tensors by name.  Threads may share it."""

    def __init__(self, artifact: Artifact, device: torch.device) -> None:
        self.metadata = artifact.metadata
        self.arguments = [tuple(a) for a in artifact.metadata["arguments"]]
        self.index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device(device.type, self.index)
        self.units = torch.cuda.get_device_properties(self.index).multi_processor_count
        self._enter()
        cubin = next(b for n, b in artifact.binaries.items() if n.endswith(".cubin"))
        self.module = done(driver.cuModuleLoadData(cubin))
        self.function = done(driver.cuModuleGetFunction(self.module, self.metadata["function"].encode()))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        done(driver.cuFuncSetAttribute(self.function, attribute, self.metadata["shared"]))
        self.ctas = compile(self.metadata["ctas"], "<ctas>", "eval")
        self.scalars = [(n, compile(text, f"<{n}>", "eval")) for n, text in self.metadata["scalars"]]
        self.threads, self.shared = self.metadata["threads"], self.metadata["shared"]
        self.counted = next((of for _, kind, of, _ in self.arguments if self._mode(of, kind) == "counter"), None)
        self.counters = Counters(artifact.kernel) if self.counted else None
        self.mutex = Lock()  # arguments are written and launched with as one
        self.names = list(dict.fromkeys(of for _, kind, of, _ in self.arguments if kind in ("map", "pointer")))
        self.names = [n for n in self.names if n != self.counted]

    def _enter(self) -> None:
        """Makes the device's primary context this thread's, as calls of the runtime API do, and torch's with them."""
        driver.cuInit(0)
        context = done(driver.cuDevicePrimaryCtxRetain(done(driver.cuDeviceGet(self.index))))
        done(driver.cuCtxSetCurrent(context))

    def _mode(self, of: str, kind: str) -> str:
        return cast("str", self.metadata["tensors"][of][0]) if kind == "pointer" else ""

    def shape(self, extents: Mapping[str, int]) -> Shape:
        """Blocks of a call.  The extent that it does not say is the device's: its multiprocessors."""
        known = {**dict.fromkeys(self.metadata["extents"], self.units), **extents}
        scope = {**known, **self.metadata["tile"], "min": min, "max": max}
        for name, code in self.scalars:
            scope[name] = known[name] = int(eval(code, {"__builtins__": {}}, scope))
        blocks = int(eval(self.ctas, {"__builtins__": {}}, scope))
        sizes = blocks, 1, 1, self.threads, 1, 1, self.shared
        if self.metadata["early"]:
            return Shape(blocks, known, Early(self.function, *sizes))
        return Shape(blocks, known, partial(driver.cuLaunchKernel, self.function, *sizes))

    def __call__(self, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        """Launches on the current stream.  Tensors of one Shape have equal shapes and strides."""
        ordered = [tensors[n] for n in self.names]
        self.launch(shape, ordered, tuple([t.data_ptr() for t in ordered]))

    def launch(self, shape: Shape, tensors: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
        """The same with tensors in the order of `names`, which only the first launch of a Shape needs, and their addresses."""
        if shape.blocks == 0:
            return
        try:
            self._launch(shape, tensors, addresses)
        except NoContext:
            self._enter()
            self._launch(shape, tensors, addresses)

    def _launch(self, shape: Shape, tensors: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
        """Raises NoContext, which leaves all as it was, on a thread without one: maps need it as launches do."""
        if shape.arguments is None:
            shape.arguments = self._pack(shape, tensors)
        arguments = shape.arguments
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        with self.mutex:
            if addresses != arguments.addresses:
                arguments.move(addresses)
            if self.counters is not None and arguments.counter is not None:
                arguments.counter.value = self.counters.of(stream)
            said = shape.start(stream, arguments.address, 0)
        if said[0]:
            done(said)

    def _pack(self, shape: Shape, tensors: Sequence[Tensor]) -> Arguments:
        """Maps, addresses, strides and extents in the kernel's order."""
        values: list[Any] = []
        maps, pointers, kept = [], [], []
        counter: ctypes.c_void_p | None = None
        for name, kind, of, dimension in self.arguments:
            number = self.names.index(of) if of in self.names else -1
            match kind:
                case "map":
                    dtype, box = self.metadata["tensors"][of][1], self.metadata["boxes"][name]
                    made, offset = tensor_map(tensors[number], dtype, box)
                    held, memory = placed(made)
                    values.append(held)
                    maps.append((number, held, offset))
                    kept.append(memory)
                case "pointer" if of == self.counted:
                    counter = ctypes.c_void_p(0)
                    values.append(counter)
                case "pointer":
                    values.append(ctypes.c_void_p(0))
                    pointers.append((number, values[-1]))
                case "stride":
                    values.append(ctypes.c_longlong(tensors[number].stride(dimension)))
                case _:
                    values.append(ctypes.c_int(shape.extents[of]))
        return Arguments(values, maps, pointers, counter, kept)


class CudaLauncher:
    """A kernel with its signature: what the runtime calls."""

    def __init__(self, artifact: Artifact, signature: Signature, device: torch.device) -> None:
        self.kernel = Kernel(artifact, device)
        names = [*inputs_of(signature), *(o.name for o in signature.outputs)]
        self.pick = itemgetter(*(names.index(n) for n in self.kernel.names))

    def prepare(self, bound: Bound) -> Run:
        """Maps, strides and extents are made at the first launch."""
        launch, pick, shape = self.kernel.launch, self.pick, self.kernel.shape(bound.extents)

        def run(tensors: Sequence[Tensor], outputs: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
            launch(shape, () if shape.arguments else pick((*tensors, *outputs)), pick(addresses))

        return run
