"""Candidates of the native backend: one kernel at several points of its schedule space, compiled side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tilec.backends.base import Artifact
from tilec.dsl.faults import Fault, Faults
from tilec.jobs import Job, job, why, workers
from tilec.tune.hopper import Point


@dataclass(frozen=True)
class Candidate:
    """`artifact` None: it does not compile as its schedule says, and `reason` says why."""

    point: Point
    artifact: Artifact | None = field(default=None, repr=False)
    reason: str = ""

    @property
    def registers(self) -> int | None:
        """Of a thread at entry."""
        return None if self.artifact is None else int(self.artifact.metadata["registers"])

    @property
    def shared(self) -> int | None:
        """Bytes of shared memory of a block."""
        return None if self.artifact is None else int(self.artifact.metadata["shared"])

    def to_data(self) -> dict[str, Any]:
        """JSON values."""
        point = {n: v for n, v in asdict(self.point).items() if n != "by"}
        figures = {"registers": self.registers, "shared": self.shared}
        return {"point": point, "compiles": self.artifact is not None, **figures, "reason": self.reason}


def compile_candidate(job: Job, point: Point) -> Candidate:
    """Lowers and compiles.  A point that does not fit, spills or is serialised is a Candidate without an artifact; a missing
    toolchain is raised (TargetFault E0911), as is what is wrong with the kernel at every point."""
    from tilec.backends.base import Variant
    from tilec.backends.cuda import ALIGNED, BACKEND, compile_program
    from tilec.native import program_at

    BACKEND.toolchain(job.target)
    _, attn, schedule = job.read()
    try:
        program = program_at(attn, job.target, schedule, point)
        return Candidate(point, compile_program(program, Variant(job.constants, ALIGNED)))
    except (Fault, Faults, ValueError) as wrong:
        return Candidate(point, reason=why(wrong))


def compile_candidates(
    text: str,
    kernel: str,
    target: str,
    constants: Mapping[str, int],
    points: Sequence[Point],
    count: int,
) -> Iterator[Candidate]:
    """Candidates as they come, from no more than `count` processes.  With one, in this process and in order."""
    with workers(compile_candidate, job(text, kernel, target, constants), min(count, len(points))) as compiled:
        yield from compiled(points)
