"""From a checked spec to the attention IR: `read_spec`, `read_text`, and binding of extents to constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Literal, cast

from tilec.dsl import ast
from tilec.dsl.check import Checked, check
from tilec.dsl.codes import fault
from tilec.dsl.faults import Fault, Faults, Source
from tilec.dsl.parse import parse
from tilec.dsl.scope import Scope
from tilec.dsl.spans import Span
from tilec.ir.attention import Attention, Dropout, Dtype, Gradient, Index, Slot, Storage, Tensor
from tilec.ir.expr import TRUE, Bool, Expr, Fetch, Float, Int, Op, Var, substitute, walk
from tilec.schedule import EMPTY, Schedule, merge, read_schedule


@dataclass(frozen=True)
class Spec:
    """A file: its kernels, its schedules as written by (kernel, target), and what was noticed about it."""

    kernels: tuple[Attention, ...]
    schedules: Mapping[tuple[str, str], Schedule]
    source: Source
    warnings: tuple[Fault, ...] = ()

    def kernel(self, name: str) -> Attention:
        """The kernel of that name; KeyError if there is none."""
        for k in self.kernels:
            if k.name == name:
                return k
        raise KeyError(name)

    def schedule(self, kernel: str, target: str) -> Schedule:
        """What the spec says for this target: `on any`, overridden line by line by the target's own block."""
        found = [self.schedules.get((kernel, t), EMPTY) for t in ("any", target)]
        return merge(*found)


def read_spec(path: str | Path) -> Spec:
    """Reads and checks a file.  Raises `Faults`: all mistakes at once, also if it cannot be read."""
    try:
        text = Path(path).read_text("utf-8-sig")  # editors may have put a byte-order mark
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else f"byte {e.start} is not UTF-8"
        raise Faults([fault("E0109", f"{path} cannot be read", note=why)]) from None
    return read_text(text, str(path))


def read_text(text: str, path: str = "<spec>") -> Spec:
    """Reads and checks the text of a spec.  Raises `Faults` with every mistake found."""
    source = Source(path, text)
    file, faults = parse(source)
    checked, more = check(file)
    if faults or more:
        raise Faults([*faults, *more], source)
    schedules = {(b.kernel.text, b.target.text): read_schedule(b) for b in file.schedules}
    return Spec(tuple(lower(c, source) for c in checked), schedules, source)


def lower(checked: Checked, source: Source) -> Attention:
    """One checked kernel as an Attention."""
    scope, roles = checked.scope, checked.roles
    tensors = [_tensor(t) for t in scope.tensors.values()]
    spans: dict[Expr, Span] = {}
    masks = [expr(s.value, spans) for s in scope.kernel.statements if isinstance(s, ast.Mask)]
    scores = [expr(s.value, spans) for s in scope.kernel.statements if isinstance(s, ast.Score)]
    scales = [expr(s.value, spans) for s in scope.kernel.statements if isinstance(s, ast.Scale)]
    assumes = [expr(s.value, spans) for s in scope.kernel.statements if isinstance(s, ast.Assume)]
    grads = [s for s in scope.kernel.statements if isinstance(s, ast.Grad)]
    rates = [s.rate for s in scope.kernel.statements if isinstance(s, ast.Dropout)]
    sink = scope.tensors[roles.sink] if roles.sink else None
    return Attention(
        name=scope.kernel.name.text,
        indices=tuple(_index(a) for a in scope.axes.values()),
        tensors=(*tensors, *_tables(scope, roles.batch)),
        pairs=roles.pairs,
        value=roles.value,
        output=roles.output,
        lse=roles.lse,
        q=roles.q,
        k=roles.k,
        contracted=roles.contracted,
        feature=roles.feature,
        scale=scales[0] if scales else Int(1),
        scores=tuple(scores),
        mask=masks[0] if masks else TRUE,
        sink=Fetch(sink.name.text, _exprs(sink.index)) if sink else None,
        gradient=_gradient(grads[0]) if grads else None,
        assumes=tuple(assumes),
        dropout=Dropout(float(cast("ast.Integer | ast.Real", rates[0]).value)) if rates else None,
        spans=spans,
        source=source.path,
    )


def _index(a: ast.Axis) -> Index:
    kind = cast(Literal["packed", "lengths"], a.stored.kind) if a.stored else "dense"
    storage = Storage(kind, a.stored.table.text if a.stored else None)
    return Index(a.name.text, expr(a.extent), storage)


def _tensor(t: ast.Tensor) -> Tensor:
    scaled = [x.load for x in t.tails if isinstance(x, ast.Scaled)]
    paged = [x.load for x in t.tails if isinstance(x, ast.Paged)]
    assert t.dtype is not None
    return Tensor(
        name=t.name.text,
        slot=cast(Slot, t.slot.text),
        index=_exprs(t.index),
        dtype=cast(Dtype, t.dtype.text),
        scaled=_fetch(scaled[0]) if scaled else None,
        paged=_fetch(paged[0]) if paged else None,
        facts=frozenset(x.word for x in t.tails if isinstance(x, ast.Fact)),
        span=t.span,
    )


def _tables(scope: Scope, batch: str | None) -> list[Tensor]:
    """Storage tables in order of first mention.  Offsets and lengths are indexed by the batch index."""
    out = []
    for table in sorted(scope.tables.values(), key=lambda t: t.span.start):
        index = _exprs(table.index) if table.index is not None else (Var(batch),) if batch else ()
        out.append(Tensor(table.name, "table", index, "f32" if table.use == "scaled" else "i32", span=table.span))
    return out


def _gradient(g: ast.Grad) -> Gradient:
    return Gradient(tuple(n.text for n in g.names), g.order is not None and g.order.text == "atomic")


def _fetch(load: ast.Load) -> Fetch:
    return Fetch(load.tensor.text, _exprs(load.index))


def _exprs(xs: tuple[ast.Expr, ...] | None) -> tuple[Expr, ...]:
    return tuple(expr(x) for x in xs or ())


def expr(e: ast.Expr, spans: dict[Expr, Span] | None = None) -> Expr:
    """An expression of the IR.  `spans` learns where each sub-expression was first written."""
    made = _expr(e, spans)
    if spans is not None:
        spans.setdefault(made, e.span)
    return made


def _expr(e: ast.Expr, spans: dict[Expr, Span] | None) -> Expr:
    match e:
        case ast.Name(text):
            return Var(text)
        case ast.Integer(v):
            return Int(v)
        case ast.Real(v):
            return Float(v)
        case ast.Boolean(v):
            return Bool(v)
        case ast.Unary("-", ast.Integer(v)):
            return Int(-v)
        case ast.Unary("-", ast.Real(v)):
            return Float(-v)
        case ast.Unary(op, x):
            return Op("neg" if op == "-" else op, (expr(x, spans),))
        case ast.Binary(op, x, y):
            return Op(op, (expr(x, spans), expr(y, spans)))
        case ast.Compare(operands, ops):
            sides = [expr(x, spans) for x in operands]
            links = [Op(op, (a, b)) for op, a, b in zip(ops, sides, sides[1:], strict=False)]
            return reduce(lambda a, b: Op("and", (a, b)), links)
        case ast.Call(f, args):
            return Op(f.text, tuple(expr(a, spans) for a in args))
        case ast.Load(t, index):
            return Fetch(t.text, tuple(expr(i, spans) for i in index))


def unbound_constants(attn: Attention) -> tuple[str, ...]:
    """Symbols that a tile needs as constants: extents of contracted and feature indices, divisors in tensor brackets (group
    and page sizes), in that order."""
    seen: dict[str, None] = {}
    for name in (*attn.contracted, attn.feature):
        extent = attn.index(name).extent
        if isinstance(extent, Var):
            seen.setdefault(extent.name)
    for e in (e for t in attn.tensors for e in _brackets(t)):
        for x in walk(e):
            match x:
                case Op("//" | "%", (_, Var(name))):
                    seen.setdefault(name)
    return tuple(seen)


def _brackets(t: Tensor) -> tuple[Expr, ...]:
    return (*t.index, *(t.scaled.index if t.scaled else ()), *(t.paged.index if t.paged else ()))


def bind(attn: Attention, values: Mapping[str, int], source: Source | None = None) -> Attention:
    """The kernel with symbols replaced by constants, everywhere.

    Raises `Faults` for a name that is no symbol of the kernel, an extent that it cannot
    have, and groups that do not divide; `source` lets their messages quote the spec.
    """
    constants = unbound_constants(attn)
    symbols = {*attn.extents, *constants}
    lengths = {str(i.extent): i.name for i in attn.indices if i.storage.kind != "dense"}
    faults = [
        fault(
            "E0201",
            f"`{attn.name}` has no symbol `{n}`",
            note=f"its symbols are {', '.join(sorted(symbols)) or 'none'}",
        )
        for n in values
        if n not in symbols
    ]
    faults += [
        fault("E0302", f"the extent {n} cannot be {v!r}")
        for n, v in values.items()
        if not isinstance(v, int) or v < (1 if n in constants else 0)
    ]
    faults += [
        fault("E0302", f"{n} is each sequence's own length, which `{lengths[n]}`'s table says")
        for n in values
        if n in lengths
    ]
    if faults:
        raise Faults(faults, source)
    env: dict[Expr, Expr] = {Var(n): Int(v) for n, v in values.items()}

    def put(e: Expr) -> Expr:
        return substitute(e, env)

    def fetch(f: Fetch | None) -> Fetch | None:
        return None if f is None else Fetch(f.tensor, tuple(put(i) for i in f.index))

    bound = replace(
        attn,
        indices=tuple(replace(i, extent=put(i.extent)) for i in attn.indices),
        tensors=tuple(
            replace(t, index=tuple(put(i) for i in t.index), scaled=fetch(t.scaled), paged=fetch(t.paged))
            for t in attn.tensors
        ),
        scale=put(attn.scale),
        scores=tuple(put(s) for s in attn.scores),
        mask=put(attn.mask),
        sink=fetch(attn.sink),
        assumes=tuple(put(a) for a in attn.assumes),
        spans={put(e): s for e, s in attn.spans.items()},
    )
    faults = [f for t in bound.tensors for e in _brackets(t) if (f := _groups_divide(bound, t, e))]
    if faults:
        raise Faults(faults, source)
    return bound


def _groups_divide(attn: Attention, t: Tensor, e: Expr) -> Fault | None:
    match e:
        case Op("//", (Var(name), Int(group))) if name not in (attn.q, attn.k):
            extent = attn.index(name).extent
            if isinstance(extent, Int) and extent.value % group:
                return fault(
                    "E0301", f"`{t.name}`: {name} has extent {extent.value}, which {group} does not divide", t.span
                )
    return None
