"""A CUDA driver that only records, in place of `cuda.bindings.driver`."""

import ctypes
from threading import get_ident
from types import SimpleNamespace

from tilec.backends.runtime.capture import RELAXED

STREAM = 77
NUMBERS = {"stride": ctypes.c_longlong, "extent": ctypes.c_int, "pointer": ctypes.c_void_p}


class Map(tuple):
    """What cuTensorMapEncodeTiled was asked for; `base` is the address since."""

    def __init__(self, given):
        self.base, self.memory = given[2], (ctypes.c_uint64 * 16)(id(self))

    def getPtr(self):
        return ctypes.addressof(self.memory)

    def now(self):
        return Map((*self[:2], self.base, *self[3:]))


class Driver:
    """Succeeds at everything that is allowed in its thread's capture mode, on threads with a context, which the one that made it
    has.  `launches`: (grid, threads, shared bytes, stream, arguments); `memory`: what was allocated; `cleared` and `awaited`:
    streams."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_INVALID_CONTEXT=201)

    def __init__(self, kinds):
        self.kinds, self.launches, self.maps = kinds, [], []
        self.copies = {}
        self.memory, self.cleared, self.awaited, self.contexts = [], [], [], {get_ident(): "first"}
        self.stream, self.capturing, self.mode = STREAM, False, 0

    def exchange(self, mode):
        before, self.mode = self.mode, mode
        return before

    def allowed(self):
        assert self.mode == RELAXED or not self.capturing, "not permitted when a stream is capturing"

    def cuModuleLoadData(self, cubin):
        self.allowed()
        return 0, "module"

    def cuMemAlloc(self, size):
        self.allowed()
        self.memory.append((ctypes.c_uint32 * (size // 4))(*[7] * (size // 4)))
        return 0, ctypes.addressof(self.memory[-1])

    def cuMemsetD32Async(self, base, value, count, stream):
        self.cleared.append(stream)
        held = next(m for m in self.memory if ctypes.addressof(m) == base)
        held[:count] = [value] * count
        return (0,)

    def cuStreamSynchronize(self, stream):
        self.allowed()
        self.awaited.append(stream)
        return (0,)

    def cuStreamCreate(self, flags):
        self.allowed()
        return 0, f"stream {len(self.awaited)}"

    def cuCtxSetCurrent(self, context):
        self.contexts[get_ident()] = context
        return (0,)

    def __getattr__(self, name):
        if name.startswith("cu"):
            return lambda *_: (0, name)
        return SimpleNamespace(**{n: n for n in NAMES})

    def cuuint64_t(self, n):
        return n

    cuuint32_t = cuuint64_t

    def cuTensorMapEncodeTiled(self, *given):
        if get_ident() not in self.contexts:
            return 201, None
        self.maps.append(Map(given))
        return 0, self.maps[-1]

    def CUtensorMap(self, _ptr):
        assert _ptr % 64 == 0
        held = ctypes.c_uint64.from_address(_ptr).value
        copy = self.copies[_ptr] = Map(next(m for m in self.maps if id(m) == held))
        copy.getPtr = lambda: _ptr
        return copy

    def cuTensorMapReplaceAddress(self, held, address):
        if get_ident() not in self.contexts:
            return (201,)
        if address % 16:
            return (1,)
        held.base = address
        return (0,)

    def cuGetErrorString(self, error):
        return 0, b"invalid argument"

    def cuLaunchKernel(self, function, x, y, z, tx, ty, tz, shared, stream, arguments, extra):
        if get_ident() not in self.contexts:
            return (201,)
        addresses = (ctypes.c_void_p * len(self.kinds)).from_address(arguments)
        values = [
            self.copies[a].now() if kind == "map" else NUMBERS[kind].from_address(a).value
            for kind, a in zip(self.kinds, addresses, strict=True)
        ]
        self.launches.append(((x, y, z), (tx, ty, tz), shared, stream, values))
        return (0,)

    def CUlaunchConfig(self):
        return SimpleNamespace(hStream=0)

    def CUlaunchAttribute(self):
        return SimpleNamespace(value=SimpleNamespace())

    def cuLaunchKernelEx(self, c, function, arguments, extra):
        (early,) = c.attrs
        assert c.numAttrs == 1 and early.id == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
        assert early.value.programmaticStreamSerializationAllowed == 1
        sizes = c.gridDimX, c.gridDimY, c.gridDimZ, c.blockDimX, c.blockDimY, c.blockDimZ, c.sharedMemBytes
        return self.cuLaunchKernel(function, *sizes, c.hStream, arguments, extra)


NAMES = (
    "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "CU_STREAM_NON_BLOCKING",
    "CU_TENSOR_MAP_INTERLEAVE_NONE",
    "CU_TENSOR_MAP_SWIZZLE_128B",
    "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
    "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
)
