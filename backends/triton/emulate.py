"""Runs Triton's machine code for gfx942 on CPU tensors, in the emulator of `targets.gfx942`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tilec.backends.base import Artifact, Emulation
from tilec.backends.runtime.cache import Store
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.emulation import pointer
from tilec.backends.runtime.settings import settings
from tilec.backends.runtime.signature import Signature
from tilec.backends.triton.build import compile_kernel
from tilec.backends.triton.launch import order_of, scalars, source_of
from tilec.targets.gfx942.codeobject import read
from tilec.targets.gfx942.emulator import Emulator, spread

SCRATCH = (None, None)  # Triton's last two arguments: global and profile scratch, which these kernels do not use


def load(artifact: Artifact, signature: Signature) -> EmulatedKernel:
    """`Emulated` of `backends.base`."""
    return EmulatedKernel(artifact, signature)


class EmulatedKernel:
    """One compiled kernel; compiles at once, decodes at the first call."""

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        self.artifact, self.signature = artifact, signature
        chosen = settings()
        name, source = source_of(artifact)
        aligned = "aligned" in artifact.variant.features
        store = Store(chosen.cache, chosen.lock_wait)
        self.compiled = compile_kernel(name, source, artifact.metadata, artifact.target, aligned=aligned, store=store)
        self.emulator = Emulator(read(self.compiled.asm["hsaco"]))
        self.order = order_of(artifact, signature)

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
        values, blocks = scalars(self.artifact, self.signature, bound)
        chosen = spread(blocks, most_blocks)
        both: list[Tensor] = [*tensors, *outputs]
        names = [a[2] for a in self.artifact.metadata["arguments"] if a[1] in ("pointer", "box")]
        pointers = [pointer(both[i], name) for i, name in zip(self.order, names, strict=True)]
        arguments: list[Any] = [*pointers, *values, *SCRATCH]
        run = self.emulator.launch(
            self.artifact.metadata["function"],
            (blocks, 1, 1),
            (64 * self.artifact.metadata["warps"], 1, 1),
            arguments,
            lds=self.compiled.metadata.shared,
            order_seed=order_seed,
            only_blocks=[(n, 0, 0) for n in chosen],
            trace=trace,
            progress=lambda done: progress(done, len(chosen)),
        )
        return Emulation((run,), len(chosen), blocks)
