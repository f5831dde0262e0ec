"""Options that commands of `tilec.cli` share, and what their texts mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


def bindings(ctx: click.Context, param: click.Parameter, value: Any) -> dict[str, int]:
    """`B=2,M=300`, given any number of times: extents by symbol."""
    out: dict[str, int] = {}
    texts = value if isinstance(value, tuple) else (value or "",)
    for part in (p for text in texts for p in text.split(",") if p.strip()):
        name, equals, size = part.partition("=")
        if not equals or not name.strip().isidentifier() or not size.strip().isdigit():
            raise click.BadParameter(f"`{part.strip()}` is not NAME=SIZE", ctx, param)
        out[name.strip()] = int(size)
    return out


def kinds(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """What `--emit` names."""
    return words(ctx, param, value, ("source", "asm", "binary"))


def peers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """What `--against` names."""
    return words(ctx, param, value, ("sdpa", "cudnn", "flex", "fa3", "fa4"))


def words(ctx: click.Context, param: click.Parameter, value: str | None, choices: tuple[str, ...]) -> tuple[str, ...]:
    """`source,asm`: each one of `choices`."""
    some = tuple(w.strip() for w in (value or "").split(",") if w.strip())
    for word in some:
        if word not in choices:
            raise click.BadParameter(f"`{word}` is none of {', '.join(choices)}", ctx, param)
    return some


def destination(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """A file or folder that can be written, found out before the work whose result goes there."""
    if path is not None:
        whole = path.absolute()
        there = next(p for p in (whole, *whole.parents) if p.exists())
        if not os.access(there, os.W_OK) or (there != whole and not there.is_dir()):
            raise click.BadParameter(f"`{path}` cannot be written: `{there}` does not take it", ctx, param)
    return path


def record(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """A tuning record, or a file that is still to be."""
    from tilec.tune import cdna, hopper

    path = destination(ctx, param, path)
    try:
        if path is not None and path.exists():
            for module in (hopper, cdna):
                module.read_rows(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as wrong:
        raise click.BadParameter(f"`{path}` is no tuning record: {wrong}", ctx, param) from None
    return path


def remember_json(ctx: click.Context, _: click.Parameter, on: bool) -> bool:
    """For `cli.Commands`, which prints faults."""
    ctx.meta["json"] = on
    return on


SPEC = click.argument("path", metavar="SPEC", type=click.Path(exists=True, dir_okay=False, path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, is_eager=True, callback=remember_json, help="Print JSON.")
TARGET = click.option("--target", help="sm90, gfx942, … (default: this machine's GPU, else cpu).")
KERNEL = click.option("--kernel", help="Which kernel, where the file has several.")
BACKEND = click.option("--backend", help="Instead of the target's first that takes the kernel: triton, cuda, cpu.")
SET = click.option("--set", "constants", multiple=True, callback=bindings, help="Constants: --set D=128.")
SHAPE = click.option("--shape", callback=bindings, help="Extents of the call: B=2,M=300,N=300.")
