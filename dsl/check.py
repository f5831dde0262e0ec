"""All checks of a parsed file that need no target: names, shapes, dtypes, the form of an attention, and schedules."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.dsl import ast, words
from tilec.dsl.codes import fault
from tilec.dsl.declare import declare
from tilec.dsl.faults import Fault
from tilec.dsl.forms import Roles, roles
from tilec.dsl.kinds import Typer
from tilec.dsl.schedules import check_schedules
from tilec.dsl.scope import Scope, read
from tilec.dsl.storage import check_storage


@dataclass(frozen=True)
class Checked:
    """A kernel without mistakes."""

    scope: Scope
    roles: Roles


def check(file: ast.File) -> tuple[tuple[Checked, ...], list[Fault]]:
    """The sound kernels of a file, and what is wrong with the rest of it."""
    faults: list[Fault] = []
    checked: list[Checked] = []
    seen: dict[str, ast.Name] = {}
    scopes: dict[str, Scope] = {}
    for kernel in file.kernels:
        name = kernel.name
        if why := words.reserved(name.text):
            faults.append(fault("E0204", f"{why}; choose another name", name.span))
        if name.text in seen:
            first = (seen[name.text].span, "the first one")
            faults.append(fault("E0202", f"two kernels are called `{name.text}`", name.span, related=(first,)))
            continue
        seen[name.text] = name
        scope, found = _kernel(kernel)
        scopes[name.text] = scope
        faults += scope.faults
        if found and not scope.faults and not kernel.broken:
            checked.append(Checked(scope, found))
    if not file.blocks:
        faults.append(fault("E0110", "the file has no kernel", hint="a spec begins with `kernel NAME {`"))
    faults += check_schedules(file, scopes)
    return tuple(checked), faults


def _kernel(kernel: ast.Kernel) -> tuple[Scope, Roles | None]:
    scope = declare(kernel)
    _once(scope)
    parts = roles(scope)
    if parts:
        scope.looped = (parts.q, parts.k)
        check_storage(scope, parts)
        _pair_dtypes(scope, parts)
    _expressions(scope, parts)
    _gradients(scope)
    if not kernel.broken:
        _unused(scope)
    return scope, parts


def _once(scope: Scope) -> None:
    """Statements that may stand once."""
    seen: dict[str, ast.Statement] = {}
    for s in scope.kernel.statements:
        match s:
            case ast.Tensor() if s.slot.text in ("value", "output", "lse", "sink"):
                word = s.slot.text
            case ast.Scale() | ast.Mask() | ast.Grad() | ast.Dropout():
                word = type(s).__name__.lower()
            case _:
                continue
        if word in seen:
            hint = "join the conditions with `and`" if word == "mask" else None
            first = (seen[word].span, "the first one")
            scope.report("E0402", f"a kernel has one `{word}` line", s.span, hint=hint, related=(first,))
            scope.failed_slots.add(word)
        seen.setdefault(word, s)


def _pair_dtypes(scope: Scope, parts: Roles) -> None:
    for a, b in parts.pairs:
        query, key = scope.tensors[a], scope.tensors[b]
        if query.dtype and key.dtype and query.dtype.text != key.dtype.text and not {a, b} & scope.poisoned:
            scope.report(
                "E0313",
                f"the query `{a}` is {query.dtype.text} and its key `{b}` is {key.dtype.text}",
                key.dtype.span,
                related=((query.dtype.span, "the query's dtype"),),
            )


def _expressions(scope: Scope, parts: Roles | None) -> None:
    indices = frozenset({*parts.outer, parts.q, parts.k}) if parts else None
    for s in scope.kernel.statements:
        match s:
            case ast.Mask(e):
                kind = Typer(scope, "mask", indices).kind(e)
                if kind not in (None, "bool"):
                    scope.report(
                        "E0502", "a mask is a condition, and this is a number", e.span, hint="compare it with something"
                    )
            case ast.Score(target, e):
                if target.text != words.SCORE:
                    scope.report(
                        "E0409",
                        f"a score line rewrites `s`, not `{target.text}`",
                        target.span,
                        hint="write `score s = …`",
                    )
                if Typer(scope, "score", indices).kind(e) == "bool":
                    scope.report("E0317", "a score is a number, and this is a condition", e.span)
            case ast.Scale(e):
                if Typer(scope, "scale").kind(e) == "bool":
                    scope.report("E0410", "the scale is one number, and this is a condition", e.span)
            case ast.Assume(e):
                if Typer(scope, "assume").kind(e) not in (None, "bool"):
                    scope.report("E0702", "an assumption is a condition, and this is a number", e.span)
            case ast.Dropout(ast.Integer(p) | ast.Real(p)) if 0 <= p < 1:
                pass
            case ast.Dropout(e):
                scope.report("E0415", "a dropout rate is a number from 0 up to, but not including, 1", e.span)


def _gradients(scope: Scope) -> None:
    for s in scope.kernel.statements:
        if not isinstance(s, ast.Grad):
            continue
        seen: set[str] = set()
        for n in s.names:
            if n.text in seen:
                scope.report("E0414", f"`{n.text}` is listed twice", n.span)
            seen.add(n.text)
            _gradient(scope, n)
        for line in scope.kernel.statements:
            if isinstance(line, ast.Score):
                _derivative(scope, line.value)


def _gradient(scope: Scope, n: ast.Name) -> None:
    if n.text in scope.poisoned:
        return
    t = scope.tensors.get(n.text)
    if t is None:
        role = scope.role(n.text)
        if role is None:
            inputs = [x.name.text for x in scope.slot("query", "key", "value", "param", "bias", "sink")]
            scope.unknown(n, inputs, "the tensor")
        else:
            article = "an" if role in ("index", "extent") else "a"
            scope.report("E0602", f"`{n.text}` is {article} {role} and has no gradient", n.span)
        return
    if t.slot.text in ("output", "lse"):
        scope.report("E0602", f"`{n.text}` is an output; gradients are taken of inputs", n.span)
    elif t.dtype and (t.dtype.text in words.FP8 or t.dtype.text not in words.FLOATS):
        why = "a gradient needs bf16, f16 or f32"
        scope.report("E0602", f"`{n.text}` is {t.dtype.text} and has no gradient", n.span, note=why)


def _derivative(scope: Scope, e: ast.Expr) -> None:
    """Refuses steps and free exponents over the score or a float param."""
    for x in ast.walk(e):
        match x:
            case ast.Binary("//" | "%" as op, a, b) if _differentiable(scope, a) or _differentiable(scope, b):
                scope.report("E0601", f"`{op}` of a score has no derivative, and this kernel has gradients", x.span)
            case ast.Binary("**", _, b) if _differentiable(scope, b):
                scope.report("E0601", "a power needs a constant exponent where gradients are taken", b.span)


def _differentiable(scope: Scope, e: ast.Expr) -> bool:
    """Whether `e` depends on the score or on a float tensor."""
    for x in ast.walk(e):
        match x:
            case ast.Name(words.SCORE):
                return True
            case ast.Load(ast.Name(name)):
                t = scope.tensors.get(name)
                if t and t.dtype and t.dtype.text in words.FLOATS:
                    return True
    return False


def _unused(scope: Scope) -> None:
    if "bracket" in scope.failed_slots:
        return
    indexed = set().union(*(read(t.index) for t in scope.tensors.values()))
    for axis in scope.axes.values():
        if axis.name.text not in indexed and axis.name.text not in scope.poisoned and not scope.failed_slots:
            scope.report("E0203", f"no tensor reads the index `{axis.name.text}`", axis.name.span)
    mentioned = {
        n.text
        for s in scope.kernel.statements
        if isinstance(s, ast.Score | ast.Mask | ast.Scale | ast.Assume)
        for x in ast.walk(s.value)
        for n in ([x] if isinstance(x, ast.Name) else [x.tensor] if isinstance(x, ast.Load) else [])
    }
    for t in scope.slot("param", "bias"):
        if t.name.text not in mentioned and t.name.text not in scope.poisoned:
            hint = None
            if t.slot.text == "bias":
                inside = ", ".join(e.text for e in t.index or () if isinstance(e, ast.Name))
                hint = f"a bias is added by a line `score s = s + {t.name.text}[{inside}]`"
            scope.report("E0213", f"the {t.slot.text} `{t.name.text}` is never read", t.name.span, hint=hint)
