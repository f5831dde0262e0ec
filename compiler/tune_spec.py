"""`tilec tune`: the fastest schedule point of a kernel on this machine, as a row for a tuning record.

The search starts from what the records say of the kernel (`tune.hopper`) and walks the declared space (`tune.space`).  Without
a device the same candidates can be compiled and listed with their registers.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.candidates import Candidate, compile_candidates
from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind, unbound_constants
from tilec.ir.attention import Attention
from tilec.measure import Plan
from tilec.native import native_case
from tilec.targets import warp_wide
from tilec.tune.classes import length_class, mask_class, score_class
from tilec.tune.hopper import Point, Row, measured_points, points, read_rows, widths_of, write_rows
from tilec.tune.search import search
from tilec.tune.space import allowed, neighbours
from tilec.tune.tables import put
from tilec.tuner import Outcome, Progress
from tilec.user_record import user_rows

if TYPE_CHECKING:
    from tilec.peers.case import Case

MOST = 40  # candidates of a listing
MOST_WORKERS = 16  # each reads the compiler anew: more start slower than they compile


@dataclass(frozen=True)
class Options:
    """`seconds`: no race is begun later.  `workers`: compiling processes, 0 for one on each core.  `watchdog`: seconds without
    progress after which a hung run ends; a compilation has `compiling`."""

    seconds: float = 240.0
    plan: Plan = field(default_factory=lambda: Plan(rounds=4))
    workers: int = 0
    watchdog: float = 15.0
    compiling: float = 180.0

    @property
    def processes(self) -> int:
        return self.workers or min(MOST_WORKERS, os.cpu_count() or 1)


@dataclass(frozen=True)
class Tuned:
    """`outcomes`, the fastest first; `start`: the point that is compiled for the kernel without tuning."""

    kernel: str
    target: str
    device: str
    extents: Mapping[str, int]
    flops: int
    row: Row
    start: Point
    outcomes: tuple[Outcome, ...]
    versions: Mapping[str, str]

    def tflops(self, seconds: float | None) -> float | None:
        return self.flops / seconds / 1e12 if seconds else None

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "kernel": self.kernel,
            "target": self.target,
            "device": self.device,
            "extents": dict(self.extents),
            "versions": dict(self.versions),
            "row": write_rows([self.row]),
            "start": _values(self.start),
            "candidates": [
                {
                    **o.candidate.to_data(),
                    "tflops": {"burst": self.tflops(o.burst), "sustained": self.tflops(o.sustained)},
                    "note": o.note,
                }
                for o in self.outcomes
            ],
        }


@dataclass(frozen=True)
class Plot:
    """The kernel with its constants bound, where the search starts, and which points are near one."""

    attn: Attention
    starts: tuple[Point, ...]
    near: Callable[[Point], list[Point]]

    def listing(self, most: int = MOST) -> list[Point]:
        """The starts, and what is near them."""
        found = dict.fromkeys(self.starts)
        for p in self.starts:
            found |= dict.fromkeys(self.near(p))
        return list(found)[:most]


def plot_of(spec: Spec, attn: Attention, target: str, constants: Mapping[str, int]) -> Plot:
    """Raises TargetFault E0905 for a constant without a value, the faults of `native.lower_native` and `limits` for a kernel
    or a target without native code, whose shapes there would be to tune."""
    from tilec.backends.cuda.limits import check_limits

    missing = [n for n in unbound_constants(attn) if n not in constants]
    if missing:
        hint = f"add {' '.join(f'--set {n}=…' for n in missing)}"
        raise TargetFault(
            "E0905", f"`{attn.name}` needs values for {', '.join(missing)}", hint=hint, source=spec.source
        )
    bound = bind(attn, {n: constants[n] for n in unbound_constants(attn)}, spec.source)
    schedule = spec.schedule(attn.name, target)
    case = native_case(bound, target, schedule)
    if warp_wide(case.target):
        message = f"there is no space of shapes to search for {target}"
        hint = "`tile`, `warps` and `stages` lines say each"
        raise TargetFault("E0914", message, note="its kernels have warps that multiply for themselves", hint=hint)
    if "waves" in case.target.features:
        message = f"shapes for {target} are not listed alone"
        hint = "`tilec tune` without `--compile-only` compiles them, predicts how fast they are, and says which do not compile"
        raise TargetFault("E0914", message, hint=hint)
    check_limits(bound, target)
    values, own = allowed(bound, schedule), user_rows()
    starts = [p for p in measured_points(bound, schedule, own) if all(getattr(p, n) in v for n, v in values.items())]
    starts = starts or [next(points(bound, schedule, own))]
    return Plot(bound, tuple(dict.fromkeys(starts)), lambda p: list(neighbours(p, values)))


def list_candidates(
    spec: Spec,
    attn: Attention,
    target: str,
    constants: Mapping[str, int],
    progress: Progress,
    options: Options | None = None,
    most: int = MOST,
) -> list[Candidate]:
    """Compiles the neighbourhood of the starts, and measures nothing.  Raises as `plot_of`, and TargetFault E0911."""
    from tilec.backends.cuda.build import toolchain

    options = options or Options()
    toolchain()
    plot = plot_of(spec, attn, target, constants)
    wanted = plot.listing(most)
    fixed = {n: constants[n] for n in unbound_constants(attn)}
    found: dict[Point, Candidate] = {}
    for c in compile_candidates(spec.source.text, attn.name, target, fixed, wanted, options.processes):
        found[c.point] = c
        progress(f"compiling {len(wanted)} candidates", len(found), len(wanted))
    return [found[p] for p in wanted]


def tune_kernel(
    spec: Spec,
    attn: Attention,
    target: str,
    shape: Mapping[str, int],
    progress: Progress,
    found: Callable[[Tuned], None],
    options: Options | None = None,
) -> Tuned:
    """Searches on this machine's device.  `found` gets the best so far after each race, for a run that does not end well.

    Raises as `plot_of`, and TargetFault E0905 for a symbol without a value, E0906 for a target that this machine cannot run,
    E0918 where no candidate compiles as its schedule says."""
    from tilec.backends.runtime import timing
    from tilec.bench import commit, distance, versions
    from tilec.peers.case import on_device
    from tilec.tuner import Tuner
    from tilec.watchdog import Watchdog

    options = options or Options()
    fixed = {n: shape[n] for n in unbound_constants(attn) if n in shape}
    try:
        case = on_device(spec, attn, target, shape)
    except TargetFault as fault:
        fault.hint = fault.hint or "`--compile-only` lists the candidates without a device"
        raise
    plot = plot_of(spec, attn, target, fixed)
    ends = time.monotonic() + options.seconds
    date = datetime.datetime.now(datetime.UTC).date().isoformat()

    def compiled(some: Sequence[Point]) -> Any:
        dog.beat(options.compiling)
        return compile_candidates(spec.source.text, attn.name, target, fixed, some, options.processes)

    def say(text: str, done: int, total: int) -> None:
        dog.beat(options.compiling if text.startswith("compiling") else None)
        progress(text, done, total)

    def result(best: Point) -> Tuned:
        outcomes = tuple(tuner.ranking())
        rates = [
            case.flops / s / 1e12 for o in outcomes if o.candidate.point == best for s in (o.sustained, o.burst) if s
        ]
        at = ", ".join(f"{n} = {v}" for n, v in shape.items())
        device = timing.device_name(case.device)
        source = f"tilec tune, {device}, {date}, {commit()}: {attn.name} at {at}: "
        source += ", ".join(
            f"{r:.0f} TFLOP/s {what}" for r, what in zip(rates, ("sustained", "in bursts"), strict=False)
        )
        row = row_of(plot.attn, case.size(attn.k), best, source)
        return Tuned(attn.name, target, device, shape, case.flops, row, plot.starts[0], outcomes, versions())

    clock = timing.DeviceClock(case.device)
    launch = _launcher(spec, plot.attn, target, case)
    tuner = Tuner(compiled, launch, distance, clock, options.plan, say)
    last: Tuned | None = None
    with Watchdog(options.watchdog) as dog:
        for best in search(plot.starts, plot.near, tuner.race, lambda: time.monotonic() > ends):
            last = result(best)
            found(last)
    if last is None:
        reasons = "; ".join(dict.fromkeys(o.note for o in tuner.outcomes.values()))
        raise TargetFault("E0918", f"no shape of `{attn.name}` compiles as its schedule says", note=reasons)
    return last


def row_of(attn: Attention, keys: int, point: Point, source: str) -> Row:
    """The record's row for kernels of this one's width and classes, with sequences of so many keys."""
    classes = (frozenset({mask_class(attn)}), frozenset({score_class(attn)}), frozenset({length_class(keys)}))
    width, value = widths_of(attn)
    return Row(width, point, source, None if value == width else value, classes)


def keep(path: Path, row: Row) -> None:
    """Writes `row` into the record at `path`, beside its other rows.  ValueError if the file is no record."""
    rows = read_rows(path.read_text(encoding="utf-8"), str(path)) if path.exists() else ()
    replace_text(path, write_rows(put(rows, row)))


def replace_text(path: Path, text: str) -> None:
    """At once, so that a reader never sees a part of it."""
    half = path.with_suffix(path.suffix + ".part")
    half.write_text(text, encoding="utf-8")
    half.replace(path)


class _Fixed:
    """The Provider of one artifact."""

    rebuild = "tilec tune"

    def __init__(self, candidate: Candidate) -> None:
        assert candidate.artifact is not None
        self.found = candidate.artifact

    def features(self, target: str) -> frozenset[str]:
        return self.found.variant.features

    def artifact(self, target: str, variant: object) -> Any:
        return self.found


def _launcher(spec: Spec, attn: Attention, target: str, case: Case) -> Callable[[Candidate], Callable[[], Any]]:
    """Calls of candidates through the runtime, on the case's tensors."""
    import torch

    from tilec.backends.runtime.kernel import Kernel
    from tilec.identity import kernel_identity
    from tilec.signature_of import signature_of

    signature = signature_of(attn, spec.source)
    arguments = tuple(case.tensors[n] for n in signature.names)

    def launch(candidate: Candidate) -> Callable[[], Any]:
        identity = kernel_identity(attn, target, str(candidate.point))
        kernel = Kernel(signature, _Fixed(candidate), identity, target)

        def call() -> Any:
            with torch.no_grad():
                result = kernel(*arguments)
            return result[0] if isinstance(result, tuple) else result

        return call

    return launch


def _values(point: Point) -> dict[str, Any]:
    return {n: v for n, v in asdict(point).items() if n != "by"}


def candidate_table(candidates: Sequence[Candidate]) -> Any:
    """Which of them compile, and with how many registers."""
    table = _table_of("registers", "shared bytes", "")
    for c in candidates:
        table.add_row(*_cells(c.point), _number(c.registers), _number(c.shared), c.reason)
    return table


def tuned_table(t: Tuned) -> Any:
    """Every candidate that was measured or refused, the fastest first; `record`: what is compiled without tuning."""
    at = ", ".join(f"{n}={v}" for n, v in t.extents.items())
    table = _table_of("registers", "sustained TFLOP/s", "burst TFLOP/s", "")
    table.title, table.title_justify = f"{t.kernel} ({at}) on {t.device}", "left"
    for o in t.outcomes:
        rates = [f"{r:.1f}" if (r := t.tflops(s)) else "" for s in (o.sustained, o.burst)]
        marks = [w for w, p in (("best", t.row.point), ("record", t.start)) if o.candidate.point == p]
        table.add_row(
            *_cells(o.candidate.point), _number(o.candidate.registers), *rates, ", ".join([*marks, o.note]).strip(", ")
        )
    return table


def _table_of(*heads: str) -> Any:
    from rich.table import Table

    table = Table()
    for f in fields(Point):
        if f.name != "by":
            table.add_column(f.name, justify="right")
    for head in heads:
        table.add_column(head, justify="right" if head else "left")
    return table


def _cells(point: Point) -> list[str]:
    return [str(v) for v in _values(point).values()]


def _number(n: int | None) -> str:
    return "" if n is None else f"{n:,}"
