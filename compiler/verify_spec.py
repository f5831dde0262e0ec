"""Runs a kernel on a target and holds it against the float64 oracle, by the rule of `oracle.numerics`.

Outputs are poisoned with NaN first, so that an element never written cannot pass; inputs come in every style of
`oracle.inputs` (plain, shifted rows, one-hot rows), with sequence lengths that straddle tile edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind
from tilec.ir.attention import Attention
from tilec.oracle.units import NEAREST, Units, units_of
from tilec.shapes import small_shapes

if TYPE_CHECKING:
    from tilec.backends.runtime.kernel import Kernel
    from tilec.oracle.numerics import Report

EMULATED = frozenset({"gfx942"})  # targets whose machine code can be run here
Progress = Callable[[str, int, int], None]  # what goes on, and how much of how much is done
OFFSET = 3  # of the dropout's counter: not 0, so that a call that forgets it is found


@dataclass(frozen=True)
class Outcome:
    """One call.  `reports`: one for each output and each gradient; `note`: what could not be tried, or what ran;
    `findings`: what an emulator has against the machine code; `cycles`: what a model of the machine predicts of it."""

    kernel: str
    target: str
    sizes: Mapping[str, int]
    style: str
    reports: tuple[Report, ...]
    note: str = ""
    findings: tuple[str, ...] = ()
    cycles: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.reports) and not self.findings

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
            "note": self.note,
            "findings": list(self.findings),
            "cycles": self.cycles,
            "outputs": outputs,
        }


@dataclass(frozen=True)
class Case:
    """One set of random inputs of a kernel.  `attn` has its constants bound; `seed` is of inputs and dropout."""

    attn: Attention
    sizes: Mapping[str, int]
    style: Any
    seed: int = 0
    units: Units = NEAREST

    def inputs(self) -> dict[str, Any]:
        """NumPy arrays by name."""
        from tilec.oracle.inputs import make_inputs

        return make_inputs(self.attn, self.sizes, self.seed, self.style, fnuz=self.units.fnuz)

    def poisoned(self, inputs: Mapping[str, Any], names: Iterable[str], device: str) -> dict[str, Any]:
        """Outputs as tensors on a device, full of NaN."""
        import numpy as np

        from tilec.oracle.dtypes import numpy_dtype
        from tilec.oracle.layout import bind as bind_call
        from tilec.oracle.tensors import to_torch

        call = bind_call(self.attn, inputs, self.sizes)
        dtypes = {n: numpy_dtype(self.attn.tensor(n).dtype, fnuz=self.units.fnuz) for n in names}
        return to_torch({n: np.full(call.shape(n), np.nan, np.float32).astype(t) for n, t in dtypes.items()}, device)

    def compared(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *, partial: bool = False
    ) -> tuple[Report, ...]:
        """Outputs (tensors) against the oracle; `partial`: their rows that were written."""
        from tilec.oracle.numerics import verify
        from tilec.oracle.tensors import from_torch

        return tuple(verify(self.attn, inputs, from_torch(outputs), **self.how, partial=partial).values())

    @property
    def how(self) -> dict[str, Any]:
        """What the oracle must know beside the inputs."""
        return {"sizes": self.sizes, "seed": self.seed, "offset": OFFSET, "units": self.units}

    @property
    def dropping(self) -> dict[str, int]:
        """What a call with dropout takes beside its tensors."""
        return {"seed": self.seed, "offset": OFFSET} if self.attn.dropout else {}


@dataclass(frozen=True)
class Trial:
    """A kernel on a device, and a case to run it on."""

    kernel: Kernel
    device: Any
    case: Case


def run_forward(trial: Trial) -> tuple[Report, ...]:
    """One call into poisoned outputs, each compared."""
    import torch

    from tilec.oracle.tensors import to_torch

    kernel, case, device = trial.kernel, trial.case, str(trial.device)
    inputs = case.inputs()
    outputs = case.poisoned(inputs, [o.name for o in kernel.signature.outputs], device)
    tensors = to_torch(inputs, device)
    out = tuple(outputs.values())
    with torch.no_grad():
        kernel(*(tensors[n] for n in kernel.signature.names), out=out if len(out) > 1 else out[0], **case.dropping)
    return case.compared(inputs, outputs)


def run_backward(trial: Trial) -> tuple[Report, ...]:
    """One call and its gradients through autograd, each compared; () for a kernel without a `grad` line.

    Raises TargetFault E0913 where the target computes no gradients."""
    import torch

    from tilec.oracle.numerics import verify_gradients
    from tilec.oracle.tensors import from_torch, to_torch

    kernel, case = trial.kernel, trial.case
    names = kernel.signature.gradients
    if not names:
        return ()
    inputs = case.inputs()
    tensors = to_torch(inputs, str(trial.device))
    for name in names:
        tensors[name].requires_grad_()
    results = kernel(*(tensors[n] for n in kernel.signature.names), **case.dropping)
    outputs = results if isinstance(results, tuple) else (results,)
    generator = torch.Generator().manual_seed(case.seed)
    slopes = [torch.randn(o.shape, generator=generator).to(device=o.device, dtype=o.dtype) for o in outputs]
    found = torch.autograd.grad(outputs, [tensors[n] for n in names], slopes)
    got = from_torch(dict(zip(names, found, strict=True)))
    given = from_torch({str(i): s.float() for i, s in enumerate(slopes)})
    reports = verify_gradients(case.attn, inputs, given["0"], got, given.get("1"), **case.how)
    return tuple(reports.values())


def verify_kernel(
    spec: Spec,
    attn: Attention,
    target_name: str,
    *,
    backend: str | None = None,
    constants: Mapping[str, int] | None = None,
    shape: Mapping[str, int] | None = None,
    seed: int = 0,
    cycles: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Iterator[Outcome]:
    """Outcomes over shapes and input styles; `shape` fixes extents, else several small ones are tried.

    A target that no device here is, but whose machine code can be emulated, is (see `verify_emulated`).  Raises TargetFault
    E0906 for a target that is neither that, nor the CPU, nor this machine's GPU."""
    import torch

    from tilec.backends.runtime import device as devices
    from tilec.jit import load
    from tilec.oracle.inputs import Style
    from tilec.targets import target

    device = torch.device("cpu") if target_name == "cpu" else devices.first()
    fixed = dict(constants or {})
    if devices.target_of(device) != target_name and target_name in EMULATED:
        from tilec.verify_emulated import verify_emulated

        yield from verify_emulated(
            spec,
            attn,
            target_name,
            backend=backend,
            constants=fixed,
            shape=shape,
            seed=seed,
            cycles=cycles,
            progress=progress,
        )
        return
    if devices.target_of(device) != target_name:
        raise TargetFault(
            "E0906",
            f"this machine cannot run {target_name}",
            note=f"it has {devices.describe(device)}",
            hint="`--target cpu` runs the tile program in the interpreter, `--target gfx942` machine code in an emulator",
        )
    options: dict[str, Any] = {"kernel": attn.name, "target": target_name, "backend": backend, **fixed}
    kernel = load(Path(spec.source.path), **options)
    machine = target(target_name)
    shapes = [*small_shapes(bind(attn, fixed), shape)]
    styles = get_args(Style)
    for number, sizes in enumerate(shapes):
        bound = bind(attn, {n: v for n, v in {**sizes, **fixed}.items() if n in kernel.signature.constants})
        for n, style in enumerate(styles):
            progress(said(attn, target_name, sizes, style), number * len(styles) + n, len(shapes) * len(styles))
            trial = Trial(kernel, device, Case(bound, sizes, style, seed, units_of(machine)))
            reports, note = run_forward(trial), ""
            try:
                reports += run_backward(trial)
            except TargetFault as lack:
                if lack.code != "E0913":
                    raise
                note = f"no gradients on {target_name}"
            yield Outcome(attn.name, target_name, sizes, style, reports, note)


def said(attn: Attention, target_name: str, sizes: Mapping[str, int], style: str) -> str:
    """A case in words."""
    return f"{attn.name} on {target_name}: {', '.join(f'{n}={v}' for n, v in sizes.items())}, {style} inputs"


def as_table(outcomes: list[Outcome]) -> Any:
    """Outcomes as a rich table: one line per output of a call, and one per finding."""
    from rich.table import Table

    table = Table()
    for head in ("kernel", "target", "sizes", "inputs", "output", "max error", "allowed", "rms", "allowed", ""):
        table.add_column(head)
    for o in outcomes:
        sizes = " ".join(f"{n}={v}" for n, v in o.sizes.items())
        for r in o.reports:
            figures = [f"{x:.2e}" for x in (r.error_max, r.allowed_max, r.error_rms, r.allowed_rms)]
            table.add_row(
                o.kernel, o.target, sizes, o.style, r.name, *figures, r.complaint or f"ok{o.note and ', '}{o.note}"
            )
        for f in o.findings:
            table.add_row(o.kernel, o.target, sizes, o.style, "", "", "", "", "", f)
    return table
