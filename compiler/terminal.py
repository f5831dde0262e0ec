"""What the command line prints: faults with carets and progress on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilec.dsl.faults import Fault, Faults, render

QUIET_SECONDS = 1.0


def faults_of(error: Fault | Faults) -> list[Fault]:
    """One or several, as a list."""
    return error.faults if isinstance(error, Faults) else [error]


def as_data(fault: Fault) -> dict[str, Any]:
    """A fault for `--json`: code, severity, message, place, note and hint."""
    span = fault.span
    return {
        "code": fault.code,
        "severity": fault.severity,
        "message": fault.message,
        "path": fault.source.path if fault.source else None,
        "line": span.line if span else None,
        "column": span.column if span else None,
        "note": fault.note,
        "hint": fault.hint,
    }


def report(faults: list[Fault]) -> None:
    """Each fault with its source line and caret, on stderr."""
    print("\n\n".join(render(f) for f in faults), file=sys.stderr)


def show_json(data: Any) -> None:
    """JSON on stdout."""
    print(json.dumps(data, indent=1))


class Progress:
    """What is going on, on stderr, if it takes longer than a second and somebody may be watching."""

    def __init__(self) -> None:
        self._text = ""
        self._status: Any = None
        self._timer: threading.Timer | None = None

    def __call__(self, text: str) -> None:
        """From here on, `text` is going on."""
        self._text = text
        if self._status is not None:
            self._status.update(text)

    def start(self) -> None:
        if sys.stderr.isatty():
            self._timer = threading.Timer(QUIET_SECONDS, self._show)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._status is not None:
            self._status.stop()

    def _show(self) -> None:
        from rich.console import Console

        self._status = Console(stderr=True).status(self._text)
        self._status.start()


@contextmanager
def progress(text: str) -> Iterator[Progress]:
    """Shows `text`, or what the block sets, while the block runs."""
    bar = Progress()
    bar(text)
    bar.start()
    try:
        yield bar
    finally:
        bar.stop()


@contextmanager
def bar() -> Iterator[Any]:
    """A progress bar on stderr, if somebody may be watching: call it with what goes on, and how much of how much is done."""
    if not sys.stderr.isatty():
        yield lambda text, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("")
        yield lambda text, done, total: shown.update(task, description=text, completed=done, total=total)


def show_table(table: Any) -> None:
    """A rich table on stdout, as wide as it needs when stdout is not a terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 200).print(table)
