"""Candidates of the native backend: one kernel at several points of its schedule space, compiled side by side.

A compilation is a pure function of the spec's text and the point, so it runs in processes of its own: lowering holds Python's
lock, and the assembler takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any

from tilec.backends.base import Artifact
from tilec.dsl.faults import Fault, Faults
from tilec.frontend import bind, read_text
from tilec.tune.hopper import Point


@dataclass(frozen=True)
class Job:
    """What a worker needs: `text` of the spec, which it reads itself."""

    text: str
    kernel: str
    target: str
    constants: tuple[tuple[str, int], ...]
    point: Point


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


def compile_candidate(job: Job) -> Candidate:
    """Lowers and compiles.  A point that does not fit, spills or is serialised is a Candidate without an artifact; a missing
    toolchain is raised (TargetFault E0911), as is what is wrong with the kernel at every point."""
    from tilec.backends.base import Variant
    from tilec.backends.cuda import ALIGNED, BACKEND, compile_program
    from tilec.native import program_at

    BACKEND.toolchain(job.target)
    spec = read_text(job.text)
    attn = bind(spec.kernel(job.kernel), dict(job.constants))
    schedule = spec.schedule(job.kernel, job.target)
    try:
        program = program_at(attn, job.target, schedule, job.point)
        return Candidate(job.point, compile_program(program, Variant(job.constants, ALIGNED)))
    except (Fault, ValueError) as wrong:
        return Candidate(job.point, reason=_reason(wrong))
    except Faults as wrong:
        return Candidate(job.point, reason="; ".join(map(_reason, wrong.faults)))


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, Fault):
        return f"{wrong.code}: {wrong.note or wrong.message}"
    return str(wrong)


def compile_candidates(
    text: str,
    kernel: str,
    target: str,
    constants: Mapping[str, int],
    points: Sequence[Point],
    workers: int,
) -> Iterator[Candidate]:
    """Candidates as they come.  With one worker, in this process and in order."""
    jobs = [Job(text, kernel, target, tuple(sorted(constants.items())), p) for p in points]
    if workers <= 1 or len(jobs) == 1:
        yield from map(compile_candidate, jobs)
        return
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        futures: list[Future[Candidate]] = [pool.submit(compile_candidate, j) for j in jobs]
        for done in as_completed(futures):
            yield done.result()
