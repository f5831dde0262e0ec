"""Runs a kernel on a target and holds it against the float64 oracle, by the rule of `oracle.numerics`.

Outputs are poisoned with NaN first, so that an element never written cannot pass; inputs come in every style of
`oracle.inputs` (plain, shifted rows, one-hot rows), with sequence lengths that straddle tile edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind
from tilec.ir.attention import Attention
from tilec.shapes import small_shapes

if TYPE_CHECKING:
    from tilec.backends.runtime.kernel import Kernel
    from tilec.oracle.numerics import Report


@dataclass(frozen=True)
class Outcome:
    """One call.  `reports`: one for each output."""

    kernel: str
    target: str
    sizes: Mapping[str, int]
    style: str
    reports: tuple[Report, ...]

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.reports)

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        outputs = [
            {
                "name": r.name,
                "ok": r.ok,
                "max_error": r.error_max,
                "max_allowed": r.allowed_max,
                "rms_error": r.error_rms,
                "rms_allowed": r.allowed_rms,
                "complaint": r.complaint,
            }
            for r in self.reports
        ]
        return {
            "kernel": self.kernel,
            "target": self.target,
            "sizes": dict(self.sizes),
            "style": self.style,
            "ok": self.ok,
            "outputs": outputs,
        }


def run_once(
    kernel: Kernel,
    attn: Attention,
    device: Any,
    sizes: Mapping[str, int],
    style: Any,
    *,
    seed: int = 0,
    fnuz: bool = False,
) -> tuple[Report, ...]:
    """One call on random inputs of these sizes, each output compared.  `attn` has its constants bound."""
    import torch

    from tilec.oracle.inputs import make_inputs
    from tilec.oracle.numerics import verify
    from tilec.oracle.tensors import from_torch, to_torch

    inputs = make_inputs(attn, sizes, seed, style, fnuz=fnuz)
    tensors = to_torch(inputs, str(device))
    given = tuple(tensors[n] for n in kernel.signature.names)
    with torch.no_grad():
        bound = kernel.plan(given, None).bound
        poisoned = tuple(torch.full(o.shape, float("nan"), device=device).to(o.dtype) for o in bound.outputs)
        kernel(*given, out=poisoned if len(poisoned) > 1 else poisoned[0])
    names = [o.name for o in kernel.signature.outputs]
    got = from_torch(dict(zip(names, poisoned, strict=True)))
    return tuple(verify(attn, inputs, got, sizes=sizes, fnuz=fnuz).values())


def verify_kernel(
    spec: Spec,
    attn: Attention,
    target_name: str,
    *,
    backend: str | None = None,
    constants: Mapping[str, int] | None = None,
    shape: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Outcome]:
    """Outcomes over shapes and input styles; `shape` fixes extents, else several small ones are tried.

    Raises TargetFault E0906 for a target that is neither the CPU nor this machine's GPU."""
    import torch

    from tilec.backends.runtime import device as devices
    from tilec.jit import load
    from tilec.oracle.inputs import Style
    from tilec.targets import target

    device = torch.device("cpu") if target_name == "cpu" else devices.first()
    if devices.target_of(device) != target_name:
        raise TargetFault(
            "E0906",
            f"this machine cannot run {target_name}",
            note=f"it has {devices.describe(device)}",
            hint="`--target cpu` runs the tile program in the interpreter",
        )
    fixed = dict(constants or {})
    options: dict[str, Any] = {"kernel": attn.name, "target": target_name, "backend": backend, **fixed}
    kernel = load(Path(spec.source.path), **options)
    fnuz = target(target_name).fp8 == "fnuz"
    for sizes in small_shapes(bind(attn, fixed), shape):
        bound = bind(attn, {n: v for n, v in {**sizes, **fixed}.items() if n in kernel.signature.constants})
        for style in get_args(Style):
            progress(f"{attn.name} on {target_name}: {', '.join(f'{n}={v}' for n, v in sizes.items())}, {style} inputs")
            reports = run_once(kernel, bound, device, sizes, style, seed=seed, fnuz=fnuz)
            yield Outcome(attn.name, target_name, sizes, style, reports)


def as_table(outcomes: list[Outcome]) -> Any:
    """Outcomes as a rich table: one line per output of a call."""
    from rich.table import Table

    table = Table()
    for head in ("kernel", "target", "sizes", "inputs", "output", "max error", "allowed", "rms", "allowed", ""):
        table.add_column(head)
    for o in outcomes:
        sizes = " ".join(f"{n}={v}" for n, v in o.sizes.items())
        for r in o.reports:
            figures = [f"{x:.2e}" for x in (r.error_max, r.allowed_max, r.error_rms, r.allowed_rms)]
            table.add_row(o.kernel, o.target, sizes, o.style, r.name, *figures, "ok" if r.ok else r.complaint)
    return table
