"""The triton backend: readable Triton source from a lowered tile program, compiled by Triton for NVIDIA and AMD.

On the cpu target the same source, with a portable prelude, runs under Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from tilec.backends.base import Artifact, Feature, Variant
from tilec.dsl.faults import TargetFault

if TYPE_CHECKING:
    from tilec.ir.attention import Attention
    from tilec.schedule import Schedule

PROGRAM = "program.tile_ir"


class Triton:
    """Compiles by printing.  Machine code is made by Triton: at the first launch, or by `offline` without a device."""

    name = "triton"
    features: frozenset[Feature] = frozenset({"aligned", "unit", "round"})

    def check(self, attn: Attention, target: str, features: frozenset[str]) -> None:
        """What `limits` refuses."""
        from tilec.backends.triton.limits import check_limits

        check_limits(attn, target)

    def telling(
        self, attn: Attention, target: str, schedule: Schedule, features: frozenset[Feature]
    ) -> frozenset[Feature]:
        """All that it compiles for."""
        return features & self.features

    def toolchain(self, target: str) -> Mapping[str, str]:
        """Triton's version.  Raises TargetFault E0911 where it is not installed."""
        try:
            return {"triton": version("triton")}
        except PackageNotFoundError:
            raise TargetFault(
                "E0911", f"{target} is served by Triton, which is not installed", hint="pip install 'triton>=3.6'"
            ) from None

    def compile(self, attn: Attention, target: str, schedule: Schedule, variant: Variant) -> Artifact:
        """Lowers and prints `attn`.  Raises the faults of the pipeline, TargetFault E0914 for what Triton cannot do there."""
        from tilec.backends.triton.emit import emit
        from tilec.ir.expr import show
        from tilec.ir.nodes import For, walk
        from tilec.ir.print import show_program
        from tilec.pipeline import lower
        from tilec.targets import target as target_table

        self.check(attn, target, variant.features)
        program = lower(attn, target, schedule, self.name, features=variant.features)
        role = program.roles[0]
        stages = [s.stages for s in walk(role.body) if isinstance(s, For) and s.stages]
        printed = emit(program, interpret=target == "cpu")
        metadata = {
            "function": printed.function,
            "arguments": [[p.name, p.kind, p.of, p.dimension] for p in printed.parameters],
            "constants": dict(printed.constants),
            "rounds": sorted(rounds(attn)) if "round" in variant.features else [],
            "boxes": printed.boxes,
            "tensors": {t.name: [t.mode, t.dtype, len(t.dims)] for t in program.tensors},
            "tile": dict(program.tile),
            "ctas": show(program.grid.ctas),
            "warps": role.warps or 4,
            "stages": max(stages, default=1),
            "interpret": target == "cpu",
            "fnuz": target_table(target).fp8 == "fnuz",
        }
        sources = {f"{attn.name}_{target}.triton.py": printed.text, PROGRAM: show_program(program)}
        return Artifact(attn.name, target, self.name, variant, sources, metadata)


def rounds(attn: Attention) -> set[str]:
    """Extents that the feature `round` speaks of."""
    from tilec.ir.expr import free_vars
    from tilec.ir.storage import rows_symbol

    return {n for i in (attn.q, attn.k) for n in free_vars(rows_symbol(attn.index(i)))}


BACKEND = Triton()
