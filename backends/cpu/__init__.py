"""The cpu backend: nothing is generated; the fully lowered tile program is the artifact, and its interpreter the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilec.backends.base import Artifact, Feature, Variant

if TYPE_CHECKING:
    from tilec.ir.attention import Attention
    from tilec.schedule import Schedule

PROGRAM, RECORD = "program.tile_ir", "attention.json"


class Cpu:
    """Compiles by lowering.  The artifact also holds the attention itself, whose exact oracle computes gradients."""

    name = "cpu"
    features: frozenset[Feature] = frozenset()

    def check(self, attn: Attention, target: str, features: frozenset[str]) -> None:
        """The interpreter takes every kernel."""

    def telling(
        self, attn: Attention, target: str, schedule: Schedule, features: frozenset[Feature]
    ) -> frozenset[Feature]:
        """All that it compiles for."""
        return features & self.features

    def toolchain(self, target: str) -> Mapping[str, str]:
        """No tools beside the compiler."""
        return {}

    def compile(self, attn: Attention, target: str, schedule: Schedule, variant: Variant) -> Artifact:
        """Lowers `attn`; raises the faults of the pipeline."""
        from tilec.ir.print import show_program
        from tilec.ir.record import write_record
        from tilec.pipeline import lower

        program = lower(attn, target, schedule)
        sources = {PROGRAM: show_program(program), RECORD: write_record(attn)}
        return Artifact(attn.name, target, self.name, variant, sources)


BACKEND = Cpu()
