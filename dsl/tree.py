"""From lark's parse tree to the syntax tree, one case per rule of the grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lark import Token, Tree

from tilec.dsl import ast
from tilec.dsl.faults import SyntaxFault
from tilec.dsl.spans import Span

MAX_DEPTH = 100  # of nested expressions; later stages recurse over them
MAX_INTEGER = 2**63 - 1

Item = Any  # a lark tree or token


def span_of(x: Item) -> Span:
    """Where a tree or token stands."""
    at: Any = x if isinstance(x, Token) else x.meta
    return Span(at.start_pos, at.end_pos, at.line, at.column)


def file(tree: Tree[Token]) -> ast.File:
    """Rule `file`, without comments."""
    check_depth(tree)
    blocks = tuple(block(t) for t in tree.children if isinstance(t, Tree))
    return ast.File(blocks)


def block(tree: Tree[Token]) -> ast.Kernel | ast.Schedule:
    """Rules `kernel` and `schedule`."""
    parts: list[Item] = list(tree.children)
    if tree.data == "kernel":
        statements: tuple[Any, ...] = tuple(statement(t) for t in parts[1:])
        return ast.Kernel(name(parts[0]), statements, span=span_of(tree))
    statements = tuple(statement(t) for t in parts[2:])
    return ast.Schedule(name(parts[0]), name(parts[1]), statements, span=span_of(tree))


def statement(tree: Item) -> Any:
    """Any statement of a kernel or schedule; KeyError for a rule that is none."""
    return STATEMENTS[str(tree.data)](list(tree.children), span_of(tree))


def name(token: Item) -> ast.Name:
    return ast.Name(str(token), span=span_of(token))


def _maybe(token: Item | None) -> ast.Name | None:
    return None if token is None else name(token)


def _index(parts: list[Item], span: Span) -> ast.Index:
    return ast.Index(tuple(_axis(t) for t in parts), span=span)


def _axis(tree: Item) -> ast.Axis:
    n, extent, kind, table = tree.children
    stored = None
    if kind is not None:
        where = span_of(kind)
        stored = ast.Stored(str(kind), name(table), span=Span(where.start, table.end_pos, where.line, where.column))
    return ast.Axis(name(n), expr(extent), stored, span=span_of(tree))


def _tensor(parts: list[Item], span: Span) -> ast.Tensor:
    slot, n, brackets, dtype, *tails = parts
    index = None if brackets is None else tuple(expr(t) for t in brackets.children)
    return ast.Tensor(name(slot), name(n), index, _maybe(dtype), tuple(_tail(t) for t in tails), span=span)


def _tail(item: Item) -> ast.Tail:
    if isinstance(item, Token):
        return ast.Fact(str(item), span=span_of(item))
    kind = ast.Scaled if item.data == "scaled" else ast.Paged
    load = expr(item.children[0])
    assert isinstance(load, ast.Load)
    return kind(load, span=span_of(item))


def _warps(parts: list[Item], span: Span) -> ast.Warps:
    strategy, *args = parts
    given = [a for a in args if a is not None]
    arguments = tuple(ast.Argument(_maybe(a.children[0]), _integer(a.children[1]), span=span_of(a)) for a in given)
    return ast.Warps(name(strategy), arguments if given else None, span=span)


def _tile(parts: list[Item], span: Span) -> ast.Tile:
    pins = (ast.Pin(name(p.children[0]), _integer(p.children[1]), span=span_of(p)) for p in parts)
    return ast.Tile(tuple(pins), span=span)


def _tune(parts: list[Item], span: Span) -> ast.Tune:
    return ast.Tune(name(parts[0]), tuple(_integer(t) for t in parts[1:]), span=span)


def _rescale(parts: list[Item], span: Span) -> ast.Rescale:
    word, bound = parts
    if bound is None:
        return ast.Rescale(name(word), span=span)
    return ast.Rescale(name(word), _real(bound) if bound.type == "REAL" else _integer(bound), span=span)


def _split(parts: list[Item], span: Span) -> ast.Split:
    n, count = parts
    return ast.Split(name(n), None if count.type == "AUTO" else _integer(count), span=span)


def _grad(parts: list[Item], span: Span) -> ast.Grad:
    *names, order = parts
    return ast.Grad(tuple(name(t) for t in names), _maybe(order), span=span)


STATEMENTS: dict[str, Callable[[list[Item], Span], ast.Statement]] = {
    "index": _index,
    "tensor": _tensor,
    "scale": lambda p, s: ast.Scale(expr(p[0]), span=s),
    "score": lambda p, s: ast.Score(name(p[0]), expr(p[1]), span=s),
    "mask": lambda p, s: ast.Mask(expr(p[0]), span=s),
    "grad": _grad,
    "assume": lambda p, s: ast.Assume(expr(p[0]), span=s),
    "dropout": lambda p, s: ast.Dropout(expr(p[0]), span=s),
    "tile": _tile,
    "tune": _tune,
    "warps": _warps,
    "stages": lambda p, s: ast.Stages(_integer(p[0]), span=s),
    "overlap": lambda p, s: ast.Overlap(name(p[0]), span=s),
    "rescale": _rescale,
    "skip": lambda p, s: ast.Skip(name(p[0]), span=s),
    "order": lambda p, s: ast.Order(tuple(name(t) for t in p), span=s),
    "split": _split,
    "map": lambda p, s: ast.Map(name(p[0]), _maybe(p[1]), span=s),
    "cluster": lambda p, s: ast.Cluster(_integer(p[0]), span=s),
}


def expr(tree: Item) -> ast.Expr:
    """Any expression."""
    span = span_of(tree)
    c = tree.children
    match str(tree.data):
        case "integer":
            return _integer(c[0])
        case "real":
            return _real(c[0])
        case "infinity":
            return ast.Real(float("inf"), "inf", span=span)
        case "boolean":
            return ast.Boolean(str(c[0]) == "true", span=span)
        case "name":
            return name(c[0])
        case "load":
            return ast.Load(name(c[0]), tuple(expr(t) for t in c[1:]), span=span)
        case "call":
            return ast.Call(name(c[0]), tuple(expr(t) for t in c[1:]), span=span)
        case "unary":
            return ast.Unary(str(c[0]), expr(c[1]), span=span)
        case "binary":
            return ast.Binary(str(c[1]), expr(c[0]), expr(c[2]), span=span)
        case "comparison":
            return ast.Compare(tuple(expr(t) for t in c[::2]), tuple(str(t) for t in c[1::2]), span=span)
    raise AssertionError(f"rule without a case: {tree.data}")


def _integer(token: Item) -> ast.Integer:
    digits = token.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > MAX_INTEGER:
        raise SyntaxFault("E0107", "this integer does not fit in 64 bits", span_of(token))
    return ast.Integer(int(digits), span=span_of(token))


def _real(token: Item) -> ast.Real:
    value = float(token)
    if value == float("inf"):
        raise SyntaxFault(
            "E0107", "this number is too large for a float; write `inf` if infinity is meant", span_of(token)
        )
    return ast.Real(value, str(token), span=span_of(token))


def check_depth(tree: Tree[Token], inside: int = 0) -> None:
    """Refuses expressions that nest deeper than later stages recurse.  `inside`: the rules around `tree` in a file."""
    stack = [(tree, inside)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise SyntaxFault("E0106", f"this expression nests more than {MAX_DEPTH} deep", span_of(node))
        stack += [(c, depth + 1) for c in node.children if isinstance(c, Tree)]
