"""Work on one kernel at many points of its schedule space, in processes of its own.

What is done at a point is a pure function of the spec's text and the point: lowering holds Python's lock, assemblers take
seconds, and each process reads the spec itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

from tilec.dsl.faults import Fault, Faults
from tilec.frontend import Spec, bind, read_text
from tilec.ir.attention import Attention
from tilec.schedule import Schedule

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Job:
    """What a worker needs beside the point.  `text` of the spec; `constants`: of symbols that tiles need; `shape`: every symbol
    of the call, where there is one."""

    text: str
    kernel: str
    target: str
    constants: tuple[tuple[str, int], ...]
    shape: tuple[tuple[str, int], ...] = ()

    def read(self) -> tuple[Spec, Attention, Schedule]:
        """The spec, its kernel with constants bound, and the schedule's own lines."""
        spec = read_text(self.text)
        return spec, bind(spec.kernel(self.kernel), dict(self.constants)), spec.schedule(self.kernel, self.target)


def job(
    text: str, kernel: str, target: str, constants: Mapping[str, int], shape: Mapping[str, int] | None = None
) -> Job:
    """From mappings."""
    return Job(text, kernel, target, tuple(sorted(constants.items())), tuple(sorted((shape or {}).items())))


def why(wrong: Fault | Faults | ValueError) -> str:
    """What keeps a point from being a kernel, in a line."""
    if isinstance(wrong, Faults):
        return "; ".join(map(why, wrong.faults))
    return f"{wrong.code}: {wrong.note or wrong.message}" if isinstance(wrong, Fault) else str(wrong)


@contextmanager
def workers(at: Callable[[Job, P], R], todo: Job, count: int) -> Iterator[Callable[[Sequence[P]], Iterator[R]]]:
    """`at` of each point, in any order, in so many processes while it is open; with one, in this process and in order."""
    if count <= 1:
        yield partial(map, partial(at, todo))
        return
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))

    def each(points: Sequence[P]) -> Iterator[R]:
        futures: list[Future[Any]] = [pool.submit(at, todo, p) for p in points]
        try:
            for done in as_completed(futures):
                yield done.result()
        finally:
            for f in futures:
                f.cancel()

    try:
        yield each
    finally:
        pool.shutdown(cancel_futures=True)
