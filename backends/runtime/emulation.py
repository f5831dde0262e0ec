"""CPU tensors as arguments of emulated kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from tilec.targets.gfx942.emulator import Pointer


def pointer(t: Tensor, name: str) -> Pointer:
    """A CPU tensor's first element, in all of its storage; `name` is told where an access goes astray."""
    storage = torch.tensor([], dtype=torch.uint8).set_(t.detach().untyped_storage())
    return Pointer(storage.numpy(), t.storage_offset() * t.element_size(), name)
