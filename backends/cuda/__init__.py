"""The cuda backend: readable CUDA C++ for Hopper from a tile program of concurrent roles, compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from tilec.backends.base import LENGTHS, PROGRAM, Artifact, Feature, Variant
from tilec.dsl.faults import TargetFault

if TYPE_CHECKING:
    from tilec.backends.cuda.emit import Printed
    from tilec.ir.attention import Attention
    from tilec.ir.nodes import Program
    from tilec.schedule import Schedule

ALIGNED: frozenset[Feature] = frozenset({"aligned"})  # what tensor maps and 16-byte stores need of every call
SHORT: frozenset[Feature] = frozenset({"short"})  # few queries: heads that share a key head share a tile
TRIES = 8  # programs given to the assembler before its complaint is the user's


class Cuda:
    """Compiles by printing CUDA C++ of a native program.  Needs no device; machine code is made here."""

    name = "cuda"
    features = ALIGNED | SHORT | LENGTHS

    def check(self, attn: Attention, target: str, features: frozenset[str]) -> None:
        """What `limits` refuses, and calls whose tensors are not aligned."""
        from tilec.backends.cuda.limits import HINT, check_limits

        if not features >= ALIGNED:
            raise TargetFault(
                "E0914",
                f"`{attn.name}` has no native code for tensors that are not aligned",
                note="tensor maps take addresses and strides that are multiples of 16 bytes, and not 0",
                hint=HINT,
            )
        check_limits(attn, target)

    def telling(
        self, attn: Attention, target: str, schedule: Schedule, features: frozenset[Feature]
    ) -> frozenset[Feature]:
        """All but a class of lengths for which the tuning table has no shape of its own."""
        from tilec.native import length_matters

        kept = features & self.features
        return kept if length_matters(attn, target, schedule, kept) else kept - LENGTHS

    def toolchain(self, target: str) -> Mapping[str, str]:
        """Version of NVRTC, and the user's tuning record, if there is one.  Raises TargetFault E0911 without NVRTC, CallFault
        E1060 for a record that cannot be read."""
        from tilec.backends.cuda.build import toolchain
        from tilec.user_record import record_digest

        digest = record_digest()
        return {**toolchain(), **({"record": digest} if digest else {})}

    def compile(self, attn: Attention, target: str, schedule: Schedule, variant: Variant) -> Artifact:
        """Lowers, prints and compiles `attn`: the first shape whose registers the assembler keeps.

        Raises the faults of `native.programs`, TargetFault E0914 for a kernel or a variant without native code, and those of
        `compile_program` for the first shape if none is kept."""
        from tilec.backends.cuda.emit import emit
        from tilec.backends.cuda.limits import HINT
        from tilec.native import programs

        self.check(attn, target, variant.features)
        first: TargetFault | None = None
        for program in islice(programs(attn, target, schedule, variant.features), TRIES):
            try:
                printed = emit(program)
            except ValueError as lacking:
                message = f"the cuda backend has no code for `{attn.name}` on {target}"
                raise TargetFault("E0914", message, note=str(lacking), hint=HINT) from lacking
            try:
                return _artifact(program, printed, variant)
            except TargetFault as spilled:
                if spilled.code != "E0918":
                    raise
                first = first or spilled
        assert first is not None
        raise first


def compile_program(program: Program, variant: Variant | None = None, arch: str | None = None) -> Artifact:
    """Prints and compiles a lowered program: source, cubin and what a launch needs.  `arch`: the machine code's, where it is to
    run on a later machine than the program's target (`sm_90`); None for the target's own.

    Raises ValueError for a program that the printer has no text for, TargetFault E0911 without NVRTC, E0917 where it fails,
    E0918 for a kernel that the assembler spills or whose products it does not overlap as scheduled, E0919 for machine code that
    is not the program's."""
    from tilec.backends.cuda.emit import emit

    return _artifact(program, emit(program), variant or Variant((), ALIGNED), arch)


def _artifact(program: Program, printed: Printed, variant: Variant, arch: str | None = None) -> Artifact:
    from tilec.backends.cuda.build import build
    from tilec.backends.cuda.check import check
    from tilec.backends.cuda.machine import check_cubin
    from tilec.ir.expr import show
    from tilec.ir.print import show_program
    from tilec.targets import target

    built = build(printed.text, printed.function, arch or target(program.target).arch)
    warps = all(r.unit == "warp" for r in program.roles)
    resources = check(built.log, printed.function, outside=warps)
    read = check_cubin(program, built.cubin, printed.function, [p.box for p in printed.parameters if p.box is not None])
    metadata = {
        "function": printed.function,
        "arguments": [[p.name, p.kind, p.of, p.dimension] for p in printed.parameters],
        "boxes": {
            p.name: {**asdict(p.box), "heads": list(p.box.heads)} for p in printed.parameters if p.box is not None
        },
        "tensors": {t.name: [t.mode, t.dtype, len(t.dims)] for t in program.tensors},
        "tile": dict(program.tile),
        "extents": list(program.extents),
        "scalars": [[name, show(value)] for name, value in program.scalars],
        "ctas": show(program.grid.ctas),
        "cluster": program.grid.cluster,
        "early": program.grid.early,
        "threads": printed.threads,
        "shared": printed.shared,
        "registers": resources.registers,
        "machine": read.to_data(),
    }
    sources = {f"{printed.function}_{program.target}.cu": printed.text, PROGRAM: show_program(program)}
    binaries = {f"{printed.function}_{program.target}.cubin": built.cubin}
    kernel = program.name.partition(".")[0]
    return Artifact(kernel, program.target, "cuda", variant, sources, metadata, binaries)


BACKEND = Cuda()
