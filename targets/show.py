"""Targets for a reader: a table of all, and one target's numbers beside their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilec.targets.load import Target


def rows_of(target: Target) -> list[tuple[str, str, str]]:
    """(name, value, source) of every number."""
    out = []
    for name, source in target.sources.items():
        table, _, key = name.partition(".")
        holder = getattr(target, table)
        value = holder if not key else holder[key] if isinstance(holder, Mapping) else getattr(holder, key)
        text = " x ".join(f"{v:,}" for v in value) if isinstance(value, tuple) else f"{value:,}"
        out.append((name, text, source))
    return out


def data_of(target: Target) -> dict[str, Any]:
    """Everything, as JSON values."""
    return {
        "name": target.name,
        "vendor": target.vendor,
        "arch": target.arch,
        "device": target.device,
        "fp8": target.fp8,
        "dtypes": sorted(target.dtypes),
        "features": sorted(target.features),
        "backends": [
            {"name": b.name, "native": b.native, "available": b.available, "because": b.because}
            for b in target.backends
        ],
        "numbers": [{"name": n, "value": v, "source": s} for n, v, s in rows_of(target)],
    }


def as_table(targets: tuple[Target, ...]) -> Any:
    """One line per target, as a rich table."""
    from rich.table import Table

    table = Table()
    for head in ("target", "arch", "device", "native", "portable", "units", "shared/block", "bf16 TFLOP/s", "TB/s"):
        table.add_column(head, justify="right" if head[0] in "usbT" else "left")
    for t in targets:
        native, portable = (
            ", ".join(f"{b.name}{'' if b.available else ' (no)'}" for b in t.backends if b.native is kind)
            for kind in (True, False)
        )
        speed = (f"{t.peak('bf16') / 1e12:.0f}", f"{t.bandwidth / 1e12:.1f}") if t.modelled else ("", "")
        table.add_row(t.name, t.arch, t.device, native, portable, str(t.units), f"{t.shared_memory:,}", *speed)
    return table
