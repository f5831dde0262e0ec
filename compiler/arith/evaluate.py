"""Integer expressions on Python integers: the prover's own evaluator, exact and unbounded.

`env` gives scalars by name, and arrays (nested sequences) for tensors that `Fetch` reads.  `//` and `%` floor.  A name that is
not in `env` raises KeyError, an operator that is not integer arithmetic raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilec.ir.expr import Bool, Expr, Fetch, Int, Op, Var

Env = Mapping[str, Any]

_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
}


def evaluate(e: Expr, env: Env) -> int:
    """The value of an integer or boolean expression (booleans are 0 and 1 of type bool)."""
    match e:
        case Int(v) | Bool(v):
            return v
        case Var(name):
            return int(env[name])
        case Fetch(name, index):
            cell = env[name]
            for i in index:
                at = evaluate(i, env)
                if at < 0:
                    raise IndexError(f"{e} at {at}")
                cell = cell[at]
            return int(cell)
        case Op("and", (a, b)):
            return bool(evaluate(a, env) and evaluate(b, env))
        case Op("or", (a, b)):
            return bool(evaluate(a, env) or evaluate(b, env))
        case Op("not", (a,)):
            return not evaluate(a, env)
        case Op("where", (c, a, b)):
            return evaluate(a if evaluate(c, env) else b, env)
        case Op("neg", (a,)):
            return -evaluate(a, env)
        case Op("abs", (a,)):
            return abs(evaluate(a, env))
        case Op(name, (a, b)) if name in _BINARY:
            return _BINARY[name](evaluate(a, env), evaluate(b, env))
    raise ValueError(f"`{e}` is not integer arithmetic")
