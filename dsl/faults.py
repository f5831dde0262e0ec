"""Typed errors.  Each has a stable code, one sentence, a place in the spec, and at most one note and one suggestion.

Groups (one class each) follow the first two digits of the code:
E01 syntax, E02 names, E03 shapes and dtypes, E04 not an attention, E05 masks, E06 gradients, E07 contracts,
E08 schedules, E09 targets and toolchains, E10 calls; W05, W08 warnings.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.dsl.spans import TAB, Span, width

_LONG, _LEAD = 160, 60  # characters shown of a line, and before a mark in a longer one


@dataclass(frozen=True)
class Source:
    """A spec's path (for messages) and its text."""

    path: str
    text: str


class Fault(Exception):
    """A mistake of the user.  `code` is stable; `message` is one sentence in terms of the spec.

    `span` is where the caret goes; `related` are further places with a remark each; `note` says the cause,
    `hint` the nearest thing that would work.
    """

    group = "E00"

    def __init__(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        *,
        note: str | None = None,
        hint: str | None = None,
        related: tuple[tuple[Span, str], ...] = (),
        source: Source | None = None,
    ) -> None:
        if not code.startswith(self.group):
            raise ValueError(f"{type(self).__name__} cannot carry {code}")
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.span = span
        self.note = note
        self.hint = hint
        self.related = related
        self.source = source

    @property
    def severity(self) -> str:
        return "warning" if self.code.startswith("W") else "error"

    def __str__(self) -> str:
        return render(self)


class SyntaxFault(Fault):
    group = "E01"


class NameFault(Fault):
    group = "E02"


class ShapeFault(Fault):
    group = "E03"


class DtypeFault(Fault):
    group = "E03"


class FormFault(Fault):
    group = "E04"


class MaskFault(Fault):
    group = "E05"


class GradFault(Fault):
    group = "E06"


class ContractFault(Fault):
    group = "E07"


class ScheduleFault(Fault):
    group = "E08"


class TargetFault(Fault):
    group = "E09"


class CallFault(Fault):
    """A call whose tensors do not fit the spec: names the tensor, the spec line, what was expected and what came."""

    group = "E10"


class Warn(Fault):
    """Not raised: collected and shown."""

    group = "W"


class Faults(Exception):
    """Several faults of one file, in source order; `source` is given to those that lack one."""

    def __init__(self, faults: list[Fault], source: Source | None = None) -> None:
        super().__init__(f"{len(faults)} errors")
        self.faults = faults if source is None else sorted(faults, key=lambda f: f.span.start if f.span else 0)
        for f in faults:
            f.source = f.source or source

    def __str__(self) -> str:
        return "\n\n".join(render(f) for f in self.faults)


def render(fault: Fault) -> str:
    """The message as text: code, sentence, source lines with carets, note and hint."""
    out = [f"{fault.severity}[{fault.code}]: {fault.message}"]
    path = fault.source.path if fault.source else "<spec>"
    if fault.span is not None:
        out.append(f" --> {path}:{fault.span.line}:{fault.span.column}")
    if fault.span is not None and fault.source is not None:
        marks = [(fault.span, "^", "")] + [(s, "-", remark) for s, remark in fault.related]
        shown = 0
        for span, mark, remark in sorted(marks, key=lambda m: (m[0].start, m[1])):
            quoted = _quote(fault.source.text, span, mark, remark)
            out += quoted[1:] if span.line == shown else quoted
            shown = span.line
    out += [f"    = {x}" for x in (fault.note, fault.hint) if x]
    return "\n".join(out)


def _quote(text: str, span: Span, mark: str, remark: str) -> list[str]:
    """The span's first line, or the part of a long one where the marks are, and the marks below it."""
    lines = text.split("\n")
    line = lines[span.line - 1].rstrip("\r") if span.line <= len(lines) else ""
    cut = max(0, span.column - 1 - _LEAD) if len(line) > _LONG else 0
    start, end = span.column - 1, span.column - 1 + max(1, span.end - span.start)
    if cut:
        line, start, end = f"…{line[cut:]}", start - cut + 1, end - cut + 1
    line = line if len(line) <= _LONG else f"{line[: _LONG - 1]}…"
    pad = width(line[:start])
    carets = mark * max(1, width(line[:end]) - pad)
    tail = f" {remark}" if remark else ""
    return [f"{span.line:3} | {_printable(line)}".rstrip(), f"    | {' ' * pad}{carets}{tail}"]


def _printable(line: str) -> str:
    """`line` as wide as `width` says: tabs expanded, control characters made visible."""
    out = ""
    for ch in line:
        out += " " * (TAB - width(out) % TAB) if ch == "\t" else ch if ch.isprintable() or ord(ch) > 127 else "\ufffd"
    return out
