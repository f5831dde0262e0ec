"""The shape of one call: extents bound from the tensors, and everything that follows from their metadata alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Output:
    """Shape and dtype to allocate for one output, in the spec's order of dimensions."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Bound:
    """One call shape.  `extents`: every symbol of the signature.  `features`: what `backends.base` lists under Variants.

    `strides` are those of the arguments, in elements.  `empty`: `outputs` when no output has an element, `keys` when no
    position is live anywhere; neither is launched.  `memo` belongs to the launcher."""

    extents: dict[str, int]
    constants: tuple[tuple[str, int], ...]
    features: frozenset[str]
    strides: tuple[tuple[int, ...], ...]
    outputs: tuple[Output, ...]
    device: torch.device
    empty: Literal["no", "outputs", "keys"] = "no"
    memo: dict[str, object] = field(default_factory=dict)
