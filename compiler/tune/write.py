"""Rows of a tuning record as text that `hopper.read_rows` reads back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields

from tilec.tune.hopper import CLASSES, Point, Row

HEAD = "# Shapes of native Hopper kernels, as measured; name this file in TILEC_RECORD to use it.\n"


def write_rows(rows: Iterable[Row]) -> str:
    """TOML of the rows, in order."""
    return HEAD + "".join(f"\n{_table(r)}" for r in rows)


def put(rows: Iterable[Row], row: Row) -> tuple[Row, ...]:
    """`rows` with `row` in place of one for the same kernels, or at the end."""
    rest = tuple(r for r in rows if (r.widths, r.classes) != (row.widths, row.classes))
    return (*rest, row)


def _table(row: Row) -> str:
    values: dict[str, object] = {"width": row.width}
    values |= {} if row.value is None else {"value": row.value}
    values |= {n: " ".join(sorted(some)) for n, some in zip(CLASSES, row.classes, strict=True) if some}
    point = {f.name: getattr(row.point, f.name) for f in fields(Point) if f.name != "by"}
    values |= {n: v for n, v in point.items() if v is not None}
    values["source"] = row.source
    return "[[point]]\n" + "".join(f"{n} = {json.dumps(v)}\n" for n, v in values.items())
