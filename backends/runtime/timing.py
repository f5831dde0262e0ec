"""Time of calls on a device: events on a GPU, the wall clock on the CPU; graph capture; the host's own share.

A *burst* is a few launches between two events.  What figures are made of them is `tilec.measure`'s to say.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


def host_overhead(call: Call, device: torch.device, calls: int = 100) -> float:
    """Seconds of host time per call: nothing waits for the device, whose queue must be deep enough for `calls`."""
    _synchronise(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    spent = (time.perf_counter() - start) / calls
    _synchronise(device)
    return spent


def captured(call: Call, device: torch.device, copies: int = 1) -> Call:
    """`copies` of `call` back to back as the replay of one CUDA graph.

    Raises whatever torch raises for a call that cannot be captured."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            call()
    replay: Call = graph.replay
    return replay


@dataclass(frozen=True)
class DeviceClock:
    """The functions of this file on one device: the Clock that `tilec.measure` takes."""

    device: torch.device

    @property
    def graphs(self) -> bool:
        return bool(self.device.type == "cuda")

    def burst(self, call: Call, launches: int) -> float:
        return burst(call, self.device, launches)

    def host(self, call: Call, calls: int) -> float:
        return host_overhead(call, self.device, calls)

    def captured(self, call: Call, copies: int) -> Call:
        return captured(call, self.device, copies)


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
    installed = driver()
    return found | ({"driver": installed} if installed else {})


def driver() -> str | None:
    """Version of NVIDIA's kernel driver, or None where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        text = _nvidia_smi()
    found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", text)
    return found[0] if found else None


def _nvidia_smi() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
