"""Kinds of expressions (boolean, integer, float), and what each place of a kernel may read.

mask     integers and booleans over the outer indices, rows, keys, extents and integer params; a condition
score    the same, and floats and `s`; a number
scale    numbers and extents; a number
assume   integers and extents; a condition
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilec.dsl import ast, words
from tilec.dsl.scope import Scope, read

Kind = Literal["int", "float", "bool"]
Place = Literal["mask", "score", "scale", "assume"]
_KIND = {"bool": "a condition", "int": "an integer", "float": "a float"}
_STRAY = {"scale": "E0410", "assume": "E0702"}  # the code of an index or tensor where only extents may stand


@dataclass
class Typer:
    """Infers kinds in one place of a kernel.  `indices`: those with a value there, or None if they are not known.
    A kind of None is that of an expression whose mistake is already reported."""

    scope: Scope
    place: Place
    indices: frozenset[str] | None = None

    def kind(self, e: ast.Expr) -> Kind | None:
        """The kind of `e`, reporting what is wrong inside it."""
        match e:
            case ast.Integer():
                return "int"
            case ast.Boolean():
                return "bool"
            case ast.Real():
                return self._float(e, "this number")
            case ast.Name():
                return self._name(e)
            case ast.Load():
                return self._load(e)
            case ast.Call():
                return self._call(e)
            case ast.Unary("not", x):
                return "bool" if self._want(x, "bool") else None
            case ast.Unary(_, x):
                return self._number(x)
            case ast.Binary("and" | "or", x, y):
                good = [self._want(x, "bool"), self._want(y, "bool")]
                return "bool" if all(good) else None
            case ast.Binary(op, x, y):
                return self._arithmetic(e, op, x, y)
            case ast.Compare():
                return self._compare(e)

    def _float(self, e: ast.Expr, what: str) -> Kind | None:
        if self.place != "mask":
            return "float"
        self.scope.report(
            "E0503",
            f"{what} is a float, and masks are over integers",
            e.span,
            note="then the tiles to skip can be proved",
        )
        return None

    def _want(self, e: ast.Expr, kind: Kind) -> bool:
        """Whether `e` is of this kind; false also if something in it was wrong."""
        found = self.kind(e)
        if found is not None and found != kind:
            self.scope.report("E0317", f"{_KIND[kind]} is needed here, and this is {_KIND[found]}", e.span)
        return found == kind

    def _number(self, e: ast.Expr) -> Kind | None:
        found = self.kind(e)
        if found == "bool":
            self.scope.report(
                "E0317",
                "a number is needed here, and this is a condition",
                e.span,
                hint="`where(condition, 1, 0)` makes it one",
            )
            return None
        return found

    def _arithmetic(self, e: ast.Expr, op: str, x: ast.Expr, y: ast.Expr) -> Kind | None:
        a, b = self._number(x), self._number(y)
        if op in ("/", "//", "%") and isinstance(y, ast.Integer | ast.Real | ast.Unary):
            value = _constant(y)
            if value == 0 or (value is not None and value < 0 and op != "/"):
                self.scope.report(
                    "E0315", "this divides by zero" if value == 0 else "this divides by a negative number", y.span
                )
                return None
        if a is None or b is None:
            return None
        if op == "/":
            return self._float(e, "the quotient `/`")
        return "float" if "float" in (a, b) else "int"

    def _compare(self, e: ast.Compare) -> Kind | None:
        kinds = [self.kind(x) for x in e.operands]
        if None in kinds:
            return None
        if "bool" in kinds:
            if set(kinds) == {"bool"} and set(e.ops) <= {"==", "!="}:
                return "bool"
            odd = e.operands[kinds.index("bool")]
            self.scope.report("E0317", "a number is needed here, and this is a condition", odd.span)
            return None
        return "bool"

    def _call(self, e: ast.Call) -> Kind | None:
        name = e.function.text
        known = words.FUNCTIONS.get(name)
        if known is None:
            if name not in self.scope.poisoned:
                hint = (
                    words.did_you_mean(name, words.FUNCTIONS) or f"functions are {words.listed(words.FUNCTIONS, 'and')}"
                )
                self.scope.report("E0206", f"there is no function `{name}`", e.function.span, hint=hint)
            for a in e.args:
                self.kind(a)
            return None
        arity, result = known
        if len(e.args) != arity:
            self.scope.report("E0212", f"`{name}` takes {arity} argument{'s' * (arity > 1)}, not {len(e.args)}", e.span)
            return None
        if name == "where":
            condition = self._want(e.args[0], "bool")
            kinds = [self.kind(a) for a in e.args[1:]]
            if "bool" in kinds and None not in kinds and set(kinds) != {"bool"}:
                self.scope.report("E0317", "`where` chooses between two numbers or two conditions", e.span)
                return None
            if not condition or None in kinds:
                return None
            return "bool" if kinds[0] == "bool" else "float" if "float" in kinds else "int"
        numbers = [self._number(a) for a in e.args]
        if None in numbers:
            return None
        if result == "float":
            return self._float(e, f"`{name}`")
        return "float" if "float" in numbers else "int"

    def _name(self, n: ast.Name) -> Kind | None:
        if n.text in self.scope.poisoned:
            return None
        if n.text == words.SCORE:
            if self.place == "score":
                return "float"
            self.scope.report("E0409", f"`s` is the running score, and a {self.place} does not see it", n.span)
            return None
        match self.scope.role(n.text):
            case "extent":
                return "int"
            case "index":
                return self._index(n)
            case "tensor" | "table" as role:
                self._stray_tensor(n, role)
                return None
            case None:
                hint = (
                    "a symbol is the extent of an index; for a constant write the number"
                    if n.text[0].isupper()
                    else None
                )
                self.scope.unknown(n, self.scope.names(), "the name", hint)
                return None

    def _index(self, n: ast.Name) -> Kind | None:
        if self.place in _STRAY:
            what = "the scale is one number" if self.place == "scale" else "an assumption is about extents"
            self.scope.report(_STRAY[self.place], f"{what}, and `{n.text}` is an index", n.span)
            return None
        if self.indices is not None and n.text not in self.indices:
            self.scope.poisoned.add(n.text)
            self.scope.report(
                "E0214",
                f"`{n.text}` has no value in a {self.place}: it is summed over, or no row or key has it",
                n.span,
            )
            return None
        return "int"

    def _stray_tensor(self, n: ast.Name, role: str) -> None:
        if self.place in _STRAY:
            what = "the scale is one number" if self.place == "scale" else "an assumption is about extents"
            self.scope.report(_STRAY[self.place], f"{what}, and `{n.text}` is a {role}", n.span)
            return
        t = self.scope.tensors.get(n.text)
        if t is None or t.slot.text not in ("param", "bias"):
            kind = t.slot.text if t else "storage table"
            self.scope.report("E0210", f"`{n.text}` is a {kind}; a {self.place} reads params and biases", n.span)
            return
        shown = ", ".join(sorted(read(t.index), key=list(self.scope.axes).index)) if t.index else "…"
        self.scope.report(
            "E0210", f"`{n.text}` is a {t.slot.text} and is read with brackets", n.span, hint=f"`{n.text}[{shown}]`"
        )

    def _load(self, e: ast.Load) -> Kind | None:
        name = e.tensor
        t = self.scope.tensors.get(name.text)
        role = self.scope.role(name.text)
        if self.place in _STRAY or (
            role in ("tensor", "table") and (t is None or t.slot.text not in ("param", "bias"))
        ):
            if name.text not in self.scope.poisoned:
                self._stray_tensor(name, role or "tensor")
            return None
        for i in e.index:
            self._want(i, "int")
        if name.text in self.scope.poisoned:
            return None
        if t is None:
            if role is None:
                self.scope.unknown(name, [x.name.text for x in self.scope.slot("param", "bias")], "the param")
            else:
                self.scope.report("E0210", f"`{name.text}` is an {role} and has no brackets", e.span)
            return None
        if len(e.index) != len(t.index or ()):
            self.scope.report(
                "E0308",
                f"`{name.text}` has {_count(len(t.index or ()))}, and {len(e.index)} are given",
                e.span,
                related=((t.name.span, "it is declared here"),),
            )
            return None
        dtype = t.dtype.text if t.dtype else ""
        if dtype in words.FLOATS:
            return self._float(e, f"`{name.text}`")
        return "bool" if dtype == "bool" else "int"


def _count(n: int) -> str:
    return "1 index" if n == 1 else f"{n} indices"


def _constant(e: ast.Expr) -> float | None:
    match e:
        case ast.Integer(v) | ast.Real(v):
            return v
        case ast.Unary("-", x):
            inner = _constant(x)
            return None if inner is None else -inner
    return None
