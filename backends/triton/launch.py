"""Runs a Triton kernel on CUDA or HIP tensors, or under Triton's interpreter on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import getclosurevars
from typing import Any

import torch
from torch import Tensor

from tilec.backends.base import Artifact, Run
from tilec.backends.runtime.cache import Store
from tilec.backends.runtime.checks import Bound
from tilec.backends.runtime.settings import settings
from tilec.backends.runtime.signature import Signature
from tilec.backends.runtime.torch_op import inputs_of
from tilec.backends.triton.build import compile_kernel


def load(artifact: Artifact, signature: Signature, device: torch.device) -> TritonLauncher | InterpretedLauncher:
    """The launcher of `backends.base`."""
    if artifact.metadata["interpret"]:
        return InterpretedLauncher(artifact, signature)
    return TritonLauncher(artifact, signature)


def source_of(artifact: Artifact) -> tuple[str, str]:
    """(file name, text) of the generated Triton module."""
    return next((n, t) for n, t in artifact.sources.items() if n.endswith(".triton.py"))


def scalars(artifact: Artifact, signature: Signature, bound: Bound) -> tuple[list[int], int]:
    """(strides and extents in the kernel's order, number of blocks) of one call shape."""
    outputs = bound.output_strides or tuple(o.strides for o in bound.outputs)
    strides = dict(
        zip([*signature.names, *(o.name for o in signature.outputs)], (*bound.strides, *outputs), strict=True)
    )
    values: list[int] = []
    for _, kind, of, dimension in artifact.metadata["arguments"]:
        if kind in ("stride", "extent"):
            values.append(strides[of][dimension] if kind == "stride" else bound.extents[of])
    scope = {**bound.extents, **artifact.metadata["tile"], "min": min, "max": max}
    return values, int(eval(artifact.metadata["ctas"], {"__builtins__": {}}, scope))


def order_of(artifact: Artifact, signature: Signature) -> list[int]:
    """For each tensor argument of the kernel, which of (arguments + outputs) it is."""
    names = [*inputs_of(signature), *(o.name for o in signature.outputs)]
    return [names.index(of) for _, kind, of, _ in artifact.metadata["arguments"] if kind in ("pointer", "box")]


class Box:
    """What Triton's launcher reads of a tensor descriptor, without the checks that `aligned` has already made.

    A dimension of one element may have any stride in torch; a tensor map wants a multiple of 16 bytes there too."""

    __slots__ = ("base", "padding", "shape", "strides")

    def __init__(self, base: Tensor) -> None:
        self.base, self.shape, self.padding = base, base.shape, "zero"
        strides = [s if n > 1 else LEGAL_STRIDE for n, s in zip(base.shape, base.stride(), strict=True)]
        self.strides = (*strides[:-1], 1)


LEGAL_STRIDE = 16  # elements: at least 16 bytes of any dtype
MAPS = 64  # tensor maps kept per call shape; an allocator hands out few addresses
CALLS = 64  # argument lists kept per call shape


class Direct:
    """Triton's C launch function without the Python around it, which costs 8 us a call and encodes tensor maps anew each
    time.  Only for CUDA kernels that need no scratch memory: `of` gives None for others."""

    def __init__(self, launch: Callable[..., None], head: tuple[Any, ...], metas: Sequence[Any]) -> None:
        self.launch, self.head, self.metas = launch, head, metas

    @staticmethod
    def of(run: Any, boxes: int) -> Direct | None:
        """From `CompiledKernel.run`."""
        if type(run).__name__ != "CudaLauncher" or run.global_scratch_size or run.profile_scratch_size:
            return None
        inside = getclosurevars(run.launch).nonlocals if boxes else {}
        launch = inside.get("launcher", run.launch)
        metas = inside.get("tensordesc_meta") or []
        if len(metas) != boxes or None in metas:
            return None
        return Direct(launch, (run.launch_cooperative_grid, run.launch_pdl, None, None), metas)

    def tensor_map(self, number: int, t: Tensor, maps: dict[Any, list[Any]]) -> list[Any]:
        """The arguments that stand for box `number` over tensor `t`."""
        key = (number, t.data_ptr())
        found = maps.get(key)
        if found is None:
            from triton.backends.nvidia.driver import make_tensordesc_arg

            if len(maps) >= MAPS:
                maps.clear()
            found = maps[key] = make_tensordesc_arg(Box(t), self.metas[number])
        return found


class TritonLauncher:
    """One compiled kernel.  Launches Triton's compiled object directly: no binder, no key of arguments per call."""

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        self.artifact, self.signature = artifact, signature
        name, source = source_of(artifact)
        aligned = "aligned" in artifact.variant.features
        chosen = settings()
        store = Store(chosen.cache, chosen.lock_wait)
        self.kernel = compile_kernel(name, source, artifact.metadata, artifact.target, aligned=aligned, store=store)
        kinds = [kind for _, kind, _, _ in artifact.metadata["arguments"] if kind in ("pointer", "box")]
        self.order = order_of(artifact, signature)
        numbers = iter(range(len(kinds)))
        self.boxes = [next(numbers) if kind == "box" else None for kind in kinds]  # number of the box, by argument
        self.constants = tuple(artifact.metadata["constants"].values())

    def prepare(self, bound: Bound) -> Run:
        """A direct launch where Triton's launcher allows one."""
        values, blocks = scalars(self.artifact, self.signature, bound)
        run = self.kernel.run
        boxes = [(i, n) for i, n in zip(self.order, self.boxes, strict=True) if n is not None]
        direct = Direct.of(run, len(boxes))
        index = bound.device.index if bound.device.index is not None else torch.cuda.current_device()
        head = (self.kernel.function, *(direct.head if direct else ()), self.kernel.packed_metadata, None, None, None)
        tail = (*values, *self.constants)
        order, numbers = self.order, self.boxes
        if direct is None:

            def general(tensors: Sequence[Tensor], outputs: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
                both = (*tensors, *outputs)
                given = [addresses[i] if n is None else Box(both[i]) for i, n in zip(order, numbers, strict=True)]
                run(blocks, 1, 1, torch._C._cuda_getCurrentRawStream(index), *head, *given, *tail)

            return general
        known: dict[tuple[int, ...], list[Any]] = {}
        maps: dict[Any, list[Any]] = {}

        def launch(tensors: Sequence[Tensor], outputs: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
            given = known.get(addresses)
            if given is None:
                both, given = (*tensors, *outputs), []
                for i, n in zip(order, numbers, strict=True):
                    given += [addresses[i]] if n is None else direct.tensor_map(n, both[i], maps)
                if len(known) >= CALLS:
                    known.clear()
                known[addresses] = given
            direct.launch(blocks, 1, 1, torch._C._cuda_getCurrentRawStream(index), *head, *given, *tail)

        return launch


class InterpretedLauncher:
    """The same kernel under Triton's CPU interpreter, in a process of its own (see `worker`)."""

    def __init__(self, artifact: Artifact, signature: Signature) -> None:
        self.artifact, self.signature = artifact, signature
        self.order = order_of(artifact, signature)

    def prepare(self, bound: Bound) -> Run:
        """The interpreter, for that shape."""
        return partial(self.run, *scalars(self.artifact, self.signature, bound))

    def run(
        self,
        values: list[int],
        blocks: int,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        addresses: tuple[int, ...],
    ) -> None:
        """Fills `outputs`."""
        from tilec.backends.triton.worker import client

        both: list[Any] = [*tensors, *outputs]
        written = {*addresses[len(tensors) :]}
        client().run(
            source_of(self.artifact),
            self.artifact.metadata,
            [both[i] for i in self.order],
            [addresses[i] in written for i in self.order],
            values,
            blocks,
        )
