"""Values of an attention's scalar expressions over broadcasting NumPy arrays.

Integers are int64, booleans bool_, floats one given type: float64 for the exact oracle, float32 for the target's rounding.
`//` and `%` floor.  A float operand makes its partner float; nothing silently widens to float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.expr import OPS, Bool, Expr, Fetch, Float, Int, Op, Var
from tilec.ir.philox import uniform

Array = NDArray[Any]
Real = type[np.float32] | type[np.float64]
Lookup = Callable[[str, tuple[Array, ...]], Array]
Function = Callable[[Array], Array]

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "or": np.logical_or,
    "and": np.logical_and,
    "==": np.equal,
    "!=": np.not_equal,
    "<=": np.less_equal,
    "<": np.less,
    ">=": np.greater_equal,
    ">": np.greater,
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "//": np.floor_divide,
    "%": np.mod,
    "**": np.power,
    "min": np.minimum,
    "max": np.maximum,
}
_UNARY: dict[str, Callable[[Array], Array]] = {
    "not": np.logical_not,
    "neg": np.negative,
    "abs": np.abs,
    "tanh": np.tanh,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
}


def evaluate(
    e: Expr, env: Mapping[str, Any], lookup: Lookup, real: Real = np.float64, tanh: Function = np.tanh
) -> Array:
    """The value of `e`.  `env`: variables; `lookup(tensor, index)`: the elements of a fetch; `tanh`: what
    stands for it.

    Raises KeyError for a variable that `env` lacks, TypeError for a node that only tile programs have.
    """
    done: dict[Expr, Array] = {}

    def go(x: Expr) -> Array:
        if x not in done:
            done[x] = value(x)
        return done[x]

    def value(x: Expr) -> Array:
        match x:
            case Int(v):
                return np.asarray(v, np.int64)
            case Float(v):
                return np.asarray(v, real)
            case Bool(v):
                return np.asarray(v)
            case Var(name):
                return np.asarray(env[name])
            case Fetch(tensor, index):
                return lookup(tensor, tuple(go(i) for i in index))
            case Op("tanh", (a,)):
                return tanh(go(a).astype(real))
            case Op(name, args):
                return operate(name, [go(a) for a in args], real)
        raise TypeError(f"{type(x).__name__} has no meaning outside a tile program: {x}")

    with np.errstate(all="ignore"):
        return go(e)


def operate(name: str, args: list[Array], real: Real) -> Array:
    """One operator of `OPS` on arrays that broadcast together."""
    if name == "where":
        a, b = _join(args[1:], real)
        return np.where(args[0], a, b)
    if name == "uniform":
        seed, offset, *at = args
        return uniform(int(seed), int(offset), *at).astype(real)
    if OPS[name].result == "float":
        args = [a.astype(real) for a in args]
        if name == "float":
            return args[0]
        return np.divide(*args) if name == "/" else _UNARY[name](args[0])
    if len(args) == 1:
        return _UNARY[name](args[0])
    return _BINARY[name](*_join(args, real))


def _join(args: list[Array], real: Real) -> list[Array]:
    """Operands of one kind: all `real` if any is a float, and booleans count as integers beside integers."""
    if any(a.dtype.kind == "f" for a in args):
        return [a.astype(real) for a in args]
    if any(a.dtype.kind == "i" for a in args):
        return [a.astype(np.int64) for a in args]
    return args
