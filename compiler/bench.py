"""Speed of a kernel beside other implementations of the same attention, measured so that the figures can be compared.

    burst      median over rounds of a few launches; every round runs each implementation once, in rotating order
    sustained  one implementation alone for half a second: what a chip at its power limit keeps up
    host       time the Python call takes on the host, kernels not waited for

TFLOP/s are counted on live elements, whatever an implementation computes: 2 (D + Dv) per live (query, key) pair, so a
kernel gains nothing by visiting dead tiles.  Inputs are normal-distributed: zeros draw less power and run faster.
Every result is first compared with the first implementation's, so that a wrong kernel is never reported as a fast one.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tilec.backends.runtime import timing
from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind, unbound_constants
from tilec.ir.attention import Attention
from tilec.peers.adapters import PEERS, Call
from tilec.peers.case import Case, make_tensors
from tilec.shapes import call_sizes

AGREE = 3e-2  # two half-precision implementations differ by less, relative to the largest output


@dataclass(frozen=True)
class Options:
    """`graph`: replay a captured CUDA graph instead of calling.  `watchdog`: seconds after which a hung run ends."""

    rounds: int = 7
    launches: int = 5
    sustained_seconds: float = 0.5
    graph: bool = False
    watchdog: float = 600.0


@dataclass(frozen=True)
class Row:
    """One implementation.  Times are seconds, `note` says why there are none."""

    name: str
    burst: float | None = None
    sustained: float | None = None
    host: float | None = None
    error: float | None = None
    note: str = ""

    def tflops(self, flops: int, of: str = "burst") -> float | None:
        """TFLOP/s on live elements of the `burst` or `sustained` time."""
        seconds: float | None = getattr(self, of)
        return flops / seconds / 1e12 if seconds else None


@dataclass(frozen=True)
class Result:
    """What is written as JSON: one case on one device, with everything the figures depend on."""

    kernel: str
    extents: Mapping[str, int]
    live: int
    flops: int
    device: str
    date: str
    commit: str
    versions: Mapping[str, str]
    options: Options
    rows: tuple[Row, ...] = field(default=())

    def to_json(self) -> str:
        data = asdict(self)
        for row, out in zip(self.rows, data["rows"], strict=True):
            out["tflops"] = {k: row.tflops(self.flops, k) for k in ("burst", "sustained")}
        return json.dumps(data, indent=1)


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Ends the process with a traceback if the block takes longer: a hung kernel cannot be interrupted from Python."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def interleaved(calls: Mapping[str, Call], device: torch.device, options: Options) -> dict[str, float]:
    """Median burst of each call.  The order rotates from round to round, so that none always follows the same other."""
    names = list(calls)
    times: dict[str, list[float]] = {n: [] for n in names}
    for r in range(options.rounds):
        for i in range(len(names)):
            name = names[(i + r) % len(names)]
            times[name].append(timing.burst(calls[name], device, options.launches))
    return {n: statistics.median(t) for n, t in times.items()}


def bench(
    case: Case,
    own: Call,
    against: Sequence[str],
    options: Options = Options(),
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """Measures `own` (a call of no arguments that returns O) and the peers named in `against`.

    KeyError for a peer that does not exist; a peer that cannot express the case, or fails, becomes a row with a note."""
    calls: dict[str, Call] = {"tilec": own}
    rows: dict[str, Row] = {}
    reference: torch.Tensor | None = None
    with watchdog(options.watchdog):
        for name in ("tilec", *against):
            progress(f"building {name}")
            call, row = _prepare(name, case, own, reference)
            rows[name] = row
            if call is None:
                calls.pop(name, None)
                continue
            calls[name] = call
            reference = call() if reference is None else reference
        if options.graph:
            calls = {n: timing.captured(c, case.device) for n, c in calls.items()}
        progress("measuring bursts")
        bursts = interleaved(calls, case.device, options)
        for name, call in calls.items():
            progress(f"measuring {name}")
            rows[name] = Row(
                name,
                bursts[name],
                timing.sustained(call, case.device, options.sustained_seconds),
                timing.host_overhead(call, case.device),
                rows[name].error,
            )
    return Result(
        kernel=case.attn.name,
        extents=dict(case.extents),
        live=case.live,
        flops=case.flops,
        device=timing.device_name(case.device),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit(),
        versions=_versions(),
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

    Raises TargetFault E0905 for a symbol without a value, E0906 for a target that this machine cannot run."""
    from tilec.backends.runtime import device as devices
    from tilec.jit import load

    missing = [n for n in (*attn.extents, *unbound_constants(attn)) if n not in shape]
    if missing:
        hint = f"add --shape {','.join(f'{n}=…' for n in missing)}"
        raise TargetFault(
            "E0905", f"`{attn.name}` needs values for {', '.join(missing)}", hint=hint, source=spec.source
        )
    device = devices.first()
    if devices.target_of(device) != name:
        note = f"it has {devices.describe(device)}"
        raise TargetFault("E0906", f"this machine cannot run {name}", note=note)
    sizes = call_sizes(attn, shape)
    case = Case(bind(attn, {n: shape[n] for n in unbound_constants(attn)}), sizes, make_tensors(attn, sizes, device))
    kernel = load(Path(spec.source.path), kernel=attn.name, target=name, backend=backend)
    arguments = tuple(case.tensors[n] for n in kernel.signature.names)

    def own() -> torch.Tensor:
        with torch.no_grad():
            result = kernel(*arguments)
        return result[0] if isinstance(result, tuple) else result

    return bench(case, own, against, options, progress)


def _prepare(name: str, case: Case, own: Call, reference: torch.Tensor | None) -> tuple[Call | None, Row]:
    """The call, warmed up and compared with the first result; None with the reason where there is none."""
    if name == "tilec":
        own()
        return own, Row(name, error=0.0)
    peer = PEERS[name]
    lack = peer.why_not(case)
    if lack is not None:
        return None, Row(name, note=f"cannot: {lack}")
    try:
        call = peer.forward(case)
        result = call()
    except Exception as wrong:
        return None, Row(
            name, note=f"failed: {type(wrong).__name__}: {str(wrong).splitlines()[0] if str(wrong) else ''}"
        )
    if reference is None:
        return call, Row(name, error=0.0)
    error = distance(result, reference)
    if not error <= AGREE:
        return None, Row(name, error=error, note=f"disagrees with tilec: {error:.1e} of the largest output")
    return call, Row(name, error=error)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference, relative to the largest element of b.  NaN in either is NaN: it agrees with nothing."""
    scale = float(b.abs().max()) or 1.0
    return float((a.float() - b.float()).abs().max()) / scale


def commit() -> str:
    """The commit this package was checked out from, or `unknown` for an installed wheel."""
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


def _versions() -> dict[str, str]:
    found = timing.versions()
    for package in ("tilec", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def table(result: Result) -> Any:
    """The result as a rich table."""
    from rich.table import Table

    extents = ", ".join(f"{k}={v}" for k, v in result.extents.items())
    title = f"{result.kernel} ({extents}) on {result.device}, {result.flops / 1e12:.3f} TFLOP on live elements"
    out = Table(title=title, title_justify="left")
    out.add_column("")
    for head in ("burst TFLOP/s", "sustained TFLOP/s", "ms", "host us"):
        out.add_column(head, justify="right")
    out.add_column("note")
    for row in result.rows:
        cells = [_figure(row.tflops(result.flops)), _figure(row.tflops(result.flops, "sustained"))]
        cells += [_figure(row.burst and row.burst * 1e3, 3), _figure(row.host and row.host * 1e6)]
        out.add_row(row.name, *cells, row.note)
    return out


def _figure(x: float | None, digits: int = 1) -> str:
    return "" if x is None else f"{x:.{digits}f}"
