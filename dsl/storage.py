"""Storage: which indices can be packed or have lengths, and how keys and values are paged and scaled."""

from __future__ import annotations

from tilec.dsl import ast
from tilec.dsl.forms import Roles
from tilec.dsl.scope import Scope, bare, read


def check_storage(scope: Scope, parts: Roles) -> None:
    """Checks the storage words of a kernel whose parts are known."""
    for axis in scope.axes.values():
        if axis.stored:
            _sequences(scope, parts, axis, axis.stored)
    _shared_extents(scope)
    for t in scope.tensors.values():
        _positions(scope, parts, t)
        for x in t.tails:
            match x:
                case ast.Paged(load) if t.slot.text in ("key", "value"):
                    _paged(scope, parts, t, load)
                case ast.Scaled(load) if load.tensor.text in scope.tables:
                    for e in load.index:
                        for n in sorted(read((e,)) & scope.axes.keys() - {*parts.outer}):
                            scope.report(
                                "E0316",
                                f"a descale is one number per batch entry and head; it cannot have `{n}`",
                                e.span,
                            )


def _positions(scope: Scope, parts: Roles, t: ast.Tensor) -> None:
    """A tensor over packed positions has the batch index too; positions are never grouped in a declaration."""
    for e in t.index or ():
        match e:
            case ast.Name(n) if n in (parts.q, parts.k):
                stored = scope.axes[n].stored
                if stored and stored.kind == "packed" and parts.batch and parts.batch not in bare(t.index):
                    scope.report(
                        "E0412",
                        f"`{n}` is packed by sequence, so `{t.name.text}` must read `{parts.batch}` too",
                        e.span,
                        note=f"the position of `{n}` in memory is {stored.table.text}[{parts.batch}] + {n}",
                    )
            case ast.Binary(op, ast.Name(n)) if n in (parts.q, parts.k):
                scope.report(
                    "E0303",
                    f"`{t.name.text}` cannot be declared by `{n} {op} …`",
                    e.span,
                    hint=f"declare an index for its extent, and read `{n} {op} …` where it is used",
                )


def _sequences(scope: Scope, parts: Roles, axis: ast.Axis, stored: ast.Stored) -> None:
    name = axis.name.text
    if name not in (parts.q, parts.k):
        scope.report(
            "E0412",
            f"`{name}` cannot be {_stored(stored.kind)}",
            stored.span,
            note=f"only the query rows `{parts.q}` and the keys `{parts.k}` form sequences",
        )
    elif parts.batch is None:
        scope.report(
            "E0412",
            f"`{stored.table.text}` needs an index of sequences, and the output has none",
            stored.span,
            hint="declare `b : B` and read it in queries, keys, value and output",
        )
    elif isinstance(axis.extent, ast.Integer):
        scope.report(
            "E0412",
            f"sequences of their own lengths need a symbol as extent, not {axis.extent.value}",
            axis.extent.span,
            hint=f"write `{name} : {'M' if name == parts.q else 'N'} {stored.kind} {stored.table.text}`",
        )


def _shared_extents(scope: Scope) -> None:
    """An extent that is each sequence's own for one index is so for every index that has it."""
    named = [(a, a.extent.text) for a in scope.axes.values() if isinstance(a.extent, ast.Name)]
    own = {extent: axis for axis, extent in named if axis.stored}
    for axis, extent in named:
        first = own.get(extent, axis)
        if axis.stored != first.stored:
            scope.report(
                "E0412",
                f"`{extent}` is the length of each sequence of `{first.name.text}`, and `{axis.name.text}` is not stored so",
                axis.span,
                related=((first.span, "its lengths are given here"),),
                hint="use another symbol, or the same storage for both",
            )


def _stored(kind: str) -> str:
    return "packed" if kind == "packed" else "given lengths"


def _paged(scope: Scope, parts: Roles, t: ast.Tensor, load: ast.Load) -> None:
    table, batch, k = load.tensor.text, parts.batch, parts.k
    match load.index:
        case (ast.Name(first), ast.Binary("//", ast.Name(second), ast.Integer() | ast.Name() as page)) if (
            first == batch and second == k and _is_constant(page)
        ):
            pass
        case _:
            scope.report(
                "E0412",
                "a block table is read by sequence and page",
                load.span,
                hint=f"write `paged {table}[{batch or 'b'}, {k} // 64]`",
            )
            return
    match page:
        case ast.Integer(0):
            scope.report("E0315", "this divides by zero", page.span)
        case ast.Name(text) if scope.role(text) is None:
            scope.divisors[text] = page
    if batch not in bare(t.index):
        scope.report("E0412", f"`{t.name.text}` is paged by sequence, and does not read `{batch}`", t.name.span)
    stored = scope.axes[k].stored
    if stored is None or stored.kind != "lengths":
        scope.report(
            "E0413",
            f"`{t.name.text}` is paged, so how many keys each sequence has must be given",
            load.span,
            hint=f"declare `{k} : N lengths seqlen_{k}`",
            related=((scope.axes[k].span, f"`{k}` is declared here"),),
        )


def _is_constant(page: ast.Integer | ast.Name) -> bool:
    return isinstance(page, ast.Integer) or page.text[0].isupper()
