"""Whether a target and a backend can honour a schedule.  A line that cannot be honoured is an error, never a no-op.

    E0803  tiles and stages need more shared memory than the target has
    E0810  the target has no hardware for it: `warps specialized` on gfx942, `cluster` on sm80
    E0811  the backend leaves that decision to its toolchain, or the native backend it needs is not in this version
    E0812  a tile size that the backend cannot take
    E0813  `order residue` on a mask without one congruence
    E0903  a backend that the target does not have
    E0904  a dtype that the target does not have

The nearest legal line is the hint.  All mistakes of a schedule are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilec import ampere_lines, cdna_lines, native_lines
from tilec.budget import shared_memory
from tilec.dsl.faults import Fault, Faults, ScheduleFault, Source, TargetFault
from tilec.dsl.spans import Span
from tilec.ir.attention import Attention, least_depth
from tilec.schedule import Schedule, Strategy
from tilec.targets import Backend, Target, warp_wide

LEAST_TILE = 16  # rows of the smallest matrix instruction on every target
LARGEST_TILE = 512
MAX_WARPS = 16

# What the portable backends leave to Triton, by schedule statement.
LEFT_TO_TRITON = {
    "overlap": "the order of the two products inside the loop",
    "split": "splitting keys over blocks",
    "cluster": "clusters",
}


@dataclass(frozen=True)
class _Case:
    """What every rule may look at."""

    attn: Attention
    schedule: Schedule
    target: Target
    backend: Backend
    source: Source | None

    def at(self, *names: str) -> Span | None:
        return next((self.schedule.spans[n] for n in names if n in self.schedule.spans), None)

    def fault(self, code: str, message: str, span: Span | None, note: str | None, hint: str | None) -> Fault:
        return ScheduleFault(code, message, span, note=note, hint=hint, source=self.source)


def choose_backend(target: Target, name: str | None = None) -> Backend:
    """The backend of that name, or the target's first available one.  TargetFault E0903 where there is none."""
    if name is None:
        return target.default_backend
    found = target.backend(name)
    there = ", ".join(f"`{b.name}`" for b in target.backends if b.available)
    if found is None:
        raise TargetFault("E0903", f"`{name}` is not a backend of {target.name}", hint=f"it has {there}")
    if not found.available:
        raise TargetFault(
            "E0903",
            f"{target.name} has no `{name}` backend in this version",
            note=found.because,
            hint=f"it has {there}",
        )
    return found


def check_target(attn: Attention, target: Target, source: Source | None = None) -> None:
    """Raises Faults of E0904 for each tensor whose dtype the target cannot hold."""
    faults: list[Fault] = [
        TargetFault(
            "E0904",
            f"{target.name} has no {t.dtype}",
            t.span,
            hint=f"it has {', '.join(sorted(target.dtypes))}",
            source=source,
        )
        for t in attn.tensors
        if t.dtype not in target.dtypes
    ]
    if faults:
        raise Faults(faults)


def check_schedule(
    attn: Attention, schedule: Schedule, target: Target, backend: Backend, source: Source | None = None
) -> None:
    """Raises Faults with every line of `schedule` that `target` and `backend` cannot honour, in source order."""
    found = _faults(_Case(attn, schedule, target, backend, source))
    if found:
        raise Faults(found, source)


def target_faults(attn: Attention, schedule: Schedule, target: Target, source: Source | None = None) -> list[Fault]:
    """Only what no backend of the target could honour: what `tilec check` says of a schedule it is not to compile."""
    said = [_faults(_Case(attn, schedule, target, b, source)) for b in target.backends if b.available]
    return [f for f in said[0] if f.code != "E0811"] if all(said) else []


def _faults(case: _Case) -> list[Fault]:
    """In source order."""
    found = list(_native(case) if case.backend.prints else _portable(case))
    return sorted(found, key=lambda f: f.span.start if f.span else -1)


def _native(case: _Case) -> Iterator[Fault]:
    """What the target has no hardware for, and of the other lines those that its native passes do not decide."""
    lacking = {f.span: f for f in (*_warps(case), *_lines(case), *_map(case)) if f.code == "E0810"}
    yield from lacking.values()
    if "waves" in case.target.features:
        yield from _order(case)
    for f in _rules(case.target)(case.attn, case.schedule):
        if f.span not in lacking:
            f.source = case.source
            yield f


def _rules(target: Target) -> Callable[[Attention, Schedule], Iterator[Fault]]:
    """What the target's native passes honour."""
    if "waves" in target.features:
        return cdna_lines.faults
    return ampere_lines.faults if warp_wide(target) else native_lines.faults


def _portable(case: _Case) -> Iterator[Fault]:
    yield from _tiles(case)
    yield from _warps(case)
    yield from _lines(case)
    yield from _map(case)
    yield from _order(case)
    yield from _budget(case)


def _tiles(case: _Case) -> Iterator[Fault]:
    tiled = (case.attn.q, case.attn.k)
    pinned = [("tile", name, (size,)) for name, size in case.schedule.tile]
    for line, name, sizes in [*pinned, *(("choices", n, s) for n, s in case.schedule.choices)]:
        span = case.at(f"{line}.{name}", line)
        if name not in tiled:
            hint = f"tiles are of {tiled[0]} and {tiled[1]}: every other index is one value or whole"
            yield case.fault("E0812", f"`{name}` cannot be tiled", span, None, hint)
            continue
        least = _least_tile(case, name)
        for size in sizes:
            if least <= size <= LARGEST_TILE and size & (size - 1) == 0:
                continue
            near = min((1 << p for p in range(4, 10) if 1 << p >= least), key=lambda n: (abs(n - size), n))
            note = f"tile sizes are powers of two from {least} to {LARGEST_TILE}"
            yield case.fault("E0812", f"a tile of {size} is not legal", span, note, f"`{name} = {near}` is the nearest")


def _least_tile(case: _Case, name: str) -> int:
    """The second product contracts keys, in steps of its value's dtype."""
    value = case.attn.tensor(case.attn.value).dtype
    return max(LEAST_TILE, least_depth(value)) if name == case.attn.k and case.target.vendor != "cpu" else LEAST_TILE


def _warps(case: _Case) -> Iterator[Fault]:
    strategy = case.schedule.warps
    if strategy is None:
        return
    written, span, target = _written(strategy), case.at("warps"), case.target
    if strategy.name == "split_q":
        count = strategy.get("warp") or 4
        if count < 1 or count > MAX_WARPS or count & (count - 1):
            near = min((1, 2, 4, 8, 16), key=lambda n: (abs(n - count), n))
            note = f"the number of warps is a power of two up to {MAX_WARPS}"
            yield case.fault("E0810", f"`{written}` is not legal", span, note, f"`split_q({near})` is the nearest")
        return
    lack = _lacking(strategy, target)
    if lack is not None:
        note, hint = lack
        yield case.fault("E0810", f"{target.name} cannot take `warps {strategy.name}`", span, note, hint)
        return
    yield _needs_native(case, f"warps {written}", span, "which warp does what", "`warps split_q(4)`")


def _lacking(strategy: Strategy, target: Target) -> tuple[str, str] | None:
    """Why the machine cannot run this partition, and the nearest one; None if it can."""
    waves = "`ping_pong(wave = 8)` is the nearest"
    split = "`split_q(4)` is the nearest"
    if strategy.name == "specialized" and "register_trade" not in target.features:
        hint = waves if "waves" in target.features else split
        noun = "waves" if target.vendor == "amd" else "warps"
        return f"{noun} cannot trade registers on this target", hint
    if strategy.name == "ping_pong":
        if strategy.get("consumer") is not None and "register_trade" not in target.features:
            return "consumers need a producer, and warps cannot trade registers on this target", (
                waves if "waves" in target.features else split
            )
        if strategy.get("wave") is not None and "waves" not in target.features:
            near = "`ping_pong(consumer = 2)` is the nearest" if "register_trade" in target.features else split
            return "waves of 64 with priorities are AMD's", near
    return None


def _written(strategy: Strategy) -> str:
    inside = ", ".join(str(v) if k == "warp" else f"{k} = {v}" for k, v in strategy.args)
    return f"{strategy.name}({inside})" if inside else strategy.name


def _needs_native(case: _Case, line: str, span: Span | None, what: str, instead: str | None) -> Fault:
    """The line is the native backend's to honour."""
    native = next((b for b in case.target.backends if b.native), None)
    message = f"the {case.backend.name} backend cannot honour `{line}`"
    triton = case.backend.name == "triton"
    note = f"it leaves {what} to Triton" if triton else f"it runs one thread of control, where {what} says nothing"
    if native is not None and not native.available:
        note += f"; the {native.name} backend of {case.target.name}, which would decide it, is not in this version"
    hint = "remove the line" + (f", or write {instead}" if instead else "")
    return case.fault("E0811", message, span, note, hint)


def _lines(case: _Case) -> Iterator[Fault]:
    s, target = case.schedule, case.target
    if s.cluster is not None:
        if "cluster" not in target.features:
            hint = "remove the line, or move it to a schedule for sm90"
            note = "blocks that share a multicast copy are sm90's and later"
            yield case.fault("E0810", f"{target.name} has no clusters", case.at("cluster"), note, hint)
        else:
            yield _needs_native(case, f"cluster {s.cluster}", case.at("cluster"), LEFT_TO_TRITON["cluster"], None)
    if s.overlap is not None:
        line = f"overlap {'on' if s.overlap else 'off'}"
        yield _needs_native(case, line, case.at("overlap"), LEFT_TO_TRITON["overlap"], None)
    if s.split is not None:
        name, count = s.split
        line = f"split {name} = {'auto' if count is None else count}"
        yield _needs_native(case, line, case.at("split"), LEFT_TO_TRITON["split"], None)
    if s.rescale is not None and s.rescale[0] == "eager":
        message = f"the {case.backend.name} backend cannot honour `rescale eager`"
        note = "its programs divide by the sum once, after the last key"
        yield case.fault("E0811", message, case.at("rescale"), note, "remove the line, or write `rescale delayed`")
    if s.rescale is not None and s.rescale[0] == "conditional":
        line = f"rescale conditional {s.rescale[1] or 0:g}"
        what = "branches on a warp's vote"
        yield _needs_native(case, line, case.at("rescale"), what, "`rescale delayed`")
    if s.skip == "table":
        yield _needs_native(case, "skip table", case.at("skip"), "tables of tiles", "`skip proved`")


def _map(case: _Case) -> Iterator[Fault]:
    if case.schedule.map is None:
        return
    kind, by = case.schedule.map
    attn, target, span = case.attn, case.target, case.at("map")
    message = f"the {case.backend.name} backend cannot honour `map {kind}{f' by {by}' if by else ''}`"
    if kind == "xcd" and target.xcds == 1:
        note = f"{target.name} has one L2 for all blocks"
        hint = "`map longest_first` is the nearest; `map xcd` belongs in a schedule for gfx942"
        yield case.fault("E0810", f"{target.name} has no XCDs", span, note, hint)
    elif kind == "xcd" and by not in {i.name for i in attn.outer[-1:]}:
        last = attn.outer[-1].name if attn.outer else attn.q
        hint = f"`map xcd by {last}` is the nearest" if attn.outer else "remove the line"
        yield case.fault(
            "E0811", message, span, f"a chiplet gets neighbouring tiles, and those are of one `{last}`", hint
        )
    elif kind == "longest_first" and attn.index(attn.q).storage.kind == "packed":
        note = f"the tiles of packed rows are found from `{attn.index(attn.q).storage.table}`, in its order"
        yield case.fault("E0811", message, span, note, "`map linear` is the nearest")


def _order(case: _Case) -> Iterator[Fault]:
    order = case.schedule.order
    if order is None:
        return
    if order not in ((case.attn.q,), ("residue",), ("residue", case.attn.q)):
        message = f"the {case.backend.name} backend cannot honour `order {', '.join(order)}`"
        note = f"rows are walked in order of {case.attn.q}, or by residue class first"
        hint = f"`order residue, {case.attn.q}` or `order {case.attn.q}`"
        yield case.fault("E0811", message, case.at("order"), note, hint)
    if "residue" not in order:
        return
    from tilec.arith.formula import normalise
    from tilec.arith.residue import residue_of

    attn = case.attn
    normal = normalise(attn.mask, q=attn.q, k=attn.k, params={t.name: t.facts for t in attn.tensors})
    if residue_of(normal) is None:
        note = f"no single `({attn.q} - {attn.k}) % T == c` holds for every live position of this mask"
        yield case.fault("E0813", "`order residue` needs a congruence", case.at("order"), note, "remove the line")


def _budget(case: _Case) -> Iterator[Fault]:
    """Refuses only if no completion of what is pinned fits: what is not pinned can be as small as tiles are."""
    s, attn, target = case.schedule, case.attn, case.target
    tile, choices = dict(s.tile), dict(s.choices)
    q = tile.get(attn.q) or min(choices.get(attn.q, (LEAST_TILE,)))
    k = tile.get(attn.k) or min(choices.get(attn.k, (_least_tile(case, attn.k),)))
    stages = s.stages or 1
    budget = shared_memory(attn, target, q, k, stages)
    if budget is None or budget.fits:
        return
    hints = [f"`stages {n}`" for n in range(stages - 1, 0, -1) if _fits(case, q, k, n)][:1]
    hints += [f"`{attn.k} = {n}`" for n in _halves(k) if _fits(case, q, n, stages)][:1]
    hints += [f"`{attn.q} = {n}`" for n in _halves(q) if _fits(case, n, k, stages)][:1]
    if not hints:  # no line alone is enough: the largest tile of all that fit
        smaller = ((a, b) for a in (q, *_halves(q)) for b in (k, *_halves(k)) if _fits(case, a, b, 1))
        both = max(smaller, key=lambda t: (t[0] * t[1], t), default=None)
        hints = [f"`tile {attn.q} = {both[0]}, {attn.k} = {both[1]}` with `stages 1`"] if both else []
    message = f"this schedule needs {budget.total:,} bytes of shared memory and {target.name} has {budget.limit:,}"
    hint = f"{' or '.join(hints)} would fit" if hints else None
    yield case.fault("E0803", message, case.at("stages", "tile", "choices"), str(budget), hint)


def _halves(size: int) -> Iterator[int]:
    while size > LEAST_TILE:
        size //= 2
        yield size


def _fits(case: _Case, q: int, k: int, stages: int) -> bool:
    budget = shared_memory(case.attn, case.target, q, k, stages)
    return budget is not None and budget.fits
