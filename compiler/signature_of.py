"""The runtime's view of a kernel: what a call must bring, derived from the spec once so that calls need no compiler."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.backends.runtime.signature import Argument, Binding, Condition, Place, Sequences, Signature
from tilec.dsl.faults import CallFault, Source
from tilec.dsl.spans import Span
from tilec.frontend import unbound_constants
from tilec.ir.attention import Attention, Tensor
from tilec.ir.build import cdiv, compare
from tilec.ir.expr import Expr, Fetch, Int, Op, Var, free_vars, show, walk
from tilec.ir.storage import memory_dims, rows_symbol


def signature_of(attn: Attention, source: Source) -> Signature:
    """The Signature of one kernel.

    Every extent shows in some argument: queries have each index of the output's rows, and divisors stand in brackets.
    Raises CallFault E1024 for a page size that is no number."""
    for t in attn.tensors:
        for size in (e for e in (t.paged.index[-1:] if t.paged else ()) if free_vars(e) - {attn.k}):
            symbol = ", ".join(sorted(free_vars(size) - {attn.k}))
            hint = f"give it when loading: tilec.load(…, {symbol}=64)"
            raise CallFault(
                "E1024", f"the page size {symbol} of `{t.name}` is not known", t.span, hint=hint, source=source
            )
    arguments = tuple(_argument(attn, t, source) for t in attn.inputs)
    outputs = tuple(_argument(attn, attn.tensor(n), source) for n in (attn.output, attn.lse) if n is not None)
    bindings = _bindings(attn)
    sequences = tuple(_sequences(attn, name) for name in dict.fromkeys((attn.q, attn.k)))
    capacities = _capacities(attn, frozenset(b.symbol for b in bindings))
    return Signature(
        kernel=attn.name,
        path=source.path,
        arguments=arguments,
        outputs=outputs,
        bindings=bindings,
        capacities=capacities,
        constants=unbound_constants(attn),
        conditions=_conditions(attn, source),
        sequences=sequences,
        keys=show(_capacity(attn, attn.k)),
        gradients=attn.gradient.names if attn.gradient else (),
        dropout=attn.rng,
    )


def place_of(span: Span | None, source: Source) -> Place | None:
    """The first line of a span with its text, so that a message can quote it without the file."""
    lines = source.text.splitlines()
    if span is None or not 1 <= span.line <= len(lines):
        return None
    text = lines[span.line - 1]
    width = min(span.end - span.start, len(text) - span.column + 1)
    return Place(span.line, span.column, max(1, width), text)


def _argument(attn: Attention, t: Tensor, source: Source) -> Argument:
    return Argument(
        name=t.name,
        slot=t.slot,
        dtype=t.dtype,
        dims=tuple(show(d) for d in memory_dims(attn, t)),
        written=f"{t.name}[{', '.join(map(show, t.index))}]",
        place=place_of(t.span, source),
        page=t.page,
        block_table=t.paged.tensor if t.paged else None,
        facts=tuple(sorted(t.facts)),
    )


def _bindings(attn: Attention) -> tuple[Binding, ...]:
    """One binding per symbol: from a dimension that is the symbol itself, else from `B + 1`, else as a divisor."""
    found: dict[str, Binding] = {}
    divisors: dict[str, Binding] = {}
    dims = [(t.name, axis, d) for t in attn.inputs for axis, d in enumerate(memory_dims(attn, t))]
    for name, axis, d in dims:
        match d:
            case Var(symbol):
                found.setdefault(symbol, Binding(symbol, name, axis))
            case _:
                ...
    for name, axis, d in dims:
        match d:
            case Op("+", (Var(symbol), Int(value))):
                found.setdefault(symbol, Binding(symbol, name, axis, f"size - {value}"))
            case Op("//", (whole, Var(symbol))) if free_vars(whole) <= found.keys():
                divisors.setdefault(symbol, Binding(symbol, name, axis, show(Op("//", (whole, Var("size"))))))
            case _:
                ...
    return (*found.values(), *(b for s, b in divisors.items() if s not in found))


def _paged_width(attn: Attention) -> Expr | None:
    """Positions that the block tables of the k index can name: of several paged tensors, the first's."""
    for t in attn.inputs:
        if t.paged is not None and t.page is not None:
            return Op("*", (Var(f"{t.paged.tensor}_width"), Int(t.page)))
    return None


def _capacity(attn: Attention, name: str) -> Expr:
    """How many positions of q or k a call can hold in one sequence."""
    index = attn.index(name)
    rows = rows_symbol(index)
    dimensions = {d for t in attn.inputs for d in memory_dims(attn, t)}
    if index.storage.kind == "lengths" and rows not in dimensions:
        return _paged_width(attn) or rows
    return rows


def _capacities(attn: Attention, bound: frozenset[str]) -> tuple[tuple[str, str], ...]:
    out: dict[str, str] = {}
    for name in (attn.q, attn.k):
        index, capacity = attn.index(name), show(_capacity(attn, name))
        for symbol in (rows_symbol(index), index.extent):
            if isinstance(symbol, Var) and symbol.name not in bound and symbol.name != capacity:
                out.setdefault(symbol.name, capacity)
    return tuple(out.items())


def _sequences(attn: Attention, name: str) -> Sequences:
    index = attn.index(name)
    return Sequences(name, show(index.extent), index.storage.kind, show(_capacity(attn, name)), index.storage.table)


def _conditions(attn: Attention, source: Source) -> tuple[Condition, ...]:
    varying = {
        i.extent.name for i in attn.indices if i.storage.kind != "dense" and isinstance(i.extent, Var)
    }  # extents that differ from sequence to sequence
    out: dict[str, Condition] = {}

    def need(formula: Expr, reason: str, span: Span | None) -> None:
        text = show(formula)
        if free_vars(formula):
            out.setdefault(text, Condition(text, reason, place_of(span, source), bool(free_vars(formula) & varying)))

    for t in attn.tensors:
        for e in t.index:
            match e:
                case Op("//", (Var(name), divisor)) if name not in (attn.q, attn.k):
                    whole = attn.index(name).extent
                    need(
                        Op("==", (Op("%", (whole, divisor)), Int(0))),
                        f"`{t.name}` is read at {show(e)}, so {show(divisor)} must divide {show(whole)}",
                        t.span,
                    )
                case _:
                    ...
    for formula in (*attn.scores, attn.mask):
        for e in walk(formula):
            if isinstance(e, Fetch):
                for bound, axis in _reach(attn, e):
                    reason = f"`{e.tensor}` is declared along {show(axis)} and read as {show(e)}"
                    need(compare("<=", bound, attn.index(axis.name).extent), reason, attn.spans.get(e))
    for fact in attn.assumes:
        if free_vars(fact) <= set(attn.extents):
            need(fact, "the spec assumes it", attn.spans.get(fact))
    return tuple(out.values())


def _reach(attn: Attention, e: Fetch) -> Iterator[tuple[Expr, Var]]:
    """For each dimension that is read at something else than it is declared along: one past the greatest index, and
    the declared index.  Forms other than `i`, `i // c` and `i % c` are left to the program's own bounds."""
    for declared, used in zip(attn.tensor(e.tensor).index, e.index, strict=True):
        if used is declared or not isinstance(declared, Var):
            continue
        match used:
            case Var(name):
                yield attn.index(name).extent, declared
            case Op("//", (Var(name), divisor)):
                yield cdiv(attn.index(name).extent, divisor), declared
            case Op("%", (_, divisor)):
                yield divisor, declared
            case _:
                ...
