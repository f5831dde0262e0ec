"""Declarations of a kernel: indices, extents, tensors and storage tables, each checked on its own."""

from __future__ import annotations

from tilec.dsl import ast, words
from tilec.dsl.scope import Scope, Table, read

MAX_EXTENT = 2**31 - 1
_BARE = ("query", "output", "lse")  # slots whose brackets hold plain indices
_DTYPES = {
    "query": words.FLOATS,
    "key": words.FLOATS,
    "value": words.FLOATS,
    "output": words.FLOATS,
    "lse": ("f32",),
    "sink": ("f32",),
    "bias": ("bf16", "f16", "f32"),
    "param": words.DTYPES,
}


def declare(kernel: ast.Kernel) -> Scope:
    """The kernel's scope, with what is wrong in its declarations reported."""
    scope = Scope(kernel)
    for s in kernel.statements:
        if isinstance(s, ast.Index):
            for axis in s.axes:
                _axis(scope, axis)
    for s in kernel.statements:
        if isinstance(s, ast.Tensor):
            _tensor(scope, s)
    return scope


def _new(scope: Scope, name: ast.Name) -> bool:
    """Whether `name` may be declared."""
    why = words.reserved(name.text)
    if why:
        scope.report("E0204", f"{why}; choose another name", name.span)
    elif (before := scope.declared_at(name.text)) is not None:
        scope.report("E0202", f"`{name.text}` is declared twice", name.span, related=((before, "the first one"),))
    else:
        return True
    scope.poisoned.add(name.text)
    return False


def _upper(name: str) -> bool:
    return name[0].isupper()


def _axis(scope: Scope, axis: ast.Axis) -> None:
    name = axis.name
    if _upper(name.text):
        scope.poisoned |= {name.text, name.text.lower()}
        scope.report(
            "E0205", f"the index `{name.text}` must be lower case", name.span, note="upper case is for extents"
        )
    elif _new(scope, name):
        scope.axes[name.text] = axis
    match axis.extent:
        case ast.Integer(v) if 1 <= v <= MAX_EXTENT:
            pass
        case ast.Name(text) if _upper(text):
            if text not in scope.extents and _new(scope, axis.extent):
                scope.extents[text] = axis.extent
        case ast.Name(text):
            scope.report(
                "E0205",
                f"the extent `{text}` must be upper case",
                axis.extent.span,
                note="lower case is for indices",
                hint=f"write `{text.upper()}`",
            )
            scope.poisoned |= {text, text.upper()}
        case _:
            scope.report("E0302", "an extent is a positive integer or an upper-case symbol", axis.extent.span)
    if axis.stored:
        _table(scope, axis.stored.table, axis.stored.kind, None)


def _table(scope: Scope, name: ast.Name, use: str, index: tuple[ast.Expr, ...] | None) -> None:
    """Enters a table, which may be mentioned again for the same use."""
    known = scope.tables.get(name.text)
    if known is None:
        if _new(scope, name):
            scope.tables[name.text] = Table(name.text, use, index, name.span)
    elif (known.use, known.index) != (use, index):
        scope.report(
            "E0211",
            f"the table `{name.text}` cannot be read in two ways",
            name.span,
            related=((known.span, "it is `" + known.use + "` here"),),
        )


def _tensor(scope: Scope, t: ast.Tensor) -> None:
    slot = t.slot.text
    if t.index is None or t.dtype is None:
        if slot == "value":
            scope.reuses.append(t)
            if t.tails:
                scope.report("E0412", f"`value {t.name.text}` takes the key's storage as it is", t.tails[0].span)
        else:
            scope.failed_slots.add(slot)
            scope.poisoned.add(t.name.text)
            scope.report(
                "E0105",
                f"`{slot} {t.name.text}` needs brackets and a dtype",
                t.span,
                note="only a `value` may name a key instead",
            )
        return
    if not _new(scope, t.name):
        scope.failed_slots.add(slot)
        return
    scope.tensors[t.name.text] = t
    _dtype(scope, t, t.dtype)
    _brackets(scope, t.index, bare=slot in _BARE, of=t.name.text)
    _tails(scope, t)


def _dtype(scope: Scope, t: ast.Tensor, dtype: ast.Name) -> None:
    allowed = _DTYPES[t.slot.text]
    if dtype.text not in words.DTYPES:
        hint = words.did_you_mean(dtype.text, words.DTYPES) or f"dtypes are {words.listed(allowed, 'and')}"
        scope.report("E0310", f"`{dtype.text}` is not a dtype", dtype.span, hint=hint)
        scope.poisoned.add(t.name.text)
    elif dtype.text not in allowed:
        one = "must be" if len(allowed) == 1 else "can be"
        article = "an" if t.slot.text in ("output", "lse") else "a"
        scope.report(
            "E0311",
            f"{article} {t.slot.text} cannot be {dtype.text}",
            dtype.span,
            hint=f"it {one} {words.listed(allowed)}",
        )
        scope.poisoned.add(t.name.text)


def _brackets(scope: Scope, index: tuple[ast.Expr, ...], *, bare: bool, of: str) -> None:
    """The brackets of a declaration: indices, or `h // 4` and `h % 4` unless `bare`."""
    seen: set[str] = set()
    for e in index:
        match e:
            case ast.Name():
                if _is_index(scope, e, of) and e.text in seen:
                    scope.report("E0314", f"`{of}` has the index `{e.text}` twice", e.span)
                seen.add(e.text)
            case ast.Binary("//" | "%", ast.Name() as n, ast.Integer() | ast.Name() as divisor) if not bare:
                if _is_index(scope, n, of):
                    _divisor(scope, e, n, divisor)
            case _:
                allowed = "an index" if bare else "an index, or an index `//` or `%` a constant"
                scope.report(
                    "E0303", f"`{of}` cannot be declared by this expression", e.span, note=f"a bracket holds {allowed}"
                )
                scope.poisoned |= read((e,)) - scope.axes.keys()
                scope.failed_slots.add("bracket")


def _is_index(scope: Scope, n: ast.Name, of: str) -> bool:
    if n.text in scope.axes:
        return True
    if scope.role(n.text) is None:
        scope.unknown(n, list(scope.axes), "the index")
    else:
        scope.report("E0303", f"`{of}` is declared by indices, and `{n.text}` is not one", n.span)
    scope.failed_slots.add("bracket")
    return False


def _divisor(scope: Scope, e: ast.Binary, n: ast.Name, divisor: ast.Integer | ast.Name) -> None:
    """The constant of `h // 4`, which leaves no short group, or a symbol."""
    match divisor:
        case ast.Integer(0):
            scope.report("E0315", "this divides by zero", divisor.span)
        case ast.Integer(g):
            extent = scope.axes[n.text].extent
            if e.op == "//" and isinstance(extent, ast.Integer) and extent.value % g:
                groups, left = divmod(extent.value, g)
                scope.report(
                    "E0301",
                    f"groups do not divide: {n.text} has extent {extent.value}, and `{n.text} // {g}` would leave a short one",
                    e.span,
                    note=f"{extent.value} = {groups} group{'s' * (groups != 1)} of {g}, and {left} left over",
                )
        case ast.Name(text) if _upper(text):
            if scope.role(text) is None and _new(scope, divisor):
                scope.divisors[text] = divisor
        case ast.Name(text):
            scope.report("E0303", f"`{n.text}` must be divided by a constant, and `{text}` is not one", divisor.span)
            scope.failed_slots.add("bracket")


def _tails(scope: Scope, t: ast.Tensor) -> None:
    assert t.dtype is not None
    seen: set[str] = set()
    for x in t.tails:
        word = x.word if isinstance(x, ast.Fact) else type(x).__name__.lower()
        if word in seen:
            scope.report("E0414", f"`{word}` is given twice", x.span)
        seen.add(word)
        match x:
            case ast.Fact(fact):
                if t.slot.text != "param" or t.dtype.text not in (*words.INTEGERS, *scope.poisoned):
                    scope.report(
                        "E0703",
                        f"`{fact}` says something about an integer param, and `{t.name.text}` is not one",
                        x.span,
                    )
            case ast.Scaled(load):
                _scaled(scope, t, x, load)
            case ast.Paged(load):
                if t.slot.text not in ("key", "value"):
                    scope.report("E0412", f"only keys and values can be paged, and `{t.name.text}` is neither", x.span)
                else:
                    _table(scope, load.tensor, "paged", load.index)


def _scaled(scope: Scope, t: ast.Tensor, x: ast.Scaled, load: ast.Load) -> None:
    assert t.dtype is not None
    if t.slot.text not in ("query", "key", "value"):
        scope.report("E0316", f"a {t.slot.text} has no descale; queries, keys and values have", x.span)
    elif t.dtype.text in words.DTYPES and t.dtype.text not in words.FP8:
        scope.report(
            "E0316",
            f"`{t.name.text}` is {t.dtype.text}, which needs no descale",
            x.span,
            note=f"`scaled` is for {words.listed(words.FP8, 'and')}",
        )
    else:
        _brackets(scope, load.index, bare=False, of=load.tensor.text)
        _table(scope, load.tensor, "scaled", load.index)
