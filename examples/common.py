"""What the examples share: the device, sizes that suit it, random tensors, and the check against float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from tilec.backends.runtime.device import target_of
from tilec.frontend import read_spec
from tilec.oracle.numerics import verify, verify_gradients
from tilec.oracle.tensors import from_torch
from tilec.oracle.units import units_of
from tilec.targets import target

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def pick(*, gpu: int, cpu: int) -> int:
    """A size that this machine gets through in a second."""
    return gpu if ON_GPU else cpu


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Standard normals on the device."""
    return torch.randn(shape, dtype=torch.float32).to(DEVICE, dtype)


def ints(values: object) -> torch.Tensor:
    """An int32 table on the device."""
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def check(
    spec: Path,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor] | None = None,
    slopes: tuple[torch.Tensor, ...] = (),
) -> int:
    """Prints one line, and gives the exit status: 0 if every output, and every gradient for the output gradients `slopes`, is
    within twice the error of a dense computation in the same dtypes."""
    attn = read_spec(spec).kernels[0]
    arrays = from_torch(inputs)
    machine = target(target_of(DEVICE))
    units = units_of(machine)
    reports = list(verify(attn, arrays, from_torch(outputs), units=units).values())
    if gradients is not None:
        d = list(from_torch({str(i): t for i, t in enumerate(slopes)}).values())
        reports += verify_gradients(attn, arrays, d[0], from_torch(gradients), *d[1:]).values()
    where = torch.cuda.get_device_name() if ON_GPU else "cpu"
    print(f"{attn.name} on {where}: {'; '.join(map(str, reports))}")
    return 0 if all(r.ok for r in reports) else 1
