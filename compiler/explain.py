"""What the compiler will do with a kernel and why: tiles kept and skipped as formulas, what stayed unknown, the budget,
the order of blocks, and the least time the call can take.

Everything is read from what the passes themselves use: the prover's bounds, the lowered program, the target's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilec.arith.bounds import Bounds, k_bounds
from tilec.arith.formula import Normal, normalise
from tilec.arith.segments import TileSegment, tile_segments
from tilec.budget import Budget, shared_memory
from tilec.count import Counts, count_tiles
from tilec.dsl.faults import Source, TargetFault, Warn, render
from tilec.frontend import Spec, bind, unbound_constants
from tilec.ir.attention import Attention
from tilec.ir.build import add, minimum, mul, sub
from tilec.ir.expr import Expr, Int, Var, show, substitute
from tilec.ir.nodes import For, Program, walk
from tilec.legality import check_schedule, check_target, choose_backend
from tilec.roofline import Roofline, roofline
from tilec.schedule import Schedule
from tilec.shapes import call_sizes
from tilec.targets import Target, target

ROW_TILE = "m"


@dataclass(frozen=True)
class Unknown:
    """A part of the mask outside of the prover's language, which every tile it touches tests element by element."""

    text: str
    reason: str
    fault: Warn


@dataclass(frozen=True)
class Explanation:
    """`segments`: the key tiles of row tile `m`; `counts` and `roof` need extents; `roof` is None on cpu."""

    attn: Attention
    target: Target
    backend: str
    tile: Mapping[str, int]
    stages: int | None
    bounds: Bounds
    segments: tuple[TileSegment, ...]
    unknown: tuple[Unknown, ...]
    order: str
    budget: Budget | None
    sizes: Mapping[str, int] | None
    counts: Counts | None
    roof: Roofline | None


def row_range(attn: Attention, size: int) -> tuple[Expr, Expr]:
    """First and last query row of row tile `m`."""
    first = mul(Var(ROW_TILE), size)
    return first, sub(minimum(add(first, size), attn.index(attn.q).extent), 1)


def facts_of(attn: Attention) -> dict[str, frozenset[str]]:
    """Declared facts by tensor, as the prover takes them."""
    return {t.name: t.facts for t in attn.tensors}


def explain(
    attn: Attention,
    target: Target,
    backend: str,
    schedule: Schedule,
    program: Program,
    source: Source,
    sizes: Mapping[str, int] | None = None,
) -> Explanation:
    """`attn` has its constants bound; `program` is what the pipeline made of it for this target and schedule.

    `sizes` gives every symbol: then tiles are counted and the roofline is drawn."""
    constants = dict(program.tile)
    tile = {i: constants[f"T{i.upper()}"] for i in (attn.q, attn.k)}
    normal = normalise(attn.mask, q=attn.q, k=attn.k, params=facts_of(attn))
    bounds = k_bounds(normal, *row_range(attn, tile[attn.q]), attn.index(attn.k).extent, attn.assumes)
    segments = tile_segments(bounds, Int(tile[attn.k]))
    stages = next((s.stages for r in program.roles for s in walk(r.body) if isinstance(s, For) and s.stages), None)
    counts = count_tiles(attn, tile, bounds, segments, sizes) if sizes is not None else None
    roof = None
    if sizes is not None and counts is not None:
        roof = roofline(attn, target, call_sizes(attn, sizes), counts.live)
    return Explanation(
        attn=attn,
        target=target,
        backend=backend,
        tile=tile,
        stages=stages,
        bounds=bounds,
        segments=segments,
        unknown=_unknown(attn, normal, source),
        order=program.grid.order,
        budget=shared_memory(attn, target, tile[attn.q], tile[attn.k], stages or schedule.stages or 1),
        sizes=sizes,
        counts=counts,
        roof=roof,
    )


def explain_kernel(
    spec: Spec,
    attn: Attention,
    name: str,
    backend: str | None = None,
    constants: Mapping[str, int] | None = None,
    shape: Mapping[str, int] | None = None,
) -> Explanation:
    """The explanation of one kernel of a file for a target.  Raises Faults for a schedule that cannot be honoured, and
    TargetFault E0905 while a symbol that tiles need, or an extent of a partial `shape`, has no value."""
    from tilec.pipeline import lower

    machine, sizes = target(name), dict(shape or {})
    chosen, schedule = choose_backend(machine, backend), spec.schedule(attn.name, name)
    needed = unbound_constants(attn)
    fixed = dict(constants or {}) | {n: v for n, v in sizes.items() if n in needed}
    bound = bind(attn, fixed)
    missing = [n for n in needed if n not in fixed] + [n for n in bound.extents if sizes and n not in sizes]
    if missing:
        hint = f"add {' '.join(f'--set {n}=…' if n in needed else f'--shape {n}=…' for n in missing)}"
        raise TargetFault(
            "E0905", f"`{attn.name}` needs values for {', '.join(missing)}", hint=hint, source=spec.source
        )
    check_target(bound, machine, spec.source)
    check_schedule(bound, schedule, machine, chosen, spec.source)
    program = lower(bound, name, schedule)
    return explain(bound, machine, chosen.name, schedule, program, spec.source, {**fixed, **sizes} if sizes else None)


def _unknown(attn: Attention, normal: Normal, source: Source) -> tuple[Unknown, ...]:
    out = []
    for opaque in normal.opaque:
        text = show(opaque.culprit)
        message = f"`{text}` is tested for every element: the prover does not know what it keeps"
        span = attn.spans.get(opaque.culprit) or attn.spans.get(attn.mask)
        out.append(Unknown(text, opaque.reason, Warn("W0503", message, span, note=opaque.reason, source=source)))
    return tuple(out)


def to_data(e: Explanation) -> dict[str, Any]:
    """JSON values."""
    return {
        "kernel": e.attn.name,
        "target": e.target.name,
        "backend": e.backend,
        "tile": dict(e.tile),
        "order": e.order,
        "seeks": [{"name": s.name, "lo": show(s.lo), "hi": show(s.hi), "first": show(s.cond)} for s in e.bounds.seeks],
        "segments": [
            {
                "lo": show(s.lo),
                "full_lo": show(s.full_lo),
                "full_hi": show(s.full_hi),
                "hi": show(s.hi),
                "because": s.because,
            }
            for s in e.segments
        ],
        "unknown": [{"expression": u.text, "reason": u.reason} for u in e.unknown],
        "shared_memory": None if e.budget is None else {"bytes": e.budget.total, "limit": e.budget.limit},
        "sizes": None if e.sizes is None else dict(e.sizes),
        "counts": None if e.counts is None else e.counts.to_data(),
        "roofline": None if e.roof is None else _roof_data(e.roof),
    }


def _roof_data(r: Roofline) -> dict[str, Any]:
    return {
        "flops": r.flops,
        "exps": r.exps,
        "bytes": r.bytes,
        "seconds": {"matrix": r.matrix, "special": r.special, "memory": r.memory},
        "bound": r.bound,
    }


def to_text(e: Explanation) -> str:
    """For a person."""
    attn, q, k = e.attn, e.attn.q, e.attn.k
    lines = [f"{attn.name} on {e.target.name} ({e.target.device}), {e.backend} backend", ""]
    lines += [f"tiles     {q} = {e.tile[q]}, {k} = {e.tile[k]}" + (f", {e.stages} stages" if e.stages else "")]
    lines += [f"blocks    {e.order}"]
    if e.budget is not None and e.target.vendor != "cpu":
        lines += [f"shared    {e.budget}"]
    lines += ["", f"keys of row tile {ROW_TILE}, in tiles of {e.tile[k]}"]
    lines += [
        f"  {s.name} = least {s.name} in {show(s.lo)} .. {show(s.hi)} with {show(s.cond)}" for s in e.bounds.seeks
    ]
    if not e.segments:
        lines += ["  none: the mask keeps nothing"]
    for s in e.segments:
        lines += _segment_lines(s)
    if e.unknown:
        lines += ["", *(render(u.fault) for u in e.unknown)]
    if e.counts is not None and e.sizes is not None:
        lines += ["", "for " + ", ".join(f"{n} = {v}" for n, v in e.sizes.items()), *e.counts.lines()]
    if e.roof is not None:
        lines += _roof_lines(e.roof, e.target)
    return "\n".join(lines)


def _segment_lines(s: TileSegment) -> list[str]:
    """The ends of a segment, each in terms of those before it."""
    names: dict[Expr, Expr] = {}
    out = []
    ends = [("first", s.lo), ("end", s.hi)]
    if not s.full_empty:
        ends += [("no mask from", s.full_lo), ("no mask until", s.full_hi)]
    for name, value in ends:
        out.append(f"  {name:13} {show(substitute(value, names))}")
        if not isinstance(value, Int | Var):
            names[value] = Var(name.replace(" ", "_"))
    return [*out, f"  {'because':13} {s.because}"]


def _roof_lines(r: Roofline, target: Target) -> list[str]:
    rows = [("matrix", f"{r.flops / 1e9:.3f} GFLOP", r.matrix), ("special", f"{r.exps / 1e9:.3f} G", r.special)]
    rows.append(("memory", f"{r.bytes / 1e6:.3f} MB", r.memory))
    out = ["", f"least time on {target.device} at its sustained clock, {r.intensity:.0f} FLOP per byte"]
    out += [f"  {name:8} {amount:>18} {seconds * 1e6:10.1f} us" for name, amount, seconds in rows]
    return [*out, f"  bound by {r.bound}"]
