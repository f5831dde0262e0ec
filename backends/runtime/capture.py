"""Calls while a CUDA graph is captured: what may be done then, and how code is loaded all the same.

A capture records what its stream is given, and forbids its thread (by torch's default, every thread) calls that could be
meant for the graph and are not seen by it, such as an allocation or a wait.  Loading a kernel makes such calls and means none
of them for the graph, so it is done with the thread's capture mode relaxed (CUDA driver API,
cuThreadExchangeStreamCaptureMode), and touches no stream but its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch.compiler import is_dynamo_compiling

from tilec.dsl.faults import CallFault

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
Exchange = Callable[[int], int]


@cache
def exchange_of_driver() -> Exchange | None:
    """`exchange(mode)` sets this thread's capture mode and gives what it was; None where the driver is not NVIDIA's."""
    if torch.version.hip:
        return None
    try:
        call = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None

    def exchange(mode: int) -> int:
        held = ctypes.c_int(mode)
        if error := call(ctypes.byref(held)):
            raise RuntimeError(f"CUDA driver: cuThreadExchangeStreamCaptureMode fails with error {error}")
        return held.value

    return exchange


def capturing(device: torch.device) -> bool:
    """Whether the current stream is captured."""
    return bool(device.type == "cuda" and not is_dynamo_compiling() and torch.cuda.is_current_stream_capturing())


def refuse(device: torch.device, kernel: str, what: str, hint: str) -> None:
    """Raises CallFault E1027 if the current stream is captured: before `what`, which would spoil the graph."""
    if capturing(device):
        raise CallFault("E1027", f"this call of `{kernel}` is captured in a graph, and {what}", hint=hint)


@contextmanager
def loading(device: torch.device, kernel: str) -> Iterator[None]:
    """Around what loads code and allocates beside the graph.  Raises CallFault E1027 in a capture that does not allow it."""
    exchange = exchange_of_driver() if device.type == "cuda" else None
    if exchange is None:
        hint = "call it once before the capture, with tensors like these"
        refuse(device, kernel, "its code is not loaded yet, which cannot be done meanwhile on this driver", hint)
        yield
        return
    before = exchange(RELAXED)
    try:
        yield
    finally:
        exchange(before)
