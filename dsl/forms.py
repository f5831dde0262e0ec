"""Recognising the attention in a kernel: which index is what.

softmax index k     read by every key and the value, by no query and not by the output
row index q         read by every query and the output, by no key and not by the value; if several qualify (heads that
                    all share one key), the one called `q`
contracted index    of a pair: read bare by its query and key and not by the output; if there is none, the one that
                    the lse does not have; without an lse the query's last bracket.  It is then the feature too
feature index       read bare by value and output and by no query; if there is none, as above with the output's last
outer indices       the output's others: one independent problem for each of their values
batch index         `b` if it is outer, else the first outer index declared: storage tables have one entry for each
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.dsl import ast
from tilec.dsl.scope import Scope, bare, read


@dataclass(frozen=True)
class Roles:
    """The names that play each part.  `pairs` and `contracted` go together."""

    q: str
    k: str
    pairs: tuple[tuple[str, str], ...]
    contracted: tuple[str, ...]
    feature: str
    value: str
    output: str
    lse: str | None
    sink: str | None
    outer: tuple[str, ...]
    batch: str | None


def roles(scope: Scope) -> Roles | None:
    """The parts of the kernel, or None with what keeps it from being an attention reported."""
    if not _complete(scope):
        return None
    queries, keys = scope.slot("query"), scope.slot("key")
    (value,), (output,) = scope.slot("value") or [_reused(scope)], scope.slot("output")
    involved = [*queries, *keys, value, output]
    if any(read(t.index) & scope.poisoned for t in involved):
        return None
    k = _softmax_index(scope, queries, keys, value, output)
    q = _row_index(scope, queries, keys, value, output) if k else None
    if k is None or q is None:
        return None
    contracted = tuple(_contracted(scope, a, b, output, q, k) for a, b in zip(queries, keys, strict=True))
    feature = _feature(scope, queries, value, output, q, k)
    if feature is None or None in contracted:
        return None
    outer = [n for n in scope.axes if n in bare(output.index) and n not in (q, feature)]
    _nothing_left_over(scope, queries, keys, value, contracted, feature, {*outer, q}, {*outer, k})
    lse, sink = scope.slot("lse"), scope.slot("sink")
    if lse and set(bare(lse[0].index)) != {*outer, q}:
        wanted = ", ".join([*outer, q])
        scope.report(
            "E0407",
            f"`{lse[0].name.text}` needs one number for each row of the output",
            lse[0].name.span,
            hint=f"write `lse {lse[0].name.text}[{wanted}] : f32`",
        )
    for s in sink:
        for wrong in sorted(read(s.index) - {*outer} - scope.divisors.keys()):
            scope.report(
                "E0408",
                f"the sink `{s.name.text}` is one logit for all rows and keys; it cannot have `{wrong}`",
                s.name.span,
            )
    return Roles(
        q=q,
        k=k,
        pairs=tuple((a.name.text, b.name.text) for a, b in zip(queries, keys, strict=True)),
        contracted=tuple(c for c in contracted if c is not None),
        feature=feature,
        value=value.name.text,
        output=output.name.text,
        lse=lse[0].name.text if lse else None,
        sink=sink[0].name.text if sink else None,
        outer=tuple(outer),
        batch="b" if "b" in outer else outer[0] if outer else None,
    )


def _reused(scope: Scope) -> ast.Tensor:
    """The key that `value C` names."""
    (name,) = [s.name.text for s in scope.reuses]
    return scope.tensors[name]


def _complete(scope: Scope) -> bool:
    """Whether every part is there once."""
    present = {slot: len(scope.slot(slot)) for slot in ("query", "key", "value", "output")}
    present["value"] += len(scope.reuses)
    if not scope.kernel.broken:
        for slot, n in present.items():
            if not n and slot not in scope.failed_slots:
                article = "an" if slot == "output" else "a"
                scope.report(
                    "E0401",
                    f"`{scope.kernel.name.text}` has no {slot}",
                    scope.kernel.name.span,
                    hint=f"add {article} `{slot}` line",
                )
    for reuse in scope.reuses:
        t = scope.tensors.get(reuse.name.text)
        if t is None or t.slot.text != "key":
            keys = [x.name.text for x in scope.slot("key")]
            scope.report(
                "E0411",
                f"`value {reuse.name.text}` reuses a key, and `{reuse.name.text}` is not one",
                reuse.name.span,
                hint=f"write `value {keys[0]}`, or declare brackets and a dtype" if keys else None,
            )
            return False
    if present["query"] != present["key"]:
        if present["query"] and present["key"] and not scope.kernel.broken and not scope.failed_slots:
            more = "query" if present["query"] > present["key"] else "key"
            less = "key" if more == "query" else "query"
            at = scope.slot(more)[present[less]]
            scope.report(
                "E0405",
                f"the {more} `{at.name.text}` has no {less} to go with",
                at.name.span,
                note="queries and keys pair up in the order of their lines",
            )
        return False
    return all(present.values()) and present["value"] == 1 and present["output"] == 1 and not scope.failed_slots


def _softmax_index(
    scope: Scope, queries: list[ast.Tensor], keys: list[ast.Tensor], value: ast.Tensor, output: ast.Tensor
) -> str | None:
    outside = set(scope.axes) - set().union(*(read(t.index) for t in (*queries, output)))
    shared = [n for n in scope.axes if n in outside and all(n in bare(t.index) for t in keys)]
    found = [n for n in shared if n in bare(value.index)]
    if len(found) == 1:
        return found[0]
    if found:
        scope.report(
            "E0404",
            f"both `{found[0]}` and `{found[1]}` could be the softmax index",
            keys[0].name.span,
            note="keys and value read them, queries and output do not",
        )
    elif shared:
        scope.report(
            "E0309",
            f"the value `{value.name.text}` does not read `{shared[0]}`",
            value.name.span,
            note="the softmax runs over the index that keys and value have and queries do not",
            related=((keys[0].name.span, f"the key reads `{shared[0]}`"),),
        )
    else:
        scope.report(
            "E0403",
            "there is no index to take the softmax over",
            keys[0].name.span,
            note="it is the one that every key and the value read, and no query and not the output",
        )
    return None


def _row_index(
    scope: Scope, queries: list[ast.Tensor], keys: list[ast.Tensor], value: ast.Tensor, output: ast.Tensor
) -> str | None:
    inside = set().union(*(read(t.index) for t in (*keys, value)))
    shared = [n for n in scope.axes if n not in inside and all(n in bare(t.index) for t in queries)]
    found = [n for n in shared if n in bare(output.index)]
    if len(found) == 1:
        return found[0]
    if "q" in found:
        return "q"
    if found:
        scope.report(
            "E0406",
            f"`{found[0]}` and `{found[1]}` could both be the query rows",
            queries[0].name.span,
            note="queries and output read them, keys and value do not",
            hint="call the rows `q`",
        )
    elif shared:
        scope.report(
            "E0306",
            f"the output `{output.name.text}` does not have the queries' rows `{shared[0]}`",
            output.name.span,
            related=((queries[0].name.span, f"the query reads `{shared[0]}`"),),
        )
    else:
        scope.report(
            "E0406",
            "there is no index for the query rows",
            queries[0].name.span,
            note="it is one that every query and the output read, and no key and not the value",
            hint="for a single row declare `q : 1`",
        )
    return None


def _contracted(scope: Scope, query: ast.Tensor, key: ast.Tensor, output: ast.Tensor, q: str, k: str) -> str | None:
    of_query, of_key = bare(query.index), bare(key.index)
    shared = [n for n in of_query if n in of_key and n not in (q, k)]
    summed = [n for n in shared if n not in read(output.index)]
    if len(summed) == 1:
        return summed[0]
    if summed:
        scope.report(
            "E0305",
            f"both `{summed[0]}` and `{summed[1]}` would be summed over; one index is contracted",
            query.name.span,
        )
        return None
    if found := _outside_lse(scope, shared):
        return found
    for last in (of_query[-1:], of_key[-1:]):
        if last and last[0] in shared and _ends(query, last[0]) | _ends(key, last[0]):
            return last[0]
    missing = [n for n in of_query if n not in of_key and n != q and n not in read(output.index)]
    here = query.index[of_query.index(missing[0])].span if missing and query.index else query.name.span
    remark = f"{missing[0]} is read here" if missing else ""
    scope.report(
        "E0304",
        f"{query.name.text} and {key.name.text} share no index to contract",
        key.name.span,
        note=None
        if missing
        else "the contracted index is read bare by both, and is the last one if the output has it too",
        related=((here, remark),) if missing else (),
    )
    return None


def _outside_lse(scope: Scope, shared: list[str]) -> str | None:
    """The one candidate that a declared lse, which has every outer index and the rows, does not have."""
    left = [n for n in shared for t in scope.slot("lse") if n not in read(t.index)]
    return left[0] if len(left) == 1 else None


def _ends(t: ast.Tensor, name: str) -> bool:
    last = t.index[-1] if t.index else None
    return isinstance(last, ast.Name) and last.text == name


def _feature(
    scope: Scope, queries: list[ast.Tensor], value: ast.Tensor, output: ast.Tensor, q: str, k: str
) -> str | None:
    of_value, of_output = bare(value.index), bare(output.index)
    shared = [n for n in of_value if n in of_output and n not in (q, k)]
    own = [n for n in shared if not any(n in read(t.index) for t in queries)]
    if len(own) == 1:
        return own[0]
    if not own:
        lost = [n for n in of_value if n not in of_output and n != k and _ends(value, n)]
        if lost:
            scope.report(
                "E0306",
                f"the output `{output.name.text}` does not have the value's features `{lost[0]}`",
                output.name.span,
                related=((value.name.span, f"the value reads `{lost[0]}`"),),
            )
            return None
        if found := _outside_lse(scope, shared):
            return found
        for t in (output, value):
            for n in shared:
                if _ends(t, n):
                    return n
    scope.report(
        "E0307",
        f"which index of `{value.name.text}` holds its features cannot be told",
        value.name.span,
        note="it is read bare by value and output, and is the last one if a query reads it too",
    )
    return None


def _nothing_left_over(
    scope: Scope,
    queries: list[ast.Tensor],
    keys: list[ast.Tensor],
    value: ast.Tensor,
    contracted: tuple[str | None, ...],
    feature: str,
    of_query: set[str],
    of_key: set[str],
) -> None:
    """Every index of a query, key or value is outer, q, k, contracted or the feature."""
    known = set(scope.axes)
    expected = [(t, of_query | {d}) for t, d in zip(queries, contracted, strict=True) if d]
    expected += [(t, of_key | {d}) for t, d in zip(keys, contracted, strict=True) if d]
    if value not in keys:
        expected.append((value, of_key | {feature}))
    for t, names in expected:
        for e in t.index or ():
            for n in sorted(read((e,)) & known - names):
                scope.report(
                    "E0305",
                    f"`{t.name.text}` reads `{n}`, which is neither summed over nor in the output",
                    e.span,
                )
    for t, d in zip(queries, contracted, strict=True):
        if d in of_query:
            scope.report("E0304", f"`{d}` would be contracted, but the output has it as well", t.name.span)
