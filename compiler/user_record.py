"""The user's own tuning record: the file that TILEC_RECORD names, with rows as `tilec tune --out` writes them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from tilec.backends.runtime.settings import settings
from tilec.dsl.faults import CallFault
from tilec.tune import cdna, hopper

T = TypeVar("T")


def user_rows() -> tuple[hopper.Row, ...]:
    """Its rows of Hopper's kernels; none without the variable.  Raises CallFault E1060 for a file that cannot be read."""
    return _rows(hopper.read_rows)


def user_wave_rows() -> tuple[cdna.Row, ...]:
    """Its rows of kernels of waves, likewise."""
    return _rows(cdna.read_rows)


def _rows(read: Callable[[str, str], tuple[T, ...]]) -> tuple[T, ...]:
    path = settings().record
    if path is None:
        return ()
    try:
        return read(_text(path), str(path))
    except ValueError as wrong:
        raise CallFault("E1060", f"TILEC_RECORD is `{path}`, which is no tuning record", note=str(wrong)) from None


def record_digest() -> str | None:
    """SHA-256 of its text, which compiled kernels depend on; None without the variable.  Raises as `user_rows`."""
    path = settings().record
    for read in (user_rows, user_wave_rows):
        read()  # a record that cannot be read is refused here as well
    return None if path is None else sha256(_text(path).encode()).hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise CallFault("E1060", f"TILEC_RECORD is `{path}`, which cannot be read", note=str(wrong)) from None
