"""`make demo`: compiles the examples, runs them on the GPU or, without one, in the interpreter, checks them against
float64, and prints a table.  Exit code 1 if a result is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilec.frontend import Spec, bind, read_spec
from tilec.ir.attention import Attention
from tilec.shapes import call_sizes, small_shapes
from tilec.terminal import progress, show_table
from tilec.verify_spec import Case, Trial, run_forward

EXAMPLES = ("causal_gqa", "window_sinks", "documents", "softcap_alibi", "dilated", "packed_varlen", "chunked")
FOLDER = Path(__file__).resolve().parent.parent / "examples"
CHECKED = {"cpu": 96, "gpu": 512}  # rows and keys where the float64 oracle has to keep up
TIMED = 8192  # on a GPU


@dataclass(frozen=True)
class Line:
    """One example: the worst error over its outputs as a share of what is allowed, and the speed on a GPU."""

    kernel: str
    target: str
    checked: dict[str, int]
    ok: bool
    share: float
    milliseconds: float | None = None
    tflops: float | None = None


def sizes_for(attn: Attention, length: int) -> dict[str, int]:
    """Extents with `length` rows and keys."""
    moving = {str(attn.index(i).extent) for i in (attn.q, attn.k)} & set(attn.extents)
    return next(small_shapes(attn, dict.fromkeys(moving, length)))


def run_example(spec: Spec, attn: Attention, name: str, device: Any) -> Line:
    """Compiles, checks and, on a GPU, times one kernel."""
    from tilec.jit import load
    from tilec.oracle.units import units_of
    from tilec.targets import target

    on_gpu = name != "cpu"
    kernel = load(Path(spec.source.path), kernel=attn.name, target=name)
    sizes = sizes_for(attn, CHECKED["gpu" if on_gpu else "cpu"])
    bound = bind(attn, {n: sizes[n] for n in kernel.signature.constants})
    reports = run_forward(Trial(kernel, device, Case(bound, sizes, "normal", units=units_of(target(name)))))
    share = max(r.error_max / r.allowed_max for r in reports)
    line = Line(attn.name, name, sizes, all(r.ok for r in reports), share)
    return timed(line, kernel, bound, device) if on_gpu else line


def timed(line: Line, kernel: Any, attn: Attention, device: Any) -> Line:
    """The line with the speed at `TIMED` rows and keys, in bursts."""
    import torch

    from tilec.backends.runtime import timing
    from tilec.peers.case import Case, make_tensors

    sizes = call_sizes(attn, sizes_for(attn, TIMED))
    case = Case(attn, sizes, make_tensors(attn, sizes, device))
    arguments = [case.tensors[n] for n in kernel.signature.names]
    with torch.no_grad():
        kernel(*arguments)
        seconds = min(timing.burst(lambda: kernel(*arguments), device, 5) for _ in range(5))
    tflops = case.flops / seconds / 1e12
    return Line(line.kernel, line.target, line.checked, line.ok, line.share, seconds * 1e3, tflops)


def lines() -> Iterator[Line]:
    """One line for each example."""
    from tilec.backends.runtime import device as devices

    device = devices.first()
    with progress("loading") as say:
        for example in EXAMPLES:
            spec = read_spec(FOLDER / example / "spec.tile")
            for attn in spec.kernels:
                say(f"{attn.name} on {devices.describe(device)}")
                yield run_example(spec, attn, devices.target_of(device), device)


def as_table(found: list[Line]) -> Any:
    """The lines as a rich table."""
    from rich.table import Table

    out = Table()
    for head in ("kernel", "target", "checked at", "error / allowed", "", "ms", "TFLOP/s"):
        out.add_column(head)
    for x in found:
        sizes = " ".join(f"{n}={v}" for n, v in x.checked.items())
        speed = [f"{x.milliseconds:.3f}", f"{x.tflops:.0f}"] if x.milliseconds and x.tflops else ["", ""]
        out.add_row(x.kernel, x.target, sizes, f"{x.share:.2f}", "ok" if x.ok else "WRONG", *speed)
    return out


def main() -> int:
    """Prints the table; the exit code."""
    found = list(lines())
    show_table(as_table(found))
    return 0 if found and all(x.ok for x in found) else 1


if __name__ == "__main__":
    sys.exit(main())
