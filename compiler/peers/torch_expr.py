"""Spec expressions as functions of torch tensors: what FlexAttention calls a mask_mod and a score_mod.

The functions are closures over the expression, traced once by torch.compile; they evaluate with torch operators whose
meaning is the language's: `//` and `%` floor, `/` is a float division.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilec.ir.expr import Bool, Expr, Fetch, Float, Int, Op, Var

_INFIX: dict[str, Callable[[Any, Any], Any]] = {
    "or": operator.or_,
    "and": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_UNARY = ("tanh", "exp", "exp2", "log", "log2", "sqrt")


def _choose(c: Any, a: Any, b: Any) -> Any:
    return torch.where(c, a, b) if isinstance(c, torch.Tensor) else a if c else b


def value(e: Expr, env: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """The value of `e`: `env` gives variables (tensors or numbers), `tensors` what `Fetch` reads.

    Raises KeyError for an unbound name and NotImplementedError for an operator a peer cannot be given (dropout's bits)."""
    match e:
        case Int(v) | Float(v) | Bool(v):
            return v
        case Var(name):
            return env[name]
        case Fetch(tensor, index):
            return tensors[tensor][tuple(value(i, env, tensors) for i in index)]
        case Op(name, args):
            return _apply(name, [value(a, env, tensors) for a in args])
    raise NotImplementedError(f"{type(e).__name__} has no torch form")


def _apply(name: str, args: list[Any]) -> Any:
    x = args[0]
    on_tensor = isinstance(x, torch.Tensor)
    if name in _INFIX:
        return _INFIX[name](x, args[1])
    match name:
        case "not":
            return ~x if on_tensor else not x
        case "neg":
            return -x
        case "abs":
            return abs(x)
        case "min":
            return _choose(x <= args[1], x, args[1])
        case "max":
            return _choose(x >= args[1], x, args[1])
        case "where":
            return _choose(x, args[1], args[2])
        case "float":
            return x.to(torch.float32) if on_tensor else float(x)
        case _ if name in _UNARY:
            return getattr(torch, name)(x) if on_tensor else getattr(math, name)(x)
    raise NotImplementedError(f"`{name}` has no torch form")
