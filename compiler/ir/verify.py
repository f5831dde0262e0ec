"""Says whether a tile program is well formed.  Passes are tested by it: valid program in, valid program out.

    names        identifiers that are not reserved, one meaning each; scalars defined on every path to their use
    axes         a destination has every axis of its value; Mma axes fit; lanes agree in a statement; windows and stages inside
    kinds        conditions are bool, indices int; no float goes where an integer or a bool is held
    asynchrony   a Copy has one way to complete; queues are awaited by who fills them; barriers are used as their kind
    proofs       every `For.proof` is derived again (see `ir.proofs`)

What depends on values (bounds of indices, order of accesses, undefined reads) is for `ir.interp` to find.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir.axes import AxisError, buffer_lanes, scope_of
from tilec.ir.body import Body, Report
from tilec.ir.expr import Expr, Fetch, Read, free_vars, walk
from tilec.ir.nodes import Arrive, Await, Buffer, Copy, Load, Mma, Move, Program, Role, Send, Sync, Wait
from tilec.ir.nodes import walk as walk_statements
from tilec.ir.text import is_word


class IRError(Exception):
    """A program breaks rules of the IR; `messages` says which, each with the place."""

    def __init__(self, program: str, messages: list[str]) -> None:
        super().__init__("\n".join([f"{program} is not well formed:", *(f"  {m}" for m in messages)]))
        self.messages = messages


def verify(p: Program, *, proofs: bool = True) -> None:
    """IRError with every broken rule, in the order of the text; nothing if there is none.

    `proofs=False` leaves out the derivation of loop bounds, which takes longest."""
    report = Report()
    _declarations(p, report)
    if not report.messages:
        for role in p.roles:
            scope = scope_of(p, role)
            with report.within(f"role {role.name}"):
                Body(p, role, scope, report).check()
                _queues(role, report)
        _barriers(p, report)
    if proofs and not report.messages:
        from tilec.ir.proofs import check_proofs

        check_proofs(p, report)
    if report.messages:
        raise IRError(p.name, report.messages)


def _declarations(p: Program, report: Report) -> None:
    scalars = [("a tile constant", n) for n, _ in p.tile] + [("an extent", n) for n in p.extents]
    computed = [("a scalar", n) for n, _ in p.scalars]
    tensors, barriers = [("a tensor", t.name) for t in p.tensors], [("a barrier", b.name) for b in p.barriers]
    number = [("the CTA's number", "cta"), *([] if p.grid.rank is None else [("its rank", p.grid.rank)])]
    _names([*number, *scalars, *computed, *_named(p.buffers)], report)
    if p.grid.cluster < 1 or (p.grid.cluster > 1) != (p.grid.rank is not None):
        report(f"a cluster of {p.grid.cluster} needs {'a' if p.grid.rank is None else 'no'} name for the rank")
    _names(tensors, report)
    _names(barriers, report)
    _names([("a role", r.name) for r in p.roles], report)
    known = {n for _, n in scalars}
    for n, value in p.scalars:
        _closed(f"scalar {n}", (value,), known, report)
        known.add(n)
    for t in p.tensors:
        _closed(f"a dimension of {t.name}", t.dims, known, report)
        if t.mode == "counter" and (t.dims or t.dtype not in ("i32", "i64")):
            report(f"counter {t.name} must be one integer")
    _closed("the grid", (p.grid.tiles, p.grid.ctas), known, report)
    for b in p.barriers:
        if b.arrivals < 1 or b.stages < 1:
            report(f"barrier {b.name} needs at least one arrival and one stage")
        if b.tx and b.kind != "mbarrier":
            report(f"barrier {b.name} counts bytes, which only an mbarrier does")
    _buffers(p, p.buffers, "shared", report)
    if not p.roles:
        report("there is no role")
    for r in p.roles:
        with report.within(f"role {r.name}"):
            own = [] if r.var is None else [("its instance's number", r.var)]
            _names(
                [*own, *_named(r.buffers)],
                report,
                taken={*(n for _, n in number), *known, *(b.name for b in p.buffers)},
            )
            if r.count < 1:
                report("it has no instance")
            _buffers(p, r.buffers, "register", report)
    if any("\n" in note for note in p.notes):
        report("a note has more than one line")


def _named(buffers: tuple[Buffer, ...]) -> list[tuple[str, str]]:
    return [("a buffer", b.name) for b in buffers]


def _names(given: Iterable[tuple[str, str]], report: Report, taken: Iterable[str] = ()) -> None:
    seen = set(taken)
    for what, name in given:
        if not is_word(name):
            report(f"{name!r} cannot name {what}")
        elif name in seen:
            report(f"{name} names two things, one of them {what}")
        seen.add(name)


def _closed(what: str, exprs: Iterable[Expr], known: set[str], report: Report) -> None:
    """Expressions that may use extents and tile constants alone."""
    for e in exprs:
        unknown = sorted(free_vars(e) - known)
        if unknown or any(isinstance(x, Fetch | Read) for x in walk(e)):
            report(f"{what} is {e}, which uses more than extents and tile constants")


def _buffers(p: Program, buffers: tuple[Buffer, ...], space: str, report: Report) -> None:
    names = {b.name for b in buffers}
    kinds = {t.name: t.dtype for t in p.tensors}
    for b in buffers:
        if b.space != space:
            report(f"buffer {b.name} is declared {b.space} where {space} buffers stand")
        if b.stages < 1:
            report(f"buffer {b.name} has no stage")
        if len({a.name for a in b.axes}) < len(b.axes):
            report(f"buffer {b.name} has an axis twice")
        if b.alias is not None and (b.alias not in names or b.alias == b.name):
            report(f"buffer {b.name} reuses the memory of {b.alias}, which is no other {space} buffer here")
        try:
            buffer_lanes((b,), dict(p.tile))
        except AxisError as e:
            report(str(e))
        if b.name in kinds and (kinds[b.name] in ("i32", "i64", "bool")) != (b.dtype in ("i32", "i64", "bool")):
            report(f"{b.name} names a buffer and a tensor of another kind")


def _queues(role: Role, report: Report) -> None:
    statements = list(walk_statements(role.body))
    filled = {s.queue for s in statements if isinstance(s, Copy | Load | Mma | Move) and s.queue is not None}
    awaited = {s.queue for s in statements if isinstance(s, Await)}
    for queue in sorted(filled - awaited):
        report(f"queue {queue} is never awaited")
    for queue in sorted(awaited - filled):
        report(f"queue {queue} is awaited, but nothing is put in it")


def _barriers(p: Program, report: Report) -> None:
    statements = [s for r in p.roles for s in walk_statements(r.body)]
    waited = {s.bar.name for s in statements if isinstance(s, Wait)}
    signalled = {s.signal.name for s in statements if isinstance(s, Copy | Send) and s.signal is not None}
    arrived = {s.bar.name for s in statements if isinstance(s, Arrive | Sync)} | signalled
    for b in p.barriers:
        if b.kind == "mbarrier" and b.name in waited - arrived:
            report(f"barrier {b.name} is waited for, but nothing arrives on it")
        if b.tx and b.name not in signalled:
            report(f"barrier {b.name} counts bytes, but no copy or send signals it")
