"""What a backend is: a compiler from an Attention to an Artifact, and a launcher that runs an Artifact on a device.

    Attention, target, schedule, variant --compile--> Artifact --launch.load--> Launcher --call--> outputs

`compile` needs no device and no torch; an Artifact is bytes and text, so it can be cached, shipped beside a generated
module and read by a person.  The launch half lives in `backends/<name>/launch.py`, found by name, and exports

    def load(artifact: Artifact, signature: Signature, device: torch.device) -> Launcher

so that a generated module gets it without importing the compile half.

## Variants

One spec becomes one binary per Variant.  `constants` are values of the symbols that a tile needs as numbers
(`Signature.constants`: head dims, group sizes).  `features` are facts about the tensors of the call that a backend may
compile for; the runtime computes them once per call shape and keeps those that `Backend.features` lists:

    aligned   base address and every stride but the last of each query, key, value and output: multiples of 16 bytes, and
              strides not 0
    unit      the last dimension of every param, bias and sink is contiguous
    round     the rows and keys that memory holds are multiples of 16
    short     memory holds at most 64 query rows of each sequence
    few_keys  sequences are dense and have at most 1024 keys each; many_keys: more than 4096

A variant without a feature must be correct for every legal call; a feature only permits faster code.

## What a launcher may assume of the tensors

Checked before it is called: dtypes, extents, one device.  The last dimension of every query, key and value is contiguous
(stride 1, or extent at most 1); every other stride is arbitrary, 0 included.  Params, biases and sinks have arbitrary strides.
Tables are contiguous.  Outputs are contiguous unless the caller brought its own (`Bound.output_strides` tells), never
overlap themselves, and their last dimension is contiguous.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from tilec.dsl.faults import TargetFault

if TYPE_CHECKING:
    import torch

    from tilec.backends.runtime.checks import Bound
    from tilec.backends.runtime.signature import Signature
    from tilec.ir.attention import Attention
    from tilec.schedule import Schedule
    from tilec.targets.gfx942.emulator import Run as EmulatorRun

PROGRAM = "program.tile_ir"  # source file of an artifact of a native backend: what was printed

Feature = Literal["aligned", "unit", "round", "short", "few_keys", "many_keys"]
SHORT_ROWS = 64  # of a sequence, at most
FEW_KEYS, MANY_KEYS = 1024, 4096  # of a sequence: at most, and more than
LENGTHS: frozenset[Feature] = frozenset({"few_keys", "many_keys"})


def usual(features: frozenset[str]) -> frozenset[str]:
    """Those of `features` that calls of many rows in well-aligned tensors have, however many keys there are."""
    return features - LENGTHS - {"short"}


@dataclass(frozen=True)
class Variant:
    """What one binary is specialised for."""

    constants: tuple[tuple[str, int], ...] = ()
    features: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return " ".join([*(f"{n}={v}" for n, v in self.constants), *sorted(self.features)]) or "general"


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel of one target and variant.

    `sources`: file name -> text (the printed program, CUDA C++, Triton).  `binaries`: file name -> bytes (cubin, code object).
    `metadata`: JSON values that the launcher needs and `explain` shows: entry names, grid, shared memory, registers.
    `passed_over`: a line, with the reason, for each backend that the target prefers and that did not take the kernel."""

    kernel: str
    target: str
    backend: str
    variant: Variant = Variant()
    sources: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    binaries: Mapping[str, bytes] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    def describe(self) -> str:
        """A few lines for a person: what it is, what it is specialised for, the files and the metadata."""
        sizes = [f"{n} ({len(t.splitlines())} lines)" for n, t in self.sources.items()]
        sizes += [f"{n} ({len(b)} bytes)" for n, b in self.binaries.items()]
        facts = [f"  {k}: {json.dumps(v)}" for k, v in self.metadata.items()]
        return "\n".join(
            [
                f"{self.kernel} for {self.target} by {self.backend}, {self.variant}",
                *(f"  {line}" for line in self.passed_over),
                "  " + ", ".join(sizes),
                *facts,
            ]
        )

    def to_files(self) -> dict[str, bytes]:
        """The artifact as files; `from_files` reads them back to an equal artifact."""
        head = {
            "kernel": self.kernel,
            "target": self.target,
            "backend": self.backend,
            "constants": list(self.variant.constants),
            "features": sorted(self.variant.features),
            "sources": list(self.sources),
            "metadata": dict(self.metadata),
            "passed_over": list(self.passed_over),
        }
        files = {"artifact.json": json.dumps(head, indent=1).encode()}
        files |= {n: t.encode() for n, t in self.sources.items()}
        return files | dict(self.binaries)

    @staticmethod
    def from_files(files: Mapping[str, bytes]) -> Artifact:
        """The artifact that `to_files` wrote."""
        head = json.loads(files["artifact.json"])
        text = set(head["sources"])
        return Artifact(
            kernel=head["kernel"],
            target=head["target"],
            backend=head["backend"],
            variant=Variant(tuple((n, v) for n, v in head["constants"]), frozenset(head["features"])),
            sources={n: files[n].decode() for n in head["sources"]},
            metadata=head["metadata"],
            binaries={n: b for n, b in files.items() if n != "artifact.json" and n not in text},
            passed_over=tuple(head["passed_over"]),
        )


class Backend(Protocol):
    """The compile half.  Each package `tilec.backends.<name>` exports one as `BACKEND`."""

    name: str
    features: frozenset[Feature]

    def check(self, attn: Attention, target: str, features: frozenset[str]) -> None:
        """Raises Faults for what it cannot make a kernel of: known at once, before anything is lowered.

        E0914 for a feature of the spec, or for calls without a feature that all its kernels need."""
        ...

    def telling(
        self, attn: Attention, target: str, schedule: Schedule, features: frozenset[Feature]
    ) -> frozenset[Feature]:
        """Those of `features` that what is compiled depends on, for a kernel that `check` takes: calls that differ in others
        share a binary."""
        ...

    def toolchain(self, target: str) -> Mapping[str, str]:
        """Names and versions of the tools that `compile` uses, and settings that change its code, for the cache key.

        Raises TargetFault E09 when a tool is missing."""
        ...

    def compile(self, attn: Attention, target: str, schedule: Schedule, variant: Variant) -> Artifact:
        """Compiles.  `attn` has `variant.constants` substituted already.  Raises ScheduleFault or TargetFault."""
        ...


class Run(Protocol):
    """Launches calls of one shape.  Called with the device current; uses the current stream; threads may share it.

    `tensors` are the arguments in the signature's order, with dropout its seed and offset as the last; `outputs` those of the
    signature, already allocated and not empty; `addresses` of all of them in this order, which the caller has at hand.
    Where query rows are packed or padded, outputs come filled as dead rows (0 and -inf), so rows of no sequence stay so.
    A call never synchronises and never allocates an amount that depends on device data."""

    def __call__(
        self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], addresses: tuple[int, ...]
    ) -> None: ...


class Launcher(Protocol):
    """A kernel loaded on one device."""

    def prepare(self, bound: Bound) -> Run:
        """What depends on shapes and strides alone is worked out here, once for all calls of equal metadata."""
        ...


class Differentiable(Launcher, Protocol):
    """A launcher whose kernel has a backward on this target."""

    def backward(
        self,
        bound: Bound,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        d_outputs: Sequence[torch.Tensor | None],
        d_inputs: Sequence[torch.Tensor],
    ) -> None:
        """Fills `d_inputs`, one per name of `Signature.gradients`, of the shape and dtype of that argument; `d_outputs` is one
        per output, None for one that nothing depends on."""
        ...


@dataclass(frozen=True)
class Emulation:
    """What an emulated call did: a run of each kernel launched, and how many of how many blocks ran."""

    runs: tuple[EmulatorRun, ...]
    ran: int
    blocks: int


class Emulated(Protocol):
    """A kernel's machine code on the CPU: an emulator of the target runs it on CPU tensors, so that it can be checked where
    no such device is.  Called as a launcher is.  Of more than `most_blocks` blocks so many run, spread over the grid with
    the first and the last among them; what the others would write stays as it is.  `order_seed` is of the order of waves;
    `progress` is told how many of how many blocks are done; `trace` keeps what each wave ran."""

    def __call__(
        self,
        bound: Bound,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        most_blocks: int,
        order_seed: int | None,
        progress: Callable[[int, int], None],
        trace: bool = False,
    ) -> Emulation: ...


Load = Callable[[Artifact, "Signature", "torch.device"], Launcher]


def backend(name: str) -> Backend:
    """The compile half of that name; which backends serve a target is the target's to say.

    Raises TargetFault E0910 where this installation has no such backend."""
    if find_spec(f"tilec.backends.{name}") is None:
        raise TargetFault("E0910", f"this installation has no backend `{name}`")
    return cast("Backend", import_module(f"tilec.backends.{name}").BACKEND)


def emulated(artifact: Artifact, signature: Signature) -> Emulated:
    """An artifact's machine code in its target's emulator, by `load` of that backend's `emulate.py`."""
    made = import_module(f"tilec.backends.{artifact.backend}.emulate").load(artifact, signature)
    return cast("Emulated", made)


def launch_half(name: str) -> Load:
    """`load` of that backend's `launch.py`."""
    return cast("Load", import_module(f"tilec.backends.{name}.launch").load)
