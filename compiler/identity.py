"""What a compiled kernel is a function of: the key of the cache, and short names for kernels of one process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable

from tilec.backends.base import Variant
from tilec.ir.attention import Attention
from tilec.ir.record import write_record
from tilec.schedule import Schedule

PARTS = ("tilec", "tilec.dsl", "tilec.backends", "tilec.targets")
SUFFIXES = (".py", ".lark", ".toml", ".j2")


@cache
def source_digest() -> str:
    """SHA-256 over every source file of the installed package: an edit of the compiler is another compiler."""
    digest = sha256()
    for part in PARTS:
        for path, data in sorted(_sources(resources.files(part), part)):
            digest.update(f"{path} {len(data)}\n".encode())
            digest.update(data)
    return digest.hexdigest()


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(SUFFIXES):
            yield f"{path}/{entry.name}", entry.read_bytes()


def schedule_record(schedule: Schedule) -> str:
    """A schedule as text, without the places where its lines stand."""
    return "; ".join(f"{f.name}={getattr(schedule, f.name)!r}" for f in fields(schedule) if f.compare)


def cache_key(
    attn: Attention,
    target: str,
    backend: str,
    schedule: Schedule,
    variant: Variant,
    toolchain: Mapping[str, str],
) -> str:
    """The key of one artifact: equal exactly when nothing that could change its bytes differs."""
    return _hash(
        {
            "spec": write_record(attn),
            "target": target,
            "backend": backend,
            "schedule": schedule_record(schedule),
            "variant": str(variant),
            "compiler": source_digest(),
            "toolchain": dict(toolchain),
        }
    )


def kernel_identity(attn: Attention, *choices: str) -> str:
    """A name for this kernel among all loaded ones: 16 hexadecimal digits over its meaning and the caller's choices."""
    return _hash({"spec": write_record(attn), "choices": choices})[:16]


def _hash(data: object) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
