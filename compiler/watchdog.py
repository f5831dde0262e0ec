"""Ends a process that makes no progress: a hung kernel cannot be interrupted from Python.

The timer is faulthandler's thread, which needs no interpreter lock: it also fires while a thread that waits for the device
holds the lock.
"""

from __future__ import annotations

import faulthandler
import sys
from types import TracebackType


class Watchdog:
    """Within its block, the process ends with a traceback unless `beat` is called at least every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def beat(self, seconds: float | None = None) -> None:
        """Progress; the next may take `seconds`, where that is known to be longer (compilation)."""
        faulthandler.dump_traceback_later(seconds or self.seconds, exit=True, file=sys.__stderr__ or sys.stderr)

    def __enter__(self) -> Watchdog:
        self.beat()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        faulthandler.cancel_dump_traceback_later()
