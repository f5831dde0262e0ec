"""The tuning record: which tile shape was fastest where it was measured.  Text in the repository, `record.toml`.

An entry names target, backend, head dims and mask classes, the shape, and where the measurement stands.  A lookup is exact in
all of these (head dims summed over contracted pairs, and the value's): other kernels fall to the cost model.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from tilec.ir.attention import BYTES, Attention
from tilec.ir.expr import Int
from tilec.tune.classes import mask_class
from tilec.tune.model import Shape


@dataclass(frozen=True)
class Entry:
    """One line of the record.  `mask`: the classes of masks it holds for (`classes.mask_class`); `loads`: how tiles of keys
    arrive, `box`
    (tensor maps) or `pointer`."""

    target: str
    backend: str
    d: int
    dv: int
    bytes: int
    loads: str
    mask: str
    shape: Shape
    source: str


@cache
def entries() -> tuple[Entry, ...]:
    """The whole record; ValueError for an entry without a source."""
    text = resources.files("tilec.tune").joinpath("record.toml").read_text(encoding="utf-8")
    out = []
    for e in tomllib.loads(text)["entry"]:
        shape = Shape(e.pop("q"), e.pop("k"), e.pop("warps"), e.pop("stages"))
        if not e.get("source"):
            raise ValueError(f"record.toml: {e} has no source")
        out.append(Entry(shape=shape, **e))
    return tuple(out)


def lookup(attn: Attention, target: str, backend: str, loads: str) -> Entry | None:
    """The entry for this kernel, or None."""
    dims = [attn.index(d).extent for d in (*attn.contracted, attn.feature)]
    if not all(isinstance(d, Int) for d in dims):
        return None
    *contracted, dv = (d.value for d in dims if isinstance(d, Int))
    key = (target, backend, loads, sum(contracted), dv, BYTES[attn.tensor(attn.value).dtype])
    mask = mask_class(attn)
    for e in entries():
        if (e.target, e.backend, e.loads, e.d, e.dv, e.bytes) == key and mask in e.mask.split():
            return e
    return None
