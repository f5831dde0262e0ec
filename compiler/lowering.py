"""How the kernel that well-aligned tensors get came about: what `explain` and `--dump-ir` show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilec.backends.base import backend as half
from tilec.backends.base import usual
from tilec.backends.runtime.settings import settings
from tilec.frontend import Spec
from tilec.ir.attention import Attention
from tilec.ir.nodes import Program
from tilec.targets import Backend
from tilec.targets import target as target_of

if TYPE_CHECKING:
    from tilec.backends.base import Artifact


@dataclass(frozen=True)
class Lowering:
    """`passes`: (name, program after it), in order.  `passed_over`: as of an Artifact.  `artifact`: of a native kernel."""

    backend: str
    passes: Sequence[tuple[str, Program]]
    passed_over: tuple[str, ...]
    artifact: Artifact | None = None

    @property
    def program(self) -> Program:
        """What is printed."""
        return self.passes[-1][1]

    @property
    def sequential(self) -> Program:
        """One thread of control for each block, whose key loops have their proofs."""
        names = [name for name, _ in self.passes]
        native = {
            "specialize": "use_boxes",
            "stage_copies": "write_positions",
            "ping_pong": "write_positions",
        }  # by the pass that makes several threads of one
        last = next((names.index(first) for made, first in native.items() if made in names), len(names))
        return self.passes[last - 1][1]


def lowering(spec: Spec, attn: Attention, target: str, backend: str | None = None) -> Lowering:
    """Of `attn`, whose constants are bound, by the first backend that takes it (see `route`).

    A native kernel is compiled: of the shapes that could be tried it is the assembler that decides.  Raises the faults of
    `Compiler.artifact`."""
    from tilec.backends.base import PROGRAM, Variant
    from tilec.backends.runtime.cache import Store
    from tilec.ir.print import show_program
    from tilec.jit import Compiler
    from tilec.native import trails
    from tilec.pipeline import routed
    from tilec.route import first

    chosen = settings()
    compiler = Compiler(spec, attn, backend or chosen.backend, Store(chosen.cache, chosen.lock_wait))
    schedule = spec.schedule(attn.name, target)

    def attempt(b: Backend) -> Lowering:
        features = usual(half(b.name).features)
        if not b.prints:
            return Lowering(b.name, routed(attn, target, schedule, b.name, features=features).passes, ())
        made = compiler.compiled(half(b.name), attn, target, Variant((), features))
        kept = made.sources[PROGRAM]
        return Lowering(
            b.name, next(t for t in trails(attn, target, schedule) if show_program(t[-1][1]) == kept), (), made
        )

    found, refused = first(target_of(target), compiler.backend, attempt, spec.source)
    return replace(found, passed_over=tuple(map(str, refused)))
