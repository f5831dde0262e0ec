"""An Attention as JSON: the normal form that a cache key is taken from, and what a launcher can read without the parser.

Expressions are lists headed by their kind.  Spans and the spec's path are left out: two specs that differ in layout,
comments or names of files have one record.  Names of tensors and indices are part of it.
"""

from __future__ import annotations

import json
from typing import Any

from tilec.ir.attention import Attention, Dropout, Gradient, Index, Storage, Tensor
from tilec.ir.expr import Bool, Expr, Fetch, Float, Int, Op, Var


def write_record(attn: Attention) -> str:
    """JSON text, one for each meaning; `read_record` gives an equal Attention."""
    data = {
        "name": attn.name,
        "indices": [[i.name, _expr(i.extent), i.storage.kind, i.storage.table] for i in attn.indices],
        "tensors": [_tensor(t) for t in attn.tensors],
        "pairs": attn.pairs,
        "value": attn.value,
        "output": attn.output,
        "lse": attn.lse,
        "q": attn.q,
        "k": attn.k,
        "contracted": attn.contracted,
        "feature": attn.feature,
        "scale": _expr(attn.scale),
        "scores": [_expr(s) for s in attn.scores],
        "mask": _expr(attn.mask),
        "sink": _expr(attn.sink),
        "gradient": [attn.gradient.names, attn.gradient.atomic] if attn.gradient else None,
        "assumes": [_expr(a) for a in attn.assumes],
        "dropout": repr(attn.dropout.p) if attn.dropout else None,
    }
    return json.dumps(data, separators=(",", ":"))


def read_record(text: str) -> Attention:
    """The Attention that `write_record` wrote."""
    data: dict[str, Any] = json.loads(text)
    return Attention(
        name=data["name"],
        indices=tuple(Index(n, _read(e), Storage(kind, table)) for n, e, kind, table in data["indices"]),
        tensors=tuple(_read_tensor(t) for t in data["tensors"]),
        pairs=tuple((q, k) for q, k in data["pairs"]),
        value=data["value"],
        output=data["output"],
        lse=data["lse"],
        q=data["q"],
        k=data["k"],
        contracted=tuple(data["contracted"]),
        feature=data["feature"],
        scale=_read(data["scale"]),
        scores=tuple(map(_read, data["scores"])),
        mask=_read(data["mask"]),
        sink=_fetch(data["sink"]),
        gradient=Gradient(tuple(data["gradient"][0]), data["gradient"][1]) if data["gradient"] else None,
        assumes=tuple(map(_read, data["assumes"])),
        dropout=Dropout(float(data["dropout"])) if data["dropout"] else None,
    )


def _tensor(t: Tensor) -> list[Any]:
    index = [_expr(e) for e in t.index]
    return [t.name, t.slot, index, t.dtype, _expr(t.scaled), _expr(t.paged), sorted(t.facts)]


def _read_tensor(data: list[Any]) -> Tensor:
    name, slot, index, dtype, scaled, paged, facts = data
    return Tensor(name, slot, tuple(map(_read, index)), dtype, _fetch(scaled), _fetch(paged), frozenset(facts))


def _expr(e: Expr | None) -> list[Any] | None:
    match e:
        case None:
            return None
        case Int(v):
            return ["int", v]
        case Float(v):
            return ["float", repr(v)]
        case Bool(v):
            return ["bool", v]
        case Var(name):
            return ["var", name]
        case Fetch(tensor, index):
            return ["fetch", tensor, *map(_expr, index)]
        case Op(name, args):
            return ["op", name, *map(_expr, args)]
    raise TypeError(f"not an expression of a spec: {e!r}")


def _read(data: list[Any]) -> Expr:
    kind, head, *rest = data
    match kind:
        case "int":
            return Int(head)
        case "float":
            return Float(float(head))
        case "bool":
            return Bool(head)
        case "var":
            return Var(head)
        case "fetch":
            return Fetch(head, tuple(map(_read, rest)))
        case "op":
            return Op(head, tuple(map(_read, rest)))
    raise ValueError(f"not a record of an expression: {data!r}")


def _fetch(data: list[Any] | None) -> Fetch | None:
    e = None if data is None else _read(data)
    assert e is None or isinstance(e, Fetch)
    return e
