"""Text of a tile program back to nodes: `parse_program(show_program(p)) == p` for every program.

Lines starting with `#` right below the `program` line are its notes; elsewhere `#` starts a comment.  The grammar is
`program.lark`; meaning is not checked here but in `ir.verify`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree, UnexpectedInput
from lark.indenter import DedentError, Indenter

from tilec.ir import nodes
from tilec.ir.expr import OPS, Bool, Expr, Fetch, Float, Int, Iota, Op, Read, Reduce, Var
from tilec.ir.nodes import Axis, Bar, Barrier, Buffer, Global, Grid, Layout, Program, Proof, Role, Slot, Stmt, Window


class ProgramSyntaxError(ValueError):
    """The text is no tile program; the message has the line and what could stand there."""


def parse_program(text: str) -> Program:
    """The program that `text` says.  ProgramSyntaxError if it says none."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("program ")), 0)
    end = start + 1
    while end < len(lines) and lines[end].startswith("#"):
        end += 1
    notes = tuple(line[1:].removeprefix(" ") for line in lines[start + 1 : end])
    rest = ["" if start < i < end else _without_comment(line) for i, line in enumerate(lines)]
    return _program(_tree("\n".join(rest) + "\n", "start"), notes)


def parse_expr(text: str) -> Expr:
    """The expression that `text` says; inverse of `expr.show`."""
    return _expr(_tree(text, "expr"))


def _without_comment(line: str) -> str:
    if "#" not in line:
        return line
    quoted = False
    for i, ch in enumerate(line):
        if ch == "#" and not quoted:
            return line[:i].rstrip()
        quoted ^= ch == '"' and (i == 0 or line[i - 1] != "\\")
    return line


class _Blocks(Indenter):
    """Blocks by indentation; inside brackets a line may be broken anywhere."""

    NL_type = "_NL"
    OPEN_PAREN_types = ["LPAR", "LSQB", "LBRACE"]  # noqa: RUF012
    CLOSE_PAREN_types = ["RPAR", "RSQB", "RBRACE"]  # noqa: RUF012
    INDENT_type = "_INDENT"
    DEDENT_type = "_DEDENT"
    tab_len = 8


@lru_cache
def _parser(start: str) -> Lark:
    grammar = Path(__file__).with_name("program.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", start=start, postlex=_Blocks(), maybe_placeholders=True)


def _tree(text: str, start: str) -> Tree[Token]:
    try:
        return _parser(start).parse(text)
    except UnexpectedInput as e:
        line = text.splitlines()[e.line - 1] if 0 < e.line <= len(text.splitlines()) else ""
        raise ProgramSyntaxError(f"line {e.line}, column {e.column}: cannot read {line.strip()!r} from here") from None
    except DedentError as e:
        raise ProgramSyntaxError(f"a line is indented to no open block: {e}") from None


# Expressions.


def _expr(t: Any) -> Expr:
    args = t.children
    match t.data:
        case "int":
            return Int(int(args[0]))
        case "float":
            return Float(float(args[0]))
        case "name":
            return _name(str(args[0]))
        case "read":
            return Read(str(args[0]), None if args[1] is None else _expr(args[1]))
        case "call":
            return _call(str(args[0]), _exprs(args[1]))
        case "fetch":
            return Fetch(str(args[0]), _exprs(args[1]))
        case "reduce":
            return _reduce(str(args[0]), _exprs(args[1]), _expr(args[2]))
        case "group":
            return _expr(args[0])
        case "neg":
            return _negative(args[0])
        case "not":
            return Op("not", (_expr(args[0]),))
        case "and" | "or":
            return Op(str(t.data), (_expr(args[0]), _expr(args[1])))
        case "power":
            return Op("**", (_expr(args[0]), _expr(args[1])))
        case "binary":
            return Op(str(args[1]), (_expr(args[0]), _expr(args[2])))
    raise TypeError(f"not an expression: {t.data}")


def _name(name: str) -> Expr:
    if name in ("true", "false"):
        return Bool(name == "true")
    return Float(float(name)) if name in ("inf", "nan") else Var(name)


def _negative(t: Any) -> Expr:
    """A minus before a literal belongs to it; `-(3)` is the negation of 3."""
    value = _expr(t)
    if t.data in ("int", "float", "name") and isinstance(value, Int | Float):
        return Int(-value.value) if isinstance(value, Int) else Float(-value.value)
    return Op("neg", (value,))


def _call(name: str, args: tuple[Expr, ...]) -> Expr:
    if name == "iota" and len(args) == 1 and isinstance(args[0], Var):
        return Iota(args[0].name)
    if name not in OPS or len(args) != OPS[name].arity:
        raise ProgramSyntaxError(f"no function {name} of {len(args)} arguments")
    return Op(name, args)


def _reduce(op: str, of: tuple[Expr, ...], x: Expr) -> Expr:
    match of if len(of) > 1 else (*of, Int(0)):
        case (Var(axis), Int(chains)) if op in ("max", "sum") and (chains > 0 or len(of) == 1):
            return Reduce("max" if op == "max" else "sum", axis, x, chains)
    raise ProgramSyntaxError(f"no reduction {op}: it is max[axis](x) or sum[axis](x), or with [axis, chains]")


def _exprs(t: Any) -> tuple[Expr, ...]:
    return tuple(_expr(c) for c in t.children if c is not None)


# Words and optional clauses.


def _word(t: Any) -> str:
    token: Any = t.children[0] if isinstance(t, Tree) else t
    return str(json.loads(token)) if token.type == "STRING" else str(token)


def _integer(t: Any) -> int:
    return int("".join(t.children))


def _clauses(parts: list[Any]) -> dict[str, Any]:
    """Optional clauses by name."""
    return {str(p.data): p for p in parts if isinstance(p, Tree)}


def _one(t: Any) -> Expr | None:
    return None if t is None else _expr(t.children[0])


def _number(t: Any) -> int | None:
    return None if t is None else int(t.children[0])


def _program(t: Any, notes: tuple[str, ...]) -> Program:
    parts: dict[str, list[Any]] = {}
    for c in t.children:
        parts.setdefault(str(c.data), []).append(c.children)
    ((name, target),) = parts["header"]
    ((coords, tiles, ctas, order, numbers, cluster, rank, early),) = parts["grid"]
    return Program(
        name=".".join(map(str, name.children)) if name.data == "dotted" else _word(name),
        target=_word(target),
        tile=tuple((str(c.children[0]), _integer(c.children[1])) for cs in parts.get("tile", ()) for c in cs),
        extents=tuple(str(n) for names in parts.get("extent", ()) for n in names),
        tensors=tuple(_global(c) for c in parts.get("tensor", ())),
        grid=Grid(
            _expr(tiles),
            _expr(ctas),
            _word(order),
            _coords(coords),
            1 if cluster is None else int(cluster),
            None if rank is None else str(rank),
            () if numbers is None else _params(numbers.children),
            early is not None,
        ),
        buffers=tuple(_buffer(c[0], "shared") for c in parts.get("shared", ())),
        barriers=tuple(_barrier(c) for c in parts.get("barrier", ())),
        roles=tuple(_role(c) for c in parts.get("role", ())),
        notes=notes,
        scalars=tuple((str(n), _expr(e)) for n, e in parts.get("scalar", ())),
    )


def _coords(t: Any) -> tuple[tuple[str, Expr], ...]:
    return tuple((str(c.children[0]), _expr(c.children[1])) for c in t.children if c is not None)


def _global(c: list[Any]) -> Global:
    mode: Any = str(c[1].children[0])
    dtype: Any = str(c[2])
    return Global(str(c[0]), mode, dtype, _exprs(c[3]))


def _buffer(t: Any, space: nodes.Space) -> Buffer:
    name, dtype, *rest = t.children
    clauses = _clauses(rest)
    axes = tuple(Axis(str(a.children[0]), _expr(a.children[1])) for a in rest if a is not None and a.data == "axis")
    layout, alias, typed = clauses.get("layout"), clauses.get("alias"), str(dtype)
    return Buffer(
        str(name),
        space,
        typed,  # type: ignore[arg-type]
        axes,
        stages=_number(clauses.get("stages")) or 1,
        layout=None if layout is None else _layout(layout.children),
        alias=None if alias is None else str(alias.children[0]),
    )


def _layout(c: list[Any]) -> Layout:
    return Layout(_word(c[0]), _params(c[1:]))


def _params(parts: list[Any]) -> tuple[tuple[str, int | str], ...]:
    pairs = (p.children for p in parts if p is not None)
    return tuple((_word(n), _integer(v) if v.data == "integer" else _word(v)) for n, v in pairs)


def _barrier(c: list[Any]) -> Barrier:
    clauses = _clauses(c[3:])
    kind: Any = str(c[1].children[0])
    return Barrier(str(c[0]), kind, int(c[2]), _number(clauses.get("stages")) or 1, "tx" in clauses)


def _role(c: list[Any]) -> Role:
    name, count, unit, *rest = c
    clauses = _clauses(rest)
    kind: Any = str(unit.children[0])
    var = clauses.get("as")
    return Role(
        str(name),
        kind,
        int(count),
        _block(clauses["block"]),
        var=None if var is None else str(var.children[0]),
        warps=_number(clauses.get("warps")),
        registers=_number(clauses.get("registers")),
        buffers=tuple(_buffer(r.children[0], "register") for r in rest if r is not None and r.data == "register"),
    )


# Statements.


def _block(t: Any) -> tuple[Stmt, ...]:
    return tuple(_BUILD[str(s.data)](s.children) for s in t.children)


def _suite(t: Any) -> tuple[Stmt, ...]:
    return _block(t.children[0])


def _slot(t: Any) -> Slot:
    clauses = _clauses(t.children[1:])
    windows = clauses.get("windows")
    return Slot(
        str(t.children[0]),
        _one(clauses.get("stage")),
        tuple(Window(str(a), _expr(b), _expr(n)) for a, b, n in (w.children for w in windows.children))
        if windows
        else (),
    )


def _bar(t: Any) -> Bar:
    name, stage = t.children
    return Bar(str(name)) if stage is None else Bar(str(name), _expr(stage))


def _access(t: Any) -> tuple[str, tuple[Expr, ...]]:
    return str(t.children[0]), _exprs(t.children[1])


def _compute(c: list[Any]) -> Stmt:
    after, of = (int(x) for x in c[3:5]) if len(c) > 3 else (0, 0)
    return nodes.Compute(_slot(c[0]), _expr(c[1]), _suite(c[5]) if len(c) > 5 else (), after, of, _one(c[2]))


def _load(c: list[Any]) -> Stmt:
    clauses = _clauses(c[2:])
    where, other = _one(clauses.get("where")), _one(clauses.get("other"))
    return nodes.Load(_slot(c[0]), *_access(c[1]), where, other or Int(0), "box" in clauses, _queue(clauses))


def _store(c: list[Any]) -> Stmt:
    over = c[1] if c[1] is not None and c[1].data == "over" else None
    value, *rest = c[2:] if over is not None else [x for x in c[1:] if x is not None]
    axes = () if over is None else tuple(str(a) for a in over.children)
    tensor, index = _access(c[0])
    return nodes.Store(tensor, index, _expr(value), axes, _one(_clauses(rest).get("where")))


def _mma(c: list[Any]) -> Stmt:
    dst, sign, a, b, *rest = c
    return nodes.Mma(_slot(dst), _slot(a), _slot(b), str(sign.children[0]) == "+=", _queue(_clauses(rest)))


def _move(c: list[Any]) -> Stmt:
    return nodes.Move(_slot(c[0]), _slot(c[1]), _queue(_clauses(c[2:])))


def _copy(c: list[Any]) -> Stmt:
    clauses = _clauses(c[2:])
    signal = clauses.get("signal")
    return nodes.Copy(
        _slot(c[0]),
        *_access(c[1]),
        _one(clauses.get("where")),
        signal and _bar(signal.children[0]),
        _queue(clauses),
        "multicast" in clauses,
    )


def _queue(clauses: dict[str, Any]) -> str | None:
    return _word(clauses["queue"].children[0]) if "queue" in clauses else None


def _order(parts: list[Any]) -> tuple[nodes.Interleave, ...]:
    out = []
    for part in parts:
        times, *counts = part.children
        pairs = tuple((_word(x.children[0]), int(x.children[1])) for x in counts)
        out.append(nodes.Interleave(int(times), pairs))
    return tuple(out)


def _arrive(c: list[Any]) -> Stmt:
    clauses = _clauses(c[1:])
    return nodes.Arrive(_bar(c[0]), _one(clauses.get("at")), "everywhere" in clauses)


def _for(c: list[Any]) -> Stmt:
    clauses = _clauses(c[3:])
    proof = clauses.get("proof")
    return nodes.For(
        str(c[0]),
        _expr(c[1]),
        _expr(c[2]),
        _block(clauses["block"]),
        None if proof is None else _proof(proof.children),
        _number(clauses.get("stages")),
        "down" in clauses,
    )


def _proof(c: list[Any]) -> Proof:
    segment, part, first, last, *rest, formula, because = c
    clauses = _clauses(rest)
    kind: Any = str(segment.children[0])
    rows = (_expr(first), _expr(last))
    q, k = (str(n) for n in clauses["over"].children) if "over" in clauses else ("q", "k")
    keys, size = _one(clauses.get("keys")), _one(clauses.get("by"))
    return Proof(_expr(formula), rows, kind, int(part), _word(because), keys, size, (q, k))


_BUILD: dict[str, Callable[[list[Any]], Stmt]] = {
    "let": lambda c: nodes.Let(str(c[0]), _expr(c[1])),
    "seek": lambda c: nodes.Seek(str(c[0]), _expr(c[1]), _expr(c[2]), _expr(c[3])),
    "compute": _compute,
    "load": _load,
    "store": _store,
    "mma": _mma,
    "move": _move,
    "copy": _copy,
    "await": lambda c: nodes.Await(_word(c[0]), int(c[1])),
    "wait": lambda c: nodes.Wait(_bar(c[0]), _expr(c[1])),
    "send": lambda c: nodes.Send(_slot(c[0]), _expr(c[1]), _bar(c[2])),
    "arrive": _arrive,
    "sync": lambda c: nodes.Sync(_bar(c[0])),
    "claim": lambda c: nodes.Claim(str(c[0]), str(c[1])),
    "priority": lambda c: nodes.Priority(int(c[0])),
    "fence": lambda c: nodes.Fence(_word(c[0])),
    "if": lambda c: nodes.If(_expr(c[0]), _suite(c[1]), () if c[2] is None else _suite(c[2])),
    "for": _for,
    "while": lambda c: nodes.While(_expr(c[0]), _suite(c[1])),
    "cluster": lambda c: nodes.Cluster(_word(c[0]), _suite(c[2]), () if c[1] is None else _order(c[1].children)),
}
