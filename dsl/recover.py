"""Syntax errors: a broken file is cut at the words that begin statements, and each piece is parsed alone.

The cut needs no sound syntax: it scans tokens, counts brackets, and starts a new piece at a statement word, or at a name
on a new line after a token that can end a statement (a misspelt word).  Each piece that does not parse gives one
fault and is left out of the tree; its block is marked `broken`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lark import TextSlice, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from tilec.dsl import ast, tree, words
from tilec.dsl.codes import fault
from tilec.dsl.expected import expected, spelled
from tilec.dsl.faults import Fault, Source, SyntaxFault
from tilec.dsl.grammar import parser
from tilec.dsl.spans import locate

_TOKEN = re.compile(
    r"(?P<skip>[ \t\r\n]+|#[^\n]*)|(?P<word>[A-Za-z_]\w*)|(?P<number>[0-9][\w.]*)|(?P<other>.)", re.ASCII
)
_OPEN_ENDED = frozenset(
    ["and", "or", "not", "on", "in", "by", "scaled", "paged", "packed", "lengths"]
)  # something must follow these
_CONTINUING = frozenset((*_OPEN_ENDED, *words.FACTS, "deterministic", "atomic")) - {"not"}  # never begin a statement
_LEADS = {"kernel": frozenset(words.KERNEL_WORDS), "schedule": frozenset(words.SCHEDULE_WORDS)}


@dataclass(frozen=True)
class _Lexeme:
    kind: str
    text: str
    start: int
    end: int
    fresh: bool  # first on its line

    def ends_phrase(self) -> bool:
        """Whether a statement can end here."""
        return self.text in (")", "]", "}") or (self.kind in ("word", "number") and self.text not in _OPEN_ENDED)


@dataclass
class _Region:
    """One block as far as brackets show it: header words, and where its statements start and end."""

    kind: str
    start: int
    header: list[_Lexeme]
    pieces: list[list[_Lexeme]] = field(default_factory=list)
    opened: bool = False
    end: int | None = None  # past the closing brace


def recover(source: Source) -> tuple[ast.File, list[Fault]]:
    """What can be read of a file that does not parse, and at least one fault, in source order."""
    faults: list[Fault] = []
    blocks: list[ast.Kernel | ast.Schedule] = []
    for part in _regions(source.text):
        if isinstance(part, _Lexeme):
            hint = words.did_you_mean(part.text, ("kernel", "schedule"))
            span = locate(source.text, part.start, part.end)
            faults.append(fault("E0108", f"{_shown(part.text)} stands outside of every block", span, hint=hint))
        else:
            block = _block(part, source.text, faults)
            if block is not None:
                blocks.append(block)
    assert faults, "a file whose every statement parses needs no recovery"
    return ast.File(tuple(blocks)), faults


def _lexemes(text: str) -> Iterator[_Lexeme]:
    fresh = True
    for m in _TOKEN.finditer(text):
        if m.lastgroup == "skip":
            fresh = fresh or "\n" in m.group()
        else:
            yield _Lexeme(str(m.lastgroup), m.group(), m.start(), m.end(), fresh)
            fresh = False


def _regions(text: str) -> Iterator[_Region | _Lexeme]:
    """Blocks, and the first token of each run of text outside of blocks."""
    region: _Region | None = None
    depth = 0
    last: _Lexeme | None = None
    stray = False
    for x in _lexemes(text):
        if x.text in _LEADS and (region is None or not region.opened or (x.fresh and depth <= 1)):
            if region is not None:
                yield region
            region, depth, stray = _Region(x.text, x.start, []), 0, False
        elif region is None:
            if not stray:
                yield x
            stray = True
        elif not region.opened:
            if x.text == "{":
                region.opened, depth, last = True, 1, None
            else:
                region.header.append(x)
        elif x.text == "}" and depth == 1:
            region.end = x.end
            yield region
            region = None
        else:
            starts = x.text in _LEADS[region.kind] or (
                x.kind == "word"
                and x.text not in _CONTINUING
                and (depth == 1 and x.fresh and (last is None or last.ends_phrase()))
            )
            if starts or not region.pieces:
                region.pieces.append([])
                depth = 1
            region.pieces[-1].append(x)
            depth += (x.text in "([{") - (x.text in ")]}" and depth > 1)
            last = x
    if region is not None:
        yield region


def _block(region: _Region, text: str, faults: list[Fault]) -> ast.Kernel | ast.Schedule | None:
    before = len(faults)
    names = _header(region, text, faults)
    statements: list[Any] = []
    for piece in region.pieces:
        statements += _piece(region.kind, piece, text, faults)
    if region.opened and region.end is None:
        span = locate(text, region.start, region.start + len(region.kind))
        faults.append(fault("E0103", f"this {region.kind} is not closed", span, hint="add `}` after its last line"))
    if names is None:
        return None
    last = region.pieces[-1][-1].end if region.pieces else region.start
    span = locate(text, region.start, region.end or last)
    broken = len(faults) > before
    if region.kind == "kernel":
        return ast.Kernel(names[0], tuple(statements), span=span, broken=broken)
    return ast.Schedule(names[0], names[1], tuple(statements), span=span, broken=broken)


def _header(region: _Region, text: str, faults: list[Fault]) -> list[ast.Name] | None:
    """The names of a header, or None with what is wrong in it reported."""
    wanted = ["a name"] if region.kind == "kernel" else ["a kernel's name", "`on`", "a target"]
    names: list[ast.Name] = []
    for want, x in zip(wanted, region.header, strict=False):
        if want == "`on`" and x.text == "on":
            continue
        if want == "`on`" or x.kind != "word":
            faults.append(_unexpected(x, want, text))
            return None
        names.append(ast.Name(x.text, span=locate(text, x.start, x.end)))
    extra = region.header[len(wanted) :]
    if extra:
        faults.append(_unexpected(extra[0], "`{`", text))
        return None
    missing = [*wanted, "`{`"][len(region.header)]
    if len(region.header) < len(wanted) or not region.opened:
        end = region.header[-1].end if region.header else region.start + len(region.kind)
        faults.append(fault("E0105", f"this {region.kind} needs {missing}", locate(text, end, end)))
        return None
    return names


def _unexpected(x: _Lexeme, wanted: str, text: str) -> Fault:
    return fault("E0104", f"did not expect `{x.text}` here", locate(text, x.start, x.end), note=f"expected {wanted}")


def _piece(kind: str, piece: list[_Lexeme], text: str, faults: list[Fault]) -> list[Any]:
    """The statement of one piece, or nothing and one fault."""
    first, end = piece[0], piece[-1].end
    if first.text not in _LEADS[kind]:
        faults.append(_no_statement(first, kind, text))
        return []
    try:
        parsed = parser().parse(TextSlice(text, first.start, end), start=f"{kind}_statement")
        tree.check_depth(parsed, inside=1)
        return [tree.statement(t) for t in parsed.children if isinstance(t, Tree)]
    except SyntaxFault as e:
        faults.append(e)
    except UnexpectedCharacters as e:
        at = first.start if e.pos_in_stream is None else e.pos_in_stream
        faults.append(_stray(text, at))
    except UnexpectedToken as e:
        faults.append(_token(e, kind, end, text))
    return []


# How this language writes what other languages, and text editors, write with the signs on the right.
_OURS = {
    "and": "&∧",
    "or": "|∨",
    "not": "!¬",
    "**": "^",
    "<=": "≤",
    ">=": "≥",
    "!=": "≠",
    "*": "×·",
    "-": "−",
    "inf": "∞",
}
_FOREIGN = {sign: ours for ours, signs in _OURS.items() for sign in signs}


def _shown(word: str) -> str:
    """A word, or the number of a character that cannot be seen."""
    return f"`{word}`" if word.isprintable() and not word.isspace() else f"the character U+{ord(word[0]):04X}"


def _stray(text: str, at: int) -> Fault:
    """A character that no token begins with."""
    ch = text[at]
    hint = "statements need no terminator" if ch == ";" else f"write `{_FOREIGN[ch]}`" if ch in _FOREIGN else None
    return fault("E0101", f"{_shown(ch)} begins nothing in this language", locate(text, at, at + 1), hint=hint)


def _no_statement(x: _Lexeme, kind: str, text: str) -> Fault:
    span = locate(text, x.start, x.end)
    hint = words.did_you_mean(x.text, _LEADS[kind])
    other = "schedule" if kind == "kernel" else "kernel"
    if x.text in _LEADS[other]:
        hint = f"`{x.text}` belongs in a {other} block"
    return fault("E0102", f"{_shown(x.text)} does not start a statement", span, hint=hint)


def _token(e: UnexpectedToken, kind: str, end: int, text: str) -> Fault:
    accepts = e.accepts or e.expected
    token: Token = e.token
    if token.type == "$END":
        return fault("E0105", "this statement ends too early", locate(text, end - 1, end), note=expected(accepts))
    start = end if token.start_pos is None else token.start_pos
    x = _Lexeme("word", str(token), start, start + len(token), False)
    if "$END" in accepts and words.nearest(x.text, _LEADS[kind]):
        return _no_statement(x, kind, text)
    hint = words.did_you_mean(x.text, [w for t in accepts for w in spelled(t)])
    if x.text == "=" and "COMPARE" in accepts:
        hint = "write `==` to compare"
    return fault(
        "E0104", f"did not expect `{x.text}` here", locate(text, x.start, x.end), note=expected(accepts), hint=hint
    )
