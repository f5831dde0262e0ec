"""Arithmetic over a call's extents, kept as text: `B + 1`, `H // 4`, `M <= N and B > 0`.

A generated module carries its signature as JSON, and the runtime may not import the compiler's expressions; the text is
what `ir.expr.show` prints, which is Python's own infix notation.  Only names, integers, booleans, arithmetic,
comparisons and `min max abs where` are admitted; anything else is a ValueError, so a signature cannot run code.
Values may be torch.SymInt as well as int.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

_ADMITTED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub, ast.Not, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip


def _where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


_FUNCTIONS: dict[str, Any] = {
    "__builtins__": {},
    "min": min,
    "max": max,
    "abs": abs,
    "where": _where,
    "true": True,
    "false": False,
}


@lru_cache(maxsize=1024)
def _compiled(text: str) -> tuple[CodeType, frozenset[str]]:
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _ADMITTED):
            raise ValueError(f"`{text}` is not arithmetic over extents")
        if isinstance(node, ast.Constant) and not isinstance(node.value, int):
            raise ValueError(f"`{text}` has a constant that is not an integer")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            raise ValueError(f"`{text}` calls an unknown function")
    names = frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) - _FUNCTIONS.keys()
    return compile(tree, "<extent>", "eval"), names


def evaluate(text: str, env: Mapping[str, Any]) -> Any:
    """The value of `text`.  NameError if a symbol is missing from `env`, ValueError if the text is not arithmetic."""
    return eval(_compiled(text)[0], _FUNCTIONS, dict(env))


def symbols(text: str) -> frozenset[str]:
    """Names in `text` that `evaluate` needs."""
    return _compiled(text)[1]
