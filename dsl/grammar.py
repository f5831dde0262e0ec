"""The LALR parser of `grammar.lark`, built once per user and kept in a cache directory.

Building takes a few hundred milliseconds on a slow machine, loading a few.  The cache is never trusted or needed: a missing,
torn, foreign or unwritable file means that the parser is built in memory.  Files are written aside and renamed, so
any number of processes may start at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import lark

GRAMMAR = Path(__file__).with_name("grammar.lark")
STARTS = ["file", "kernel_statement", "schedule_statement"]


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/tilec`, or `~/.cache/tilec`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilec"


def build(*, strict: bool = False) -> lark.Lark:
    """The parser from its text.  `strict` also proves that no two terminals collide (needs `interegular`)."""
    options: dict[str, Any] = {"maybe_placeholders": True, "propagate_positions": True, "strict": strict}
    return lark.Lark(GRAMMAR.read_text("utf-8"), parser="lalr", lexer="contextual", start=STARTS, **options)


@cache
def parser() -> lark.Lark:
    """The parser, from the cache if it can be."""
    try:
        path = cache_directory() / f"grammar-{_identity()}.bin"
    except (RuntimeError, OSError):  # no home directory
        return build()
    return _load(path) or _store(build(), path)


def _identity() -> str:
    parts = (GRAMMAR.read_bytes(), lark.__version__.encode(), repr(sys.version_info[:2]).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _load(path: Path) -> lark.Lark | None:
    try:
        data = path.read_bytes()
        digest, payload = data[:32], data[32:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        return lark.Lark.load(io.BytesIO(payload))
    except Exception:  # whatever a stale or foreign pickle raises, building is the answer
        return None


def _store(built: lark.Lark, path: Path) -> lark.Lark:
    buffer = io.BytesIO()
    built.save(buffer)
    payload = buffer.getvalue()
    temporary = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix="grammar-", delete=False) as f:
            temporary = Path(f.name)
            f.write(hashlib.sha256(payload).digest() + payload)
        temporary.replace(path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
    return built
