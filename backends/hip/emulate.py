"""Runs the hip backend's code objects on CPU tensors, in the emulator of `targets.gfx942`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tilec.backends.base import Artifact, Emulation
from tilec.backends.hip.arguments import blocks, known
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.emulation import pointer
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import inputs_of
from tilec.targets import target
from tilec.targets.gfx942.codeobject import read
from tilec.targets.gfx942.emulator import Emulator, spread


def load(artifact: Artifact, signature: Signature) -> EmulatedKernel:
    """`Emulated` of `backends.base`."""
    return EmulatedKernel(artifact, signature)


class EmulatedKernel:
    """One code object, decoded at the first call."""

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        self.metadata, self.units = artifact.metadata, target(artifact.target).units
        (code,) = artifact.binaries.values()
        self.emulator = Emulator(read(code))
        self.names = [*inputs_of(signature), *(o.name for o in signature.outputs)]

    def __call__(
        self,
        bound: Bound,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        most_blocks: int,
        order_seed: int | None,
        progress: Callable[[int, int], None],
        trace: bool = False,
    ) -> Emulation:
        extents = known(self.metadata, bound.extents, self.units)
        count = blocks(self.metadata, extents)
        chosen = spread(count, most_blocks)
        given = dict(zip(self.names, (*tensors, *outputs), strict=True))
        arguments: list[Any] = []
        for _, kind, of, dimension in self.metadata["arguments"]:
            match kind:
                case "pointer":
                    arguments.append(pointer(given[of], of))
                case "stride":
                    arguments.append(given[of].stride(dimension))
                case _:
                    arguments.append(extents[of])
        run = self.emulator.launch(
            self.metadata["function"],
            (count, 1, 1),
            (self.metadata["threads"], 1, 1),
            arguments,
            order_seed=order_seed,
            only_blocks=[(n, 0, 0) for n in chosen],
            trace=trace,
            progress=lambda done: progress(done, len(chosen)),
        )
        return Emulation((run,), len(chosen), count)
