"""Every `TILEC_*` environment variable, read here and nowhere else.

    TILEC_CACHE      directory of compiled kernels; default `~/.cache/tilec`.  `off` keeps them in memory only.
    TILEC_DEBUG      `1`: every call also checks the *values* of tables and of params with facts, which synchronises with
                     the device.  Calls on CPU tensors always do.
    TILEC_BACKEND    the backend to compile with where a call of `tilec.load` does not name one.
    TILEC_LOCK_WAIT  seconds to wait for another process that is compiling the same kernel before compiling it too;
                     default 120.
    TILEC_RECORD     a file of tuned shapes, as `tilec tune --out` writes it; its rows come before those of this package.
    TILEC_COMMIT     what `tilec bench` writes as the compiler's commit, where it runs from a copy without a repository.
    TILEC_ROUNDING   how kernels of the hip backend round to bf16: `nearest`, the default, with ties to even; `away`, with ties
                     away from zero; `zero`, towards zero.

They are read when a kernel is loaded or meets a new call shape, never in between.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tilec.dsl.faults import CallFault

Rounding = Literal["nearest", "away", "zero"]


@dataclass(frozen=True)
class Settings:
    """The variables' values.  `cache` None: in memory only."""

    cache: Path | None
    debug: bool
    backend: str | None
    lock_wait: float
    commit: str | None = None
    record: Path | None = None
    rounding: Rounding = "nearest"


def settings() -> Settings:
    """The environment as it is now.  Raises CallFault E1060 for a value that cannot be read."""
    return Settings(
        cache=_cache(os.environ.get("TILEC_CACHE", "")),
        debug=os.environ.get("TILEC_DEBUG", "") not in ("", "0"),
        backend=os.environ.get("TILEC_BACKEND") or None,
        lock_wait=_seconds(os.environ.get("TILEC_LOCK_WAIT", "120")),
        commit=os.environ.get("TILEC_COMMIT") or None,
        record=Path(found).expanduser() if (found := os.environ.get("TILEC_RECORD")) else None,
        rounding=_rounding(os.environ.get("TILEC_ROUNDING") or "nearest"),
    )


def _rounding(text: str) -> Rounding:
    for known in get_args(Rounding):
        if text == known:
            rounding: Rounding = known
            return rounding
    raise CallFault("E1060", f"TILEC_ROUNDING is `{text}`", hint=f"it may be {', '.join(get_args(Rounding))}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise CallFault("E1060", f"TILEC_LOCK_WAIT is `{text}`, which is not a number of seconds")
    return value


def _cache(text: str) -> Path | None:
    if text == "off":
        return None
    if text:
        return Path(text).expanduser()
    try:
        return Path.home() / ".cache" / "tilec"
    except RuntimeError:  # no HOME and no entry in the password database
        return None
