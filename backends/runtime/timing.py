"""Time of calls on a device: events on a GPU, the wall clock on the CPU; graph capture; the host's own share.

A *burst* is a few launches between two events.  A chip at its power limit inherits the clock that the kernel before left
it, so bursts of different kernels are interleaved by the caller and compared by their median; `sustained` runs one
kernel for long enough that the clock settles on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def burst(call: Call, device: torch.device, launches: int) -> float:
    """Seconds per call over `launches` calls back to back."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(launches):
            call()
        return (time.perf_counter() - start) / launches
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(launches):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / launches


def sustained(call: Call, device: torch.device, seconds: float, warm_up: float = 0.06) -> float:
    """Seconds per call over about `seconds` of nothing else, after `warm_up` seconds of the same."""
    once = max(burst(call, device, 1), 1e-6)
    burst(call, device, max(1, round(warm_up / once)))
    return burst(call, device, max(1, round(seconds / once)))


def host_overhead(call: Call, device: torch.device, calls: int = 100) -> float:
    """Seconds of host time per call: nothing waits for the device, whose queue must be deep enough for `calls`."""
    _synchronise(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    spent = (time.perf_counter() - start) / calls
    _synchronise(device)
    return spent


def captured(call: Call, device: torch.device) -> Call:
    """`call` as the replay of a CUDA graph; on the CPU `call` itself."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Call = graph.replay
    return replay


def device_name(device: torch.device) -> str:
    """What the driver calls the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def versions() -> dict[str, str]:
    """Versions that a figure depends on."""
    found = {"torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())
    if getattr(torch.version, "hip", None):
        found["hip"] = str(torch.version.hip)
    return found
