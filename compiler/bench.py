"""Speed of a kernel beside other implementations of the same attention, measured so that the figures can be compared.

The measures are those of `tilec.measure`.  TFLOP/s are counted on live elements, whatever an implementation computes:
2 (D + Dv) per live (query, key) pair, so a kernel gains nothing by visiting dead tiles.  Inputs are normal-distributed: zeros
draw less power and run faster.  Every result is first compared with the first implementation's, so that a wrong kernel is
never reported as a fast one.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tilec.backends.base import Variant
from tilec.backends.runtime import timing
from tilec.backends.runtime.settings import settings
from tilec.frontend import Spec
from tilec.ir.attention import Attention
from tilec.measure import QUOTED, Plan, measure
from tilec.peers.adapters import PACKAGES, PEERS, Call
from tilec.peers.case import Case, on_device
from tilec.watchdog import Watchdog

MEASURES = ("burst", "sustained")
AGREE = 3e-2  # two half-precision implementations differ by less, relative to the largest output


@dataclass(frozen=True)
class Options:
    """`plan`: how calls are measured.  `watchdog`: seconds without progress after which a hung run ends; what is measured
    has three times as long for its first result, others `building` seconds."""

    plan: Plan = field(default_factory=Plan)
    watchdog: float = 60.0
    building: float = 600.0


@dataclass(frozen=True)
class Row:
    """One implementation.  Times are seconds, `graph` says whether of replays, `note` why there are none."""

    name: str
    burst: float | None = None
    sustained: float | None = None
    host: float | None = None
    graph: bool = False
    error: float | None = None
    note: str = ""

    def tflops(self, flops: int, of: str = "burst") -> float | None:
        """TFLOP/s on live elements of the `burst` or `sustained` time."""
        seconds: float | None = getattr(self, of)
        return flops / seconds / 1e12 if seconds else None


@dataclass(frozen=True)
class Result:
    """What is written as JSON: one case on one device, with everything the figures depend on.  `backend`: of tilec's own."""

    kernel: str
    backend: str
    extents: Mapping[str, int]
    live: int
    flops: int
    device: str
    date: str
    commit: str
    versions: Mapping[str, str]
    options: Options
    rows: tuple[Row, ...] = field(default=())

    def row(self, name: str) -> Row:
        """The row of that name; KeyError if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def best(self, of: str = QUOTED) -> Row | None:
        """The peer with the shortest time, or None where none was measured."""
        timed = [r for r in self.rows[1:] if getattr(r, of)]
        return min(timed, key=lambda r: float(getattr(r, of)), default=None)

    def ratio(self, of: str = QUOTED) -> float | None:
        """The best peer's time over tilec's: above 1, tilec is faster.  None where either is missing."""
        own, best = getattr(self.rows[0], of), self.best(of)
        return float(getattr(best, of)) / own if own and best else None

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        data = asdict(self)
        for row, out in zip(self.rows, data["rows"], strict=True):
            out["tflops"] = {k: row.tflops(self.flops, k) for k in MEASURES}
        best = {k: (self.best(k), self.ratio(k)) for k in MEASURES}
        data["best"] = {k: {"name": b.name, "ratio": ratio} if b and ratio else None for k, (b, ratio) in best.items()}
        return data | {"quoted": QUOTED}

    def to_json(self) -> str:
        return json.dumps(self.to_data(), indent=1)


def bench(
    case: Case,
    own: Call,
    against: Sequence[str],
    options: Options = Options(),
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """Measures `own` (a call of no arguments that returns O) and the peers named in `against`.

    KeyError for a peer that does not exist; a peer that cannot express the case, or fails, becomes a row with a note."""
    calls: dict[str, Call] = {}
    rows: dict[str, Row] = {}
    reference: torch.Tensor | None = None
    with Watchdog(options.watchdog) as dog:

        def say(text: str) -> None:
            dog.beat()
            progress(text)

        for name in ("tilec", *against):
            progress(f"building {name}")
            dog.beat(options.building if name != "tilec" else 3 * options.watchdog)
            call, result, rows[name] = _prepare(name, case, own, reference)
            if call is not None:
                calls[name] = call
                reference = result if reference is None else reference
        for name, speed in measure(calls, timing.DeviceClock(case.device), options.plan, say).items():
            figures = {**asdict(speed), "note": speed.note or rows[name].note}
            rows[name] = Row(name, error=rows[name].error, **figures)
    return Result(
        kernel=case.attn.name,
        backend="",
        extents=dict(case.extents),
        live=case.live,
        flops=case.flops,
        device=timing.device_name(case.device),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit(),
        versions=versions(),
        options=options,
        rows=tuple(rows.values()),
    )


def bench_kernel(
    spec: Spec,
    attn: Attention,
    name: str,
    backend: str | None,
    shape: Mapping[str, int],
    against: Sequence[str],
    options: Options = Options(),
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """Measures one kernel of a file on this machine's device.  `shape` gives every symbol that the call has.

    Raises the faults of `peers.case.on_device`."""
    from tilec.jit import load

    case = on_device(spec, attn, name, shape)
    kernel = load(Path(spec.source.path), kernel=attn.name, target=name, backend=backend)
    arguments = tuple(case.tensors[n] for n in kernel.signature.names)

    def own() -> torch.Tensor:
        with torch.no_grad():
            result = kernel(*arguments)
        return result[0] if isinstance(result, tuple) else result

    result = bench(case, own, against, options, progress)
    bound = kernel.plan(arguments, None).bound
    variant = Variant(bound.constants, bound.features & kernel.provider.features(name))
    return replace(result, backend=kernel.artifact(name, variant).backend)


def _prepare(
    name: str, case: Case, own: Call, reference: torch.Tensor | None
) -> tuple[Call | None, torch.Tensor | None, Row]:
    """The call, warmed up, and its result, compared with the first; no call, with the reason, where there is none."""
    if name == "tilec":
        return own, own(), Row(name, error=0.0)
    peer = PEERS[name]
    lack = peer.why_not(case)
    if lack is not None:
        return None, None, Row(name, note=f"cannot: {lack}")
    try:
        call = peer.forward(case)
        result = call()
        error = 0.0 if reference is None else distance(result, reference)
    except Exception as wrong:
        reason = next(iter(str(wrong).splitlines()), "")
        return None, None, Row(name, note=f"failed: {type(wrong).__name__}: {reason}")
    if not error <= AGREE:
        return None, None, Row(name, error=error, note=f"disagrees with tilec: {error:.1e} of the largest output")
    return call, result, Row(name, error=error)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference, relative to the largest element of b.  NaN in either is NaN: it agrees with nothing."""
    scale = float(b.abs().max()) or 1.0
    return float((a.float() - b.float()).abs().max()) / scale


def commit() -> str:
    """TILEC_COMMIT, else the commit this package was checked out from, or `unknown` for an installed wheel."""
    given = settings().commit
    if given is not None:
        return given
    try:
        here = Path(__file__).resolve().parent
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


def versions() -> dict[str, str]:
    """Of everything that a figure depends on."""
    found = timing.versions()
    for package in ("tilec", "triton", *PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def table(result: Result) -> Any:
    """The result as a rich table; below it, which measure the ratios are of."""
    from rich.table import Table

    extents = ", ".join(f"{k}={v}" for k, v in result.extents.items())
    by = f" by {result.backend}" if result.backend else ""
    title = f"{result.kernel} ({extents}){by} on {result.device}, {result.flops / 1e12:.3f} TFLOP on live elements"
    out = Table(title=title, title_justify="left", caption=_quoted(result), caption_justify="left")
    out.add_column("")
    for head in ("sustained TFLOP/s", "burst TFLOP/s", "ms", "host us"):
        out.add_column(head, justify="right")
    out.add_column("timed")
    out.add_column("note")
    for row in result.rows:
        cells = [_figure(row.tflops(result.flops, k)) for k in ("sustained", "burst")]
        cells += [_figure(row.sustained and row.sustained * 1e3, 3), _figure(row.host and row.host * 1e6)]
        out.add_row(row.name, *cells, ("graphs" if row.graph else "calls") if row.burst else "", row.note)
    return out


def _quoted(result: Result) -> str:
    best, ratio = result.best(), result.ratio()
    if best is None or ratio is None:
        return f"quoted: {QUOTED}"
    return f"quoted: {QUOTED}; {ratio:.2f} times the speed of {best.name}, the best other"


def _figure(x: float | None, digits: int = 1) -> str:
    return "" if x is None else f"{x:.{digits}f}"
