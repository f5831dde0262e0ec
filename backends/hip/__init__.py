"""The hip backend: readable HIP C++ for CDNA 3 from a tile program of waves, compiled by clang and lld."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from tilec.backends.base import PROGRAM, Artifact, Feature, Variant
from tilec.backends.runtime.settings import Rounding, settings
from tilec.dsl.faults import TargetFault

if TYPE_CHECKING:
    from tilec.backends.hip.emit import Printed
    from tilec.ir.attention import Attention
    from tilec.ir.nodes import Program
    from tilec.schedule import Schedule

ALIGNED: frozenset[Feature] = frozenset({"aligned"})  # what copies of 16 bytes need of every call
TRIES = 8  # programs given to the compiler before its complaint is the user's


class Hip:
    """Compiles by printing HIP C++ of a native program.  Needs no device; machine code is made here."""

    name = "hip"
    features = ALIGNED

    def check(self, attn: Attention, target: str, features: frozenset[str]) -> None:
        """What `limits` refuses, and calls whose tensors are not aligned."""
        from tilec.backends.hip.limits import HINT, check_limits

        if not features >= ALIGNED:
            raise TargetFault(
                "E0914",
                f"`{attn.name}` has no native code for tensors that are not aligned",
                note="rows are copied 16 bytes at a time",
                hint=HINT,
            )
        check_limits(attn, target)

    def telling(
        self, attn: Attention, target: str, schedule: Schedule, features: frozenset[Feature]
    ) -> frozenset[Feature]:
        """All that it compiles for."""
        return features & self.features

    def toolchain(self, target: str) -> Mapping[str, str]:
        """Version of clang, the rounding if it is not the contract's, and the user's tuning record, if there is one.

        Raises TargetFault E0911 without a clang that is recent enough, CallFault E1060 for a record that cannot be read."""
        from tilec.backends.hip.build import compiler
        from tilec.user_record import record_digest

        rounding, digest = settings().rounding, record_digest()
        more = {"rounding": rounding} if rounding != "nearest" else {}
        return {"clang": compiler()[1], **more, **({"record": digest} if digest else {})}

    def compile(self, attn: Attention, target: str, schedule: Schedule, variant: Variant) -> Artifact:
        """Lowers, prints and compiles `attn`, rounding as TILEC_ROUNDING says: the first shape whose registers the compiler
        keeps.

        Raises the faults of `native.programs`, TargetFault E0914 for a kernel or a variant without native code, and those of
        `compile_program` for the first shape if none is kept."""
        from tilec.backends.hip.emit import emit
        from tilec.backends.hip.limits import HINT
        from tilec.native import programs

        self.check(attn, target, variant.features)
        first: TargetFault | None = None
        rounding = settings().rounding
        for program in islice(programs(attn, target, schedule), TRIES):
            try:
                printed = emit(program, rounding)
            except ValueError as lacking:
                message = f"the hip backend has no code for `{attn.name}` on {target}"
                raise TargetFault("E0914", message, note=str(lacking), hint=HINT) from lacking
            try:
                return _artifact(program, printed, variant, rounding)
            except TargetFault as spilled:
                if spilled.code != "E0918":
                    raise
                first = first or spilled
        assert first is not None
        raise first


def compile_program(program: Program, variant: Variant | None = None, rounding: Rounding = "nearest") -> Artifact:
    """Prints and compiles a lowered program: source, code object and what a launch needs.

    `rounding` of floats to bf16: `nearest` is the contract of a spec; `away` (ties away from zero) saves one operation of two for
    each weight, `zero` both, at up to twice the error of a weight.

    Raises ValueError for a program that the printer has no text for, TargetFault E0911 without clang, E0917 where it fails,
    E0918 for a kernel that spills or lacks wait states, E0919 for machine code that is not the program's."""
    from tilec.backends.hip.emit import emit

    return _artifact(program, emit(program, rounding), variant or Variant((), ALIGNED), rounding)


def _artifact(program: Program, printed: Printed, variant: Variant, rounding: Rounding) -> Artifact:
    from tilec.backends.hip.build import build
    from tilec.backends.hip.check import check, needs, settled
    from tilec.ir.expr import show
    from tilec.ir.print import show_program
    from tilec.targets import target

    built = build(printed.text, printed.function, target(program.target).arch)
    found = needs(built.code, built.assembly, printed.function)
    settled(built.assembly, printed.function)
    check(found, waves=printed.waves, products=printed.matrices, loops=printed.looped)
    metadata = {
        "function": printed.function,
        "arguments": [[p.name, p.kind, p.of, p.dimension] for p in printed.parameters],
        "tensors": {t.name: [t.mode, t.dtype, len(t.dims)] for t in program.tensors},
        "rows": [list(row) for row in printed.strided],
        "tile": dict(program.tile),
        "extents": list(program.extents),
        "ctas": show(program.grid.ctas),
        "threads": printed.threads,
        "shared": printed.shared,
        "registers": found.registers,
        "rounding": rounding,
        "matrices": sum(found.products.values()),
        "machine": found.to_data(),
    }
    stem = f"{printed.function}_{program.target}"
    sources = {f"{stem}.hip": printed.text, PROGRAM: show_program(program)}
    kernel = program.name.partition(".")[0]
    return Artifact(kernel, program.target, "hip", variant, sources, metadata, {f"{stem}.hsaco": built.code})


BACKEND = Hip()
