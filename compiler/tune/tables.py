"""Rows of tuning records: TOML tables of one name, each with the widths of its kernels, the fields of a point, and a source.

The tables of this package and a user's own record have this form.  A record may have tables of either kind, TABLES; who reads one
kind leaves the other alone, and a file with tables of neither is no record.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

TABLES = ("point", "waves")  # of NVIDIA's kernels, as measured; of kernels of AMD's waves, as predicted
HEAD = {"width": int, "source": str}

P = TypeVar("P")
R = TypeVar("R", bound="Row[Any]")


@dataclass(frozen=True)
class Row(Generic[P]):
    """For kernels of `width` contracted features and `value` of the value's (None: as many)."""

    width: int
    point: P
    source: str
    value: int | None = None

    @property
    def widths(self) -> tuple[int, int]:
        """Features contracted, and of the value."""
        return self.width, self.value or self.width

    @property
    def kernels(self) -> object:
        """What two rows for the same kernels have in common."""
        return self.widths


def put(rows: Iterable[R], row: R) -> tuple[R, ...]:
    """`rows` with `row` in place of one for the same kernels, or at the end."""
    return (*(r for r in rows if r.kernels != row.kernels), row)


def read(
    text: str,
    path: str,
    table: str,
    point: type[P],
    more: Mapping[str, Any],
    zero: Collection[str] = (),
    wrong: Callable[[P], str] = lambda _: "",
) -> Iterator[tuple[P, dict[str, Any]]]:
    """The tables of that name, in the order of the text: each as a point, and what else it says: HEAD and those of `more`, which
    it may leave out, with their types.  Other names are fields of the dataclass `point`.  Whole numbers are above 0, those of
    `zero` may be 0; others are not negative.  `wrong`: what a point has that no kernel could, empty if nothing.

    ValueError, which names `path`, the table and the name, for what is no TOML, for tables of another kind, for a name that is
    not known, a value that is not of its type, and a name that is missing."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise ValueError(f"{path}: {broken}") from None
    for name in data:
        if name not in TABLES:
            raise ValueError(f"{path}: `{name}` is no table of a record: those are {', '.join(TABLES)}")
    found = data.get(table, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError(f"{path}: `{table}` is written as [[{table}]]")
    kinds = {name: kind for name, kind in get_type_hints(point).items() if name != "by"}  # who decides: the record
    needed = [*HEAD, *_needed(point, kinds)]
    for n, row in enumerate(found, 1):
        try:
            _check(row, {**HEAD, **more, **kinds}, needed, zero)
        except ValueError as lacking:
            raise ValueError(f"{path}: [[{table}]] {n}: {lacking}") from None
        made = point(**{name: row.get(name) for name, kind in kinds.items() if name in row or _fits(None, kind)})
        if problem := wrong(made):
            raise ValueError(f"{path}: [[{table}]] {n}: {problem}")
        yield made, {name: row[name] for name in (*HEAD, *more) if name in row}


def _check(row: Mapping[str, object], kinds: Mapping[str, Any], needed: Iterable[str], zero: Collection[str]) -> None:
    for name, value in row.items():
        if name not in kinds:
            raise ValueError(f"{name} is no field: those are {', '.join(kinds)}")
        if not _fits(value, kinds[name], name in zero):
            more = " or 0" if name in zero else ""
            raise ValueError(f"{name} is {json.dumps(value, default=str)}, and should be {_said(kinds[name])}{more}")
    for name in needed:
        if name not in row:
            raise ValueError(f"it has no {name}")


def show(table: str, values: Mapping[str, object]) -> str:
    """A row as `read` reads it back; None is left out."""
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value is not None)
    return f"[[{table}]]\n{''.join(lines)}"


def _needed(point: type[Any], kinds: Mapping[str, Any]) -> list[str]:
    return [f.name for f in fields(point) if f.default is MISSING and not _fits(None, kinds[f.name])]


def _fits(value: Any, kind: Any, zero: bool = False) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if options := get_args(kind):  # a union
        return any(_fits(value, k, zero) for k in options)
    if kind is float:
        return type(value) in (int, float) and 0 <= value < math.inf
    return type(value) is kind and (kind is not int or value > 0 or (zero and value == 0)) and value != ""


def _said(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(json.dumps, get_args(kind)))
    words = {int: "a whole number above 0", float: "a number, not negative", bool: "true or false", str: "words"}
    return " or ".join(words[k] for k in (get_args(kind) or (kind,)) if k is not NoneType)
