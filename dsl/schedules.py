"""Checks of schedule blocks that hold for every target; what one target can honour is checked against its table later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilec.dsl import ast, words
from tilec.dsl.codes import fault
from tilec.dsl.faults import Fault
from tilec.dsl.scope import Scope
from tilec.dsl.spans import Span

TILE_UNIT, MAX_TILE = 16, 1024  # every matrix instruction works on multiples of 16 rows and columns, or fewer
MAX_STAGES, MAX_CLUSTER = 16, 16


@dataclass
class _Checker:
    """One block.  `scope` is that of its kernel, None if that is unknown or did not parse."""

    block: ast.Schedule
    scope: Scope | None
    faults: list[Fault] = field(default_factory=list)
    sized: dict[str, tuple[str, Span]] = field(default_factory=dict)  # index → `tile` or `tune`, and where

    def report(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        hint: str | None = None,
        note: str | None = None,
        related: tuple[tuple[Span, str], ...] = (),
    ) -> None:
        self.faults.append(fault(code, message, span, hint=hint, note=note, related=related))


def check_schedules(file: ast.File, scopes: Mapping[str, Scope]) -> list[Fault]:
    """What is wrong with the schedules of a file."""
    out: list[Fault] = []
    seen: dict[tuple[str, str], Span] = {}
    names = {k.name.text for k in file.kernels}
    for block in file.schedules:
        kernel, target = block.kernel.text, block.target.text
        c = _Checker(block, scopes.get(kernel))
        if kernel not in names and not any(b.broken for b in file.blocks):
            hint = words.did_you_mean(kernel, names)
            c.report("E0207", f"there is no kernel `{kernel}` to schedule", block.kernel.span, hint=hint)
        if target not in words.TARGETS:
            near = words.did_you_mean(target, words.TARGETS)
            hint = near or f"targets are {words.listed(words.TARGETS, 'and')}"
            c.report("E0208", f"there is no target `{target}`", block.target.span, hint=hint)
        if (kernel, target) in seen:
            c.report(
                "E0809",
                f"`{kernel}` has two schedules for {target}",
                block.target.span,
                related=((seen[kernel, target], "the first one"),),
            )
        seen.setdefault((kernel, target), block.target.span)
        _lines(c)
        out += c.faults
    return out


def _lines(c: _Checker) -> None:
    seen: dict[str, Span] = {}
    for s in c.block.statements:
        word = type(s).__name__.lower()
        if word not in ("tile", "tune"):
            if word in seen:
                c.report("E0802", f"`{word}` is given twice", s.span, related=((seen[word], "the first one"),))
            seen.setdefault(word, s.span)
        _line(c, s)


def _line(c: _Checker, s: ast.ScheduleStatement) -> None:
    match s:
        case ast.Tile(pins):
            for p in pins:
                _sized(c, "tile", p.name, p.span)
                _size(c, p.value)
        case ast.Tune(n, choices):
            _sized(c, "tune", n, s.span)
            for i, v in enumerate(choices):
                _size(c, v)
                if v in choices[:i]:
                    c.report("E0414", f"{v.value} is listed twice", v.span)
        case ast.Warps():
            _strategy(c, s)
        case ast.Stages(n):
            _count(c, n, "stages", MAX_STAGES)
        case ast.Cluster(n):
            _count(c, n, "blocks of a cluster", MAX_CLUSTER)
        case ast.Overlap(w):
            _word(c, "overlap", w, words.SWITCH)
        case ast.Skip(w):
            _word(c, "skip", w, words.SKIPS)
        case ast.Rescale(w, bound):
            _rescale(c, w, bound)
        case ast.Order(names):
            _order(c, names)
        case ast.Split(n, count):
            _loop_index(c, n, "split")
            if count is not None:
                _count(c, count, "parts", None)
        case ast.Map(w, by):
            _map(c, w, by)


def _known(c: _Checker, n: ast.Name) -> bool:
    """Whether the kernel has this index; true too when the kernel itself is unknown or broken."""
    scope = c.scope
    if scope is None or n.text in scope.axes or n.text in scope.poisoned or scope.kernel.broken:
        return True
    hint = words.did_you_mean(n.text, scope.axes)
    c.report("E0209", f"`{scope.kernel.name.text}` has no index `{n.text}`", n.span, hint=hint)
    return False


def _loop_index(c: _Checker, n: ast.Name, word: str) -> bool:
    """Whether `n` can be the query rows or the keys, the two indices whose loops are cut into tiles."""
    if not _known(c, n):
        return False
    if c.scope is None or n.text not in c.scope.axes or not c.scope.looped or n.text in c.scope.looped:
        return True
    rows = words.listed(c.scope.looped, "and")
    c.report("E0805", f"`{word}` is about {rows}, and `{n.text}` is neither", n.span)
    return False


def _sized(c: _Checker, word: str, n: ast.Name, span: Span) -> None:
    if not _loop_index(c, n, word):
        return
    before = c.sized.get(n.text)
    if before is not None:
        first = ((before[1], "the first line"),)
        if before[0] != word:
            c.report(
                "E0806", f"`{n.text}` is both pinned and tuned", span, hint="keep one of the two lines", related=first
            )
        else:
            c.report("E0802", f"`{word}` of `{n.text}` is given twice", span, related=first)
    c.sized.setdefault(n.text, (word, span))


def _size(c: _Checker, v: ast.Integer) -> None:
    if v.value % TILE_UNIT or not 0 < v.value <= MAX_TILE:
        near = min(max(TILE_UNIT, round(v.value / TILE_UNIT) * TILE_UNIT), MAX_TILE)
        c.report(
            "E0804",
            f"a tile cannot have size {v.value}",
            v.span,
            note=f"sizes are multiples of {TILE_UNIT} up to {MAX_TILE}",
            hint=f"{near} is the nearest",
        )


def _count(c: _Checker, n: ast.Integer, what: str, most: int | None) -> None:
    if n.value < 1 or (most is not None and n.value > most):
        limit = "at least 1" if most is None else f"from 1 to {most}"
        c.report("E0808", f"the number of {what} is {limit}, not {n.value}", n.span)


def _word(c: _Checker, line: str, w: ast.Name, choices: tuple[str, ...]) -> bool:
    if w.text in choices:
        return True
    hint = words.did_you_mean(w.text, choices) or f"it can be {words.listed(choices)}"
    c.report("E0801", f"`{line}` has no word `{w.text}`", w.span, hint=hint)
    return False


def _strategy(c: _Checker, s: ast.Warps) -> None:
    if not _word(c, "warps", s.strategy, tuple(words.STRATEGIES)):
        return
    name, legal = s.strategy.text, words.STRATEGIES[s.strategy.text]
    usual = f"write `{name}({'4' if name == 'split_q' else f'{legal[0]} = 2'})`"
    if s.args is None or len(s.args) != 1:
        c.report("E0807", f"`{name}` takes one argument", s.span, hint=usual)
        return
    (arg,) = s.args
    if (arg.name.text if arg.name else "warp") not in legal:
        given = f"`{arg.name.text}`" if arg.name else "a number alone"
        c.report("E0807", f"`{name}` takes {words.listed(legal)}, not {given}", arg.span, hint=usual)
    elif not 1 <= arg.value.value <= 32:
        c.report("E0808", f"the number of warps or groups is from 1 to 32, not {arg.value.value}", arg.value.span)


def _rescale(c: _Checker, w: ast.Name, bound: ast.Integer | ast.Real | None) -> None:
    if not _word(c, "rescale", w, words.RESCALES):
        return
    if w.text == "conditional":
        if bound is None or bound.value <= 0:
            span = w.span if bound is None else bound.span
            c.report(
                "E0807",
                "`conditional` takes how far the maximum may rise, in powers of two",
                span,
                hint="write `rescale conditional 8`",
            )
    elif bound is not None:
        c.report("E0807", f"`{w.text}` takes no number", bound.span)


def _order(c: _Checker, names: tuple[ast.Name, ...]) -> None:
    for i, n in enumerate(names):
        if n in names[:i]:
            c.report("E0414", f"`{n.text}` is listed twice", n.span)
        elif n.text != words.RESIDUE:
            _known(c, n)


def _map(c: _Checker, w: ast.Name, by: ast.Name | None) -> None:
    if not _word(c, "map", w, words.MAPS):
        return
    if w.text == "xcd" and by is None:
        c.report("E0807", "`xcd` takes the index that stays on one die", w.span, hint="write `map xcd by h`")
    elif w.text != "xcd" and by is not None:
        c.report("E0807", f"`{w.text}` takes no index", by.span)
    elif by is not None and _known(c, by) and c.scope is not None and by.text in c.scope.looped:
        c.report("E0805", f"`map` is about heads or batch entries, and `{by.text}` is neither", by.span)
