"""The one way to write a `.tile` file: `format_text`.

Statements take a line each, words and colons of neighbouring tensor lines are aligned, comments stay with their
statement, blank lines are kept but never doubled, and only needed parentheses are written.  Formatting is idempotent, and
parsing what was written gives the tree that was read.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.dsl import ast
from tilec.dsl.faults import Faults, Source
from tilec.dsl.parse import parse

WIDTH = 100  # a line longer than this is broken at its outermost `and` or `or`
WORD = 6  # columns of the leading word, or more where a block has longer ones

# Binding strength, loosest first; a comparison's operands bind tighter than itself.
_BINARY = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "**": 8}
_NOT, _COMPARE, _NEGATE = 3, 4, 7


def format_text(text: str, path: str = "<spec>") -> str:
    """`text` in the standard form.  Raises `Faults` if it does not parse."""
    source = Source(path, text)
    file, faults = parse(source)
    if faults:
        raise Faults(faults, source)
    return show(file)


def show(file: ast.File) -> str:
    """The text of a tree; empty for an empty file."""
    parts: list[str] = []
    alone = True  # whether the block before takes more than a line
    for i, block in enumerate(file.blocks):
        lines = list(_block(block))
        before, alone = alone, len(lines) > 1
        if i and (before or alone):
            parts.append("")
        parts += lines
    if file.closing:
        parts += ["", *file.closing] if parts else list(file.closing)
    return "".join(f"{line}\n" for line in parts)


def _block(block: ast.Kernel | ast.Schedule) -> Iterator[str]:
    yield from block.notes.before
    if isinstance(block, ast.Kernel):
        head = f"kernel {block.name.text}"
    else:
        head = f"schedule {block.kernel.text} on {block.target.text}"
    after = f"  {block.notes.after}" if block.notes.after else ""
    inner = [statement(s) for s in block.statements]
    one = f"{head} {{ {'  '.join(inner)} }}" if inner else f"{head} {{ }}"
    plain = not block.closing and all(s.notes == ast.Notes() for s in block.statements)
    if plain and block.compact and len(one) <= WIDTH:
        yield one + after
        return
    yield f"{head} {{"
    for line in [*_body(block.statements), *block.closing]:
        yield f"  {line}" if line else ""
    yield f"}}{after}"


def _body(statements: tuple[ast.Statement, ...]) -> Iterator[str]:
    """The lines of a block, without indentation."""
    pad = max((len(_phrase(s)[0]) for s in statements), default=0)
    pad = max(pad, WORD)
    for run in _runs(statements):
        tensors = [s for s in run if isinstance(s, ast.Tensor)]
        shown = [[line] for line in _aligned(tensors, pad)] if tensors else [_wrapped(s, pad) for s in run]
        for s, lines in zip(run, shown, strict=True):
            yield from s.notes.before
            yield from lines[:-1]
            yield lines[-1] + (f"  {s.notes.after}" if s.notes.after else "")


def _runs(statements: tuple[ast.Statement, ...]) -> list[list[ast.Statement]]:
    """Neighbours that are aligned with each other: tensor lines without a blank line between them; others stand alone."""
    runs: list[list[ast.Statement]] = []
    for s in statements:
        joins = isinstance(s, ast.Tensor) and runs and isinstance(runs[-1][-1], ast.Tensor) and "" not in s.notes.before
        if joins:
            runs[-1].append(s)
        else:
            runs.append([s])
    return runs


def _wrapped(s: ast.Statement, pad: int) -> list[str]:
    """The lines of a statement: one, or one for each term of a long mask."""
    word, rest = _phrase(s)
    line = f"{word.ljust(pad)} {rest}"
    op = s.value.op if isinstance(s, ast.Mask) and isinstance(s.value, ast.Binary) else ""
    if len(line) <= WIDTH - 2 or op not in ("and", "or"):
        return [line]
    terms: list[ast.Expr] = []
    first: ast.Expr = s.value  # type: ignore[attr-defined]
    while isinstance(first, ast.Binary) and first.op == op:
        terms.append(first.right)
        first = first.left
    strength = _BINARY[op]
    lines = [f"{word.ljust(pad)} {expr(first, strength)}"]
    return lines + [f"{' ' * pad} {op} {expr(t, strength + 1)}" for t in reversed(terms)]


def _aligned(run: list[ast.Tensor], pad: int) -> list[str]:
    """Neighbouring tensor lines: index columns aligned where name and rank have the same width, colons everywhere."""
    cells = [None if t.index is None else [expr(i) for i in t.index] for t in run]
    shape = [None if c is None else (len(t.name.text), len(c)) for t, c in zip(run, cells, strict=True)]
    heads: list[str] = []
    for t, c, own in zip(run, cells, shape, strict=True):
        text = f"{t.slot.text.ljust(pad)} {t.name.text}"
        if c is not None:
            peers = [p for p, other in zip(cells, shape, strict=True) if p is not None and other == own]
            widths = [max(len(p[i]) for p in peers) for i in range(len(c))]
            padded = [f"{x},".ljust(w + 1) for x, w in zip(c[:-1], widths[:-1], strict=True)]
            text += f"[{' '.join([*padded, c[-1]])}]"
        heads.append(text)
    column = max((len(h) for h, t in zip(heads, run, strict=True) if t.dtype), default=0)
    return [
        f"{h.ljust(column)} : {t.dtype.text}{_tails(t)}" if t.dtype else h + _tails(t)
        for h, t in zip(heads, run, strict=True)
    ]


def _tails(t: ast.Tensor) -> str:
    return "".join(f" {x.word}" if isinstance(x, ast.Fact) else f"  {_storage(x)}" for x in t.tails)


def _storage(x: ast.Scaled | ast.Paged) -> str:
    return f"{'scaled' if isinstance(x, ast.Scaled) else 'paged'} {expr(x.load)}"


def statement(s: ast.Statement) -> str:
    """One statement on one line."""
    return " ".join(_phrase(s))


def _phrase(s: ast.Statement) -> tuple[str, str]:
    match s:
        case ast.Index(axes):
            return "index", ", ".join(_axis(a) for a in axes)
        case ast.Tensor():
            word, _, rest = _aligned([s], 0)[0].partition(" ")
            return word, rest
        case ast.Scale(x):
            return "scale", expr(x)
        case ast.Score(n, x):
            return "score", f"{n.text} = {expr(x)}"
        case ast.Mask(x):
            return "mask", expr(x)
        case ast.Grad(names, order):
            return "grad", _names(names) + (f" {order.text}" if order else "")
        case ast.Assume(x):
            return "assume", expr(x)
        case ast.Dropout(x):
            return "dropout", expr(x)
        case ast.Tile(pins):
            return "tile", ", ".join(f"{p.name.text} = {p.value.value}" for p in pins)
        case ast.Tune(n, choices):
            return "tune", f"{n.text} in {{{', '.join(str(c.value) for c in choices)}}}"
        case ast.Warps(n, args):
            return "warps", n.text + ("" if args is None else f"({', '.join(_argument(a) for a in args)})")
        case ast.Stages(n) | ast.Cluster(n):
            return type(s).__name__.lower(), str(n.value)
        case ast.Overlap(w) | ast.Skip(w):
            return type(s).__name__.lower(), w.text
        case ast.Rescale(w, bound):
            return "rescale", w.text + ("" if bound is None else f" {expr(bound)}")
        case ast.Order(names):
            return "order", _names(names)
        case ast.Split(n, count):
            return "split", f"{n.text} = {'auto' if count is None else count.value}"
        case ast.Map(w, by):
            return "map", w.text + (f" by {by.text}" if by else "")
    raise AssertionError(f"statement without a case: {s!r}")


def _axis(a: ast.Axis) -> str:
    stored = f" {a.stored.kind} {a.stored.table.text}" if a.stored else ""
    return f"{a.name.text} : {expr(a.extent)}{stored}"


def _argument(a: ast.Argument) -> str:
    return f"{a.name.text} = {a.value.value}" if a.name else str(a.value.value)


def _names(names: tuple[ast.Name, ...]) -> str:
    return ", ".join(n.text for n in names)


def expr(e: ast.Expr, outer: int = 0) -> str:
    """An expression with the fewest parentheses, standing where only strength `outer` and up may stand bare."""
    match e:
        case ast.Name(text):
            return text
        case ast.Integer(v):
            return str(v)
        case ast.Real(v, text):
            return text or repr(v)
        case ast.Boolean(v):
            return "true" if v else "false"
        case ast.Call(f, args):
            return f"{f.text}({', '.join(expr(a) for a in args)})"
        case ast.Load(t, index):
            return f"{t.text}[{', '.join(expr(i) for i in index)}]"
        case ast.Unary(op, x):
            strength = _NOT if op == "not" else _NEGATE
            text = f"{'not ' if op == 'not' else op}{expr(x, strength)}"
        case ast.Binary("**", x, y):  # binds right, and its right side may be signed
            strength = _BINARY["**"]
            text = f"{expr(x, strength + 1)} ** {expr(y, _NEGATE)}"
        case ast.Binary(op, x, y):
            strength = _BINARY[op]
            text = f"{expr(x, strength)} {op} {expr(y, strength + 1)}"
        case ast.Compare(operands, ops):
            strength = _COMPARE
            sides = [expr(x, strength + 1) for x in operands]
            text = sides[0] + "".join(f" {op} {x}" for op, x in zip(ops, sides[1:], strict=True))
    return f"({text})" if strength < outer else text
