"""Triton's interpreter in a process of its own.

Triton decides at import, from TRITON_INTERPRET, whether its own library functions are compiled or interpreted, and a
process cannot have both.  So CPU runs happen in one child process, started at the first call and kept: requests go over its
stdin, replies over its stdout, pickled.  Tensors travel as their storage, so strides and offsets are what the caller has.
"""

from __future__ import annotations

import atexit
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from threading import Lock
from typing import IO, Any


class InterpreterFailure(RuntimeError):
    """The interpreted kernel raised; the text is the child's traceback."""


class Client:
    """The parent's end."""

    def __init__(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tilec.backends.triton.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.mutex = Lock()
        atexit.register(self.process.kill)

    def run(
        self,
        source: tuple[str, str],
        metadata: Mapping[str, Any],
        tensors: Sequence[Any],
        written: Sequence[bool],
        values: Sequence[int],
        blocks: int,
    ) -> None:
        """Runs `blocks` blocks and copies what was written back.  Raises InterpreterFailure."""
        packed = [_pack(t) for t in tensors]
        with self.mutex:
            assert self.process.stdin is not None and self.process.stdout is not None
            _send(self.process.stdin, (source, dict(metadata), packed, list(written), list(values), blocks))
            reply = _receive(self.process.stdout)
        if isinstance(reply, str):
            raise InterpreterFailure(reply)
        for t, w, data in zip(tensors, written, reply, strict=True):
            if w:
                t.copy_(_unpack((data, *_pack(t)[1:])))


@cache
def client() -> Client:
    """The one child of this process."""
    return Client()


def _pack(t: Any) -> tuple[bytes, str, tuple[int, ...], tuple[int, ...], int]:
    import torch

    storage = torch.tensor([], dtype=torch.uint8).set_(t.detach().untyped_storage())
    return storage.numpy().tobytes(), str(t.dtype), tuple(t.shape), t.stride(), t.storage_offset()


def _unpack(packed: tuple[bytes, str, tuple[int, ...], tuple[int, ...], int]) -> Any:
    import torch

    data, dtype, shape, strides, offset = packed
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    tensor = torch.empty(0, dtype=getattr(torch, dtype.removeprefix("torch.")))
    return tensor.set_(raw.untyped_storage(), offset, shape, strides)


def _send(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(struct.pack("<Q", len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(8)
    if len(head) < 8:
        raise InterpreterFailure("the interpreter's process ended")
    return pickle.loads(pipe.read(struct.unpack("<Q", head)[0]))


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """The child's loop: one reply per request, a traceback as text where the kernel raised."""
    import traceback

    import numpy as np

    from tilec.backends.triton.build import module_of
    from tilec.backends.triton.interpreter import correct

    correct()
    modules: dict[str, Any] = {}
    while True:
        head = source.read(8)
        if len(head) < 8:
            return
        request = pickle.loads(source.read(struct.unpack("<Q", head)[0]))
        (name, text), metadata, packed, written, values, blocks = request
        try:
            module = modules.setdefault(text, None) or module_of(name, text)
            modules[text] = module
            tensors = [_unpack(p) for p in packed]
            with np.errstate(all="ignore"):
                getattr(module, metadata["function"])[(blocks,)](*tensors, *values, **metadata["constants"])
            reply: Any = [_pack(t)[0] if w else None for t, w in zip(tensors, written, strict=True)]
        except Exception:
            reply = traceback.format_exc()
        _send(sink, reply)


if __name__ == "__main__":
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the kernel or a library prints must not mix with replies
    serve(sys.stdin.buffer, replies)
