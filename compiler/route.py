"""Which backend compiles a kernel for a target, and why not one before it.

A backend that the user names is the one, and what it refuses is an error.  Else the target's backends are asked in its order and
the first that refuses nothing is taken; what those before it said is kept.  If all refuse, the error is the preferred one's: a
line of the schedule that no backend honours; where it refuses the kernel itself, what the next one refuses is told as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tilec.backends.base import backend as half
from tilec.dsl.faults import Fault, Faults, Source
from tilec.frontend import Spec, unbound_constants
from tilec.legality import check_schedule, check_target, choose_backend, target_faults
from tilec.targets import Backend, Target
from tilec.targets import target as target_of

REFUSALS = ("E08", "E09")  # codes of what one backend lacks and another may have
T = TypeVar("T")


@dataclass(frozen=True)
class Refusal:
    """What a backend that was asked first said against a kernel."""

    backend: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        """One line."""
        return f"{self.backend} passed over: {'; '.join(f.message for f in self.faults)}"


def candidates(target: Target, name: str | None = None) -> tuple[Backend, ...]:
    """The backend of that name, else all that the target has, the preferred one first.  TargetFault E0903 for a name that is
    not there."""
    return tuple(b for b in target.backends if b.available) if name is None else (choose_backend(target, name),)


def first(
    target: Target, name: str | None, attempt: Callable[[Backend], T], source: Source | None = None
) -> tuple[T, tuple[Refusal, ...]]:
    """What `attempt` gives for the first backend that it does not raise E08 or E09 for, and what it raised before.

    Raises Fault or Faults, which quote `source`, when there is no such backend."""
    refused: list[Refusal] = []
    options = candidates(target, name)
    for b in options:
        try:
            return attempt(b), tuple(refused)
        except (Fault, Faults) as error:
            faults = tuple(error.faults if isinstance(error, Faults) else [error])
            for f in faults:
                f.source = f.source or source
            if len(options) == 1 or not all(f.code.startswith(REFUSALS) for f in faults):
                raise
            refused.append(Refusal(b.name, faults))
    lines = any(f.code.startswith("E08") for f in refused[0].faults)
    raise Faults([f for r in (refused[:1] if lines else refused) for f in r.faults], source)


def check_spec(spec: Spec, name: str | None = None, backend: str | None = None) -> None:
    """Raises Faults for every schedule of a file.

    With a target: whether a backend of it, or the one that is named, takes each kernel with what the spec says for the target;
    kernels whose head dims have no value are not held against its limits.  Without: each block is held only against what its
    own target's hardware can do.
    """
    found: list[Fault] = []
    if name is not None:
        machine = target_of(name)
        for attn in spec.kernels:
            schedule, bound = spec.schedule(attn.name, name), not unbound_constants(attn)

            def attempt(b: Backend) -> None:
                by = half(b.name)
                check_schedule(attn, schedule, machine, b, spec.source)  # noqa: B023
                if bound:  # noqa: B023
                    by.check(attn, name, by.features)  # noqa: B023

            try:
                check_target(attn, machine, spec.source)
                first(machine, backend, attempt, spec.source)
            except Faults as several:
                found += several.faults
            except Fault as one:
                if one.code == "E0903":
                    raise
                found.append(one)
    else:
        for (kernel, on), schedule in spec.schedules.items():
            if on != "any":
                found += target_faults(spec.kernel(kernel), schedule, target_of(on), spec.source)
    if found:
        raise Faults(sorted(found, key=lambda f: f.span.start if f.span else -1))
