"""What the compiler will do with a kernel and why: tiles kept and skipped as formulas, what stayed unknown, the budget,
the order of blocks, and the least time the call can take.

Everything is read from what runs: the loops of the lowered program with their proofs, and the target's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilec.arith.formula import Normal, normalise
from tilec.arith.verdicts import Safety, rows_safe
from tilec.budget import Budget, shared_memory
from tilec.count import Counts, bound_statements, count_tiles, key_loops, tile_of
from tilec.dsl.faults import Source, TargetFault, Warn, render
from tilec.explain import block_maps, key_step, machine_code, native
from tilec.explain.block_maps import MapFacts, map_facts
from tilec.explain.key_step import StepFacts, step_facts
from tilec.explain.machine_code import MachineFacts, machine_facts
from tilec.explain.native import NativeFacts, native_facts
from tilec.frontend import Spec, bind, unbound_constants
from tilec.ir.attention import Attention
from tilec.ir.expr import show
from tilec.ir.nodes import Let, Program, Seek
from tilec.legality import check_target
from tilec.lowering import Lowering
from tilec.passes.names import distinct_indices
from tilec.roofline import Roofline, roofline
from tilec.shapes import call_sizes
from tilec.targets import Target, target
from tilec.timeline_show import as_svg


@dataclass(frozen=True)
class Unknown:
    """A part of the mask outside of the prover's language, which every tile it touches tests element by element."""

    text: str
    reason: str
    fault: Warn


@dataclass(frozen=True)
class Explanation:
    """`program`: one thread of control, whose loops have their proofs; `lowered`: what is printed.

    `counts`, `roof` and `maps` need extents, `roof` a target with speed rows, `maps` one of dies; `step` one whose issue is
    described; `native` a program of roles, `machine` one of waves."""

    attn: Attention
    target: Target
    backend: str
    passed_over: tuple[str, ...]
    program: Program
    lowered: Program
    tile: Mapping[str, int]
    stages: int | None
    unknown: tuple[Unknown, ...]
    rows: Safety
    budget: Budget | None
    sizes: Mapping[str, int] | None
    counts: Counts | None
    roof: Roofline | None
    native: NativeFacts | None
    maps: MapFacts | None
    step: StepFacts | None
    machine: MachineFacts | None


def explain(
    attn: Attention,
    target: Target,
    found: Lowering,
    source: Source,
    sizes: Mapping[str, int] | None = None,
    by_line: bool = False,
) -> Explanation:
    """`attn` has its constants bound; `found` is how it was lowered for this target; `by_line`: a `map` line chose its map.

    `sizes` gives every symbol: then tiles are counted and the roofline is drawn."""
    program, inside = found.sequential, distinct_indices(attn)  # as the program calls its indices
    tile = {attn.q: tile_of(program, inside.q)}
    if key_loops(program):  # a mask may keep nothing
        tile[attn.k] = tile_of(program, inside.k)
    normal = normalise(attn.mask, q=attn.q, k=attn.k, params={t.name: t.facts for t in attn.tensors})
    stages = next((loop.stages for loop in key_loops(program) if loop.stages), None)
    budget = None
    if found.program is program and attn.k in tile:
        budget = shared_memory(attn, target, tile[attn.q], tile[attn.k], stages or 1, program.roles[0].warps)
    machine = _machine(found, attn, source, sizes, tile)
    counts = roof = maps = None
    if sizes is not None and attn.k in tile:
        full = call_sizes(attn, sizes)
        counts = count_tiles(program, inside, full)
        roof = roofline(attn, target, full, counts.live) if counts is not None else None
        before = dict(found.passes).get("choose_tiles")
        if before is not None:
            block = machine.block if machine else None
            maps = map_facts(before, program, found.program, attn, target, sizes, by_line, block)
    return Explanation(
        attn=attn,
        target=target,
        backend=found.backend,
        passed_over=found.passed_over,
        program=program,
        lowered=found.program,
        tile=tile,
        stages=stages,
        unknown=_unknown(attn, normal, source),
        rows=rows_safe(normal, attn.index(attn.q).extent, attn.index(attn.k).extent, attn.assumes),
        budget=budget,
        sizes=sizes,
        counts=counts,
        roof=roof,
        native=native_facts(found.program, attn, target, sizes) if found.backend == "cuda" else None,
        maps=maps,
        step=step_facts(program, found.program, attn, target) if attn.k in tile else None,
        machine=machine,
    )


def _machine(
    found: Lowering, attn: Attention, source: Source, sizes: Mapping[str, int] | None, tile: Mapping[str, int]
) -> MachineFacts | None:
    if found.backend != "hip" or found.artifact is None:
        return None
    return machine_facts(found.artifact, attn, source, sizes, tile)


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
    from tilec.lowering import lowering

    machine, sizes = target(name), dict(shape or {})
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
    found = lowering(spec, bound, name, backend)
    by_line = spec.schedule(bound.name, name).map is not None
    return explain(bound, machine, found, spec.source, {**fixed, **sizes} if sizes else None, by_line)


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
        "passed_over": list(e.passed_over),
        "tile": dict(e.tile),
        "order": e.program.grid.order,
        "notes": list(e.lowered.notes),
        "bounds": [{"name": name, "value": value} for name, value in _bounds(e.program)],
        "loops": [
            {"lo": show(x.lo), "hi": show(x.hi), "segment": x.proof.segment, "because": x.proof.because}
            for x in key_loops(e.program)
            if x.proof is not None
        ],
        "unknown": [{"expression": u.text, "reason": u.reason} for u in e.unknown],
        "rows": {"keep_a_key": e.rows.safe, "witness": e.rows.witness},
        "shared_memory": None if e.budget is None else {"bytes": e.budget.total, "limit": e.budget.limit},
        "sizes": None if e.sizes is None else dict(e.sizes),
        "counts": None if e.counts is None else e.counts.to_data(),
        "roofline": None if e.roof is None else _roof_data(e.roof),
        "native": None if e.native is None else native.to_data(e.native),
        "step": None if e.step is None else key_step.to_data(e.step),
        "machine": None if e.machine is None else machine_code.to_data(e.machine),
        "maps": None if e.maps is None else block_maps.to_data(e.maps),
    }


def _bounds(program: Program) -> list[tuple[str, str]]:
    """What the loops' bounds are computed from, as (name, formula)."""
    out = []
    for s in bound_statements(program):
        match s:
            case Let(name, value):
                out.append((name, show(value)))
            case Seek(name, lo, hi, cond):
                out.append((name, f"the first {name} in {show(lo)} .. {show(hi)} with {show(cond)}"))
    return out


def _roof_data(r: Roofline) -> dict[str, Any]:
    return {
        "flops": r.flops,
        "exps": r.exps,
        "bytes": r.bytes,
        "seconds": {"matrix": r.matrix, "special": r.special, "memory": r.memory},
        "bound": r.bound,
        "intensity": r.intensity,
        "ridge": r.ridge,
    }


def to_text(e: Explanation) -> str:
    """For a person."""
    by = f" ({', '.join(e.program.notes)})" if e.program.notes else ""
    lines = [f"{e.attn.name} on {e.target.name} ({e.target.device}), {e.backend} backend", *e.passed_over, ""]
    lines += [
        "tiles     "
        + ", ".join(f"{i} = {n}" for i, n in e.tile.items())
        + (f", {e.stages} stages" if e.stages else "")
        + by
    ]
    lines += [f"blocks    {e.program.grid.title}"]
    if e.budget is not None and e.target.vendor != "cpu":
        lines += [f"shared    {e.budget}"]
    lines += [f"          {note}" for note in e.lowered.notes if note not in e.program.notes]
    lines += ["", "tiles of keys that a tile of rows visits"]
    lines += [f"  {name} = {value}" for name, value in _bounds(e.program)]
    lines += _loop_lines(e.program)
    lines += ["", f"rows      {_rows(e.rows)}"]
    if e.unknown:
        lines += ["", *(render(u.fault) for u in e.unknown)]
    if e.sizes is not None and e.attn.k in e.tile:
        lines += ["", "for " + ", ".join(f"{n} = {v}" for n, v in e.sizes.items())]
        lines += e.counts.lines() if e.counts else ["  the tiles visited depend on the values of tensors"]
    if e.native is not None:
        lines += native.lines(e.native)
    if e.step is not None:
        lines += key_step.lines(e.step)
    if e.machine is not None:
        lines += machine_code.lines(e.machine)
    if e.maps is not None:
        lines += block_maps.lines(e.maps)
    if e.roof is not None:
        lines += _roof_lines(e.roof, e.target)
    return "\n".join(lines)


def picture(e: Explanation) -> str:
    """The timeline as SVG.  Raises TargetFault E0908 where there is none."""
    drawn = None if e.native is None else e.native.timeline
    if e.native is None or drawn is None:
        note = e.native.lacking if e.native else f"the {e.backend} backend leaves roles to its toolchain"
        raise TargetFault("E0908", f"there is no timeline of `{e.attn.name}`", note=note)
    sizes = ", ".join(f"{n} = {v}" for n, v in e.native.sizes.items())
    return as_svg(drawn, f"{e.attn.name} on {e.target.name}, {sizes}")


def _loop_lines(program: Program) -> list[str]:
    """One line for each loop over keys, and each reason once."""
    out: list[str] = []
    reasons: dict[str, None] = {}
    for loop in key_loops(program):
        assert loop.proof is not None
        state = "no mask" if loop.proof.segment == "full" else "masked"
        out.append(f"  {show(loop.lo)} .. {show(loop.hi)}  {state}")
        reasons.setdefault(loop.proof.because)
    return [*(out or ["  none: the mask keeps nothing"]), *(f"  because {r}" for r in reasons if r)]


def _rows(safety: Safety) -> str:
    if safety.safe:
        return "every row keeps a key"
    return f"{safety.witness or 'some row may keep no key'}: such a row gives O = 0 and L = -inf"


def _roof_lines(r: Roofline, target: Target) -> list[str]:
    rows = [("matrix", f"{r.flops / 1e9:.3f} GFLOP", r.matrix), ("special", f"{r.exps / 1e9:.3f} G", r.special)]
    rows.append(("memory", f"{r.bytes / 1e6:.3f} MB", r.memory))
    out = ["", f"least time on {target.device} at its sustained clock, {r.intensity:.0f} FLOP per byte"]
    out[-1] += f"; below {r.ridge:.0f} memory would be slower than products"
    out += [f"  {name:8} {amount:>18} {seconds * 1e6:10.1f} us" for name, amount, seconds in rows]
    out += [f"  bound by {r.bound}", "  rates from"]
    numbers = [(n, getattr(target, n)) for n in ("units", "sustained_clock", "special", "bandwidth")]
    numbers[1:1] = [(f"matrix.{d}", target.matrix[d]) for d in r.dtypes]
    out += [f"    {n} = {v:,}: {target.sources[n]}" for n, v in numbers]
    for d in r.dtypes:
        if d in target.achievable:
            peak = target.matrix[d] * target.units * target.clock
            share = f"{target.achievable[d] / 1e12:,.0f} of {peak / 1e12:,.0f} TFLOP/s of {d} at the peak clock"
            out += [f"  within the power limit {share}: {target.sources[f'achievable.{d}']}"]
    return out
