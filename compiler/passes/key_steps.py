"""Statements of a key step for another tile of keys, or for a part of its lanes: what passes that copy ahead have in common.

BELOW     a tile below the first one walked ends before a position that exists, so its copy needs no guard for that
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tilec.ir.build import add, all_of
from tilec.ir.expr import Expr, Int, Iota, Op, Var, substitute, transform, walk
from tilec.ir.nodes import Load, Stmt, map_exprs

S = TypeVar("S", bound=Stmt)


def at_tile(s: S, var: str, value: Expr) -> S:
    """A statement of a key step for the tile numbered `value`."""
    found = map_exprs(s, lambda e: substitute(e, {Var(var): value}))
    assert isinstance(found, type(s))
    return found


def shifted(s: S, axis: str, offset: Expr) -> S:
    """Lanes along `axis` counted from `offset`."""

    def lanes(e: Expr) -> Expr | None:
        match e:
            case Op("+", (x, Op("+", (y, Iota(name))))) if name == axis and y is offset:
                return Op("+", (add(x, offset), Iota(name)))
            case Iota(name) if name == axis:
                return Op("+", (offset, e))
        return None

    found = map_exprs(s, lambda e: transform(e, lanes))
    assert isinstance(found, type(s))
    return found


def without_end_guard(s: Load, var: str) -> Load:
    """Rule BELOW: without the guards that hold for every tile below one that exists."""

    def kept(e: Expr) -> Expr:
        match e:
            case Op("and", (a, b)):
                return all_of(kept(a), kept(b))
            case Op("<", (a, b)) if _grows(a, Var(var)) and Var(var) not in walk(b):
                return all_of()
        return e

    guard = None if s.where is None else kept(s.where)
    return replace(s, where=None if guard is all_of() else guard)


def _grows(e: Expr, var: Expr) -> bool:
    """Whether `e` is positions along the keys, tile after tile: a sum with the tile's number times sizes, and lanes."""
    match e:
        case Op("+", (a, b)):
            return (_grows(a, var) and (isinstance(b, Iota) or var not in walk(b))) or (
                _grows(b, var) and (isinstance(a, Iota) or var not in walk(a))
            )
        case Op("*", (a, b)):
            return _grows(a, var) and (isinstance(b, Var) or (isinstance(b, Int) and b.value > 0)) and b is not var
    return e is var
