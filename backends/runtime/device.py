"""What the runtime asks of a device: which target it is, what to call it in a message, and to make it current."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from tilec.dsl.faults import TargetFault
from tilec.targets import device_target, target

_ALREADY = nullcontext()
# what code that torch compiled calls around its kernels
GUARDS: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
Empty = Callable[[Sequence[int], Sequence[int], torch.dtype], Tensor]


@cache
def target_of(device: torch.device) -> str:
    """Name of the target that describes `device`.

    Raises TargetFault E0902 for a GPU that no target describes, E0916 for a kind of device that tilec does not run on."""
    if device.type == "cpu":
        return "cpu"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        if torch.version.hip:
            return device_target(gcn=properties.gcnArchName).name
        return device_target(capability=(properties.major, properties.minor)).name
    raise TargetFault("E0916", f"tilec runs on cuda, hip and cpu tensors, not on `{device.type}`")


def first() -> torch.device:
    """The device that a call without further word would use: the current GPU, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def describe(device: torch.device) -> str:
    """`cuda:0, NVIDIA H200, compute capability 9.0`."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return f"{device}, {properties.name}, {properties.gcnArchName.partition(':')[0]}"
    return f"{device}, {properties.name}, compute capability {properties.major}.{properties.minor}"


def require(built: str, device: torch.device, rebuild: str) -> None:
    """Raises TargetFault E0912 unless `device` is the target that a kernel was built for."""
    try:
        found = target_of(device)
    except TargetFault:
        found = ""
    if found != built:
        raise TargetFault(
            "E0912",
            f"this kernel was built for {built}, and the device is {describe(device)}",
            note=None if found else "no target describes that device",
            hint=f"rebuild with `{rebuild.format(target=found)}`" if found else None,
        )


def guard(device: torch.device) -> AbstractContextManager[object]:
    """Makes `device` current for the time of a launch; afterwards what was current before is again."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return _ALREADY
    switch: AbstractContextManager[object] = torch.cuda.device(device)
    return switch


def current_on(device: torch.device) -> tuple[Callable[[], int], int]:
    """A function whose result is the number given with it as long as `device` is current."""
    if device.type != "cuda":
        return int, 0
    return cast("Callable[[], int]", torch._C._cuda_getDevice), int(device.index)


def empty_on(device: torch.device) -> Empty:
    """`empty(shape, strides, dtype)`: a new tensor on `device`, which must be current.

    What compiled graphs of torch call, without the dispatcher; it costs a third of `torch.empty`."""
    direct = getattr(GUARDS, f"_empty_strided_{device.type}", None)
    if direct is not None:
        return cast("Empty", direct)
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def float8(name: str, target_name: str) -> torch.dtype:
    """The torch dtype of `e4m3` or `e5m2` on a target: OCP bits, or FNUZ where the matrix units read those."""
    fnuz = target(target_name).fp8 == "fnuz"
    if name == "e4m3":
        return torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
    return torch.float8_e5m2fnuz if fnuz else torch.float8_e5m2
