"""Checks that read the elements of tables and params: on CPU tensors, and on a GPU with TILEC_DEBUG=1.

They synchronise, so they are no part of an ordinary call.  What they find would otherwise read outside a tensor or give
wrong numbers in silence: offsets that do not start at 0, decrease or pass the end; lengths beyond the rows in memory;
block-table entries outside the pool; params without the facts that the spec claims; conditions on each sequence's lengths.
Entries that no live position needs (block-table columns past the length, param values in padding) are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch

from tilec.backends.runtime.checks import Bound, fault
from tilec.backends.runtime.extents import evaluate, symbols
from tilec.backends.runtime.signature import Argument, Sequences, Signature
from tilec.dsl.faults import CallFault


def has_values(signature: Signature) -> bool:
    """Whether `check_values` has anything to check."""
    return any(map(_small, signature.arguments)) or any(c.per_sequence for c in signature.conditions)


def check_values(signature: Signature, bound: Bound, tensors: Sequence[torch.Tensor]) -> None:
    """Raises CallFault E1015 offsets, E1016 lengths, E1017 block tables, E1018 facts, E1014 conditions."""
    named = {n: t.cpu() for n, t in zip(signature.names, tensors, strict=True) if _small(signature.argument(n))}
    lengths = {s.index: _lengths(signature, s, bound, named) for s in signature.sequences}
    for argument in signature.arguments:
        if argument.block_table is not None:
            _check_pages(signature, argument, bound, named, lengths)
        if argument.facts:
            _check_facts(signature, argument, bound, named, lengths)
    _check_conditions(signature, bound, lengths)


def _small(argument: Argument) -> bool:
    return argument.slot == "table" or bool(argument.facts)


def _lengths(signature: Signature, s: Sequences, bound: Bound, named: Mapping[str, torch.Tensor]) -> list[int] | None:
    """Length of each sequence; None when storage is dense."""
    if s.table is None:
        return None
    values: list[int] = named[s.table].tolist()
    rows = evaluate(s.rows, bound.extents)
    argument = signature.argument(s.table)
    if s.kind == "lengths":
        for b, n in enumerate(values):
            if not 0 <= n <= rows:
                message = f"`{s.table}[{b}]` is {n}, and sequences hold 0 to {rows} positions"
                raise fault(signature, argument, "E1016", message)
        return values
    if values and values[0] != 0:
        raise fault(signature, argument, "E1015", f"offsets `{s.table}` must start at 0; they start at {values[0]}")
    for b, (first, last) in enumerate(pairwise(values)):
        if last < first:
            message = f"offsets `{s.table}` must not decrease; [{b}] is {first} and [{b + 1}] is {last}"
            raise fault(signature, argument, "E1015", message)
    if values and values[-1] > rows:
        message = f"offsets `{s.table}` end at {values[-1]}, and the packed tensors have {rows} rows"
        raise fault(signature, argument, "E1015", message)
    return [last - first for first, last in pairwise(values)]


def _check_pages(
    signature: Signature,
    argument: Argument,
    bound: Bound,
    named: Mapping[str, torch.Tensor],
    lengths: Mapping[str, list[int] | None],
) -> None:
    assert argument.block_table is not None and argument.page is not None
    table = named[argument.block_table]
    pool = bound.extents[f"{argument.name}_pages"]
    for b, n in enumerate(lengths[signature.sequences[-1].index] or ()):
        used = table[b, ..., : -(-n // argument.page)]
        if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < pool:
            wrong = int(used.max()) if int(used.max()) >= pool else int(used.min())
            message = f"`{argument.block_table}[{b}]` names page {wrong}, and `{argument.name}` has {pool} pages"
            raise fault(signature, signature.argument(argument.block_table), "E1017", message)


def _check_facts(
    signature: Signature,
    argument: Argument,
    bound: Bound,
    named: Mapping[str, torch.Tensor],
    lengths: Mapping[str, list[int] | None],
) -> None:
    for where, x in _runs(signature, argument, named, lengths):
        broken = {
            "nondecreasing": x.shape[-1] > 1 and bool((x[..., 1:] < x[..., :-1]).any()),
            "nonnegative": bool((x < 0).any()),
            "unique": x.numel() != 0 and bool((x.sort(-1).values.diff(dim=-1) == 0).any()),
        }
        for fact in argument.facts:
            if broken[fact]:
                message = f"the spec says that `{argument.name}` is {fact}, and {where} it is not"
                raise fault(signature, argument, "E1018", message)


def _runs(
    signature: Signature,
    argument: Argument,
    named: Mapping[str, torch.Tensor],
    lengths: Mapping[str, list[int] | None],
) -> Iterator[tuple[str, torch.Tensor]]:
    """The parts of a param along which its facts hold: each sequence's own positions of the last dimension."""
    x = named[argument.name]
    s = next((s for s in signature.sequences if s.table is not None and argument.dims[-1:] == (s.rows,)), None)
    if s is None or s.table is None:
        yield "in this call", x
        return
    if s.kind == "packed":
        offsets = named[s.table].tolist()
        for b, (first, last) in enumerate(pairwise(offsets)):
            yield f"in sequence {b}", x[..., first:last]
        return
    for b, n in enumerate(lengths[s.index] or ()):
        yield f"in sequence {b}", x[b, ..., :n] if x.ndim > 1 else x[..., :n]


def _check_conditions(signature: Signature, bound: Bound, lengths: Mapping[str, list[int] | None]) -> None:
    varying = {s.extent: lengths[s.index] for s in signature.sequences if lengths[s.index] is not None}
    count = max((len(v) for v in varying.values() if v is not None), default=0)
    for c in signature.conditions:
        if not c.per_sequence:
            continue
        for b in range(count):
            env = bound.extents | {e: v[b] for e, v in varying.items() if v is not None}
            if not evaluate(c.text, env):
                values = ", ".join(f"{s} = {env[s]}" for s in sorted(symbols(c.text)))
                place = c.place
                raise CallFault(
                    "E1014",
                    f"sequence {b} has {values}, and `{c.text}` must hold",
                    place.span if place else None,
                    note=c.reason,
                    source=place.source(signature.path) if place else None,
                )
