"""Targets as data: one TOML file each, where every number stands beside its source.

A number in a target file is `{ value = …, source = "…" }`; the loader refuses a bare one.  Sources are documents
with their section or table, `measured: …` for what was run, `derived: …` for arithmetic on other rows,
`chosen: …` for a limit of ours, and `not modelled: …` where the cpu target makes no claim.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, Literal

from tilec.dsl.faults import TargetFault

Vendor = Literal["nvidia", "amd", "cpu"]
NAMES = ("sm80", "sm89", "sm90", "sm100", "gfx942", "gfx950", "cpu")


@dataclass(frozen=True)
class Backend:
    """A way to run a program on a target.  `native`: written for this machine; else portable."""

    name: str
    native: bool
    available: bool
    because: str

    @property
    def prints(self) -> bool:
        """Whether it prints kernels in the machine's own language, from programs of the native passes."""
        return self.native and self.name != "cpu"


@dataclass(frozen=True)
class Chiplet:
    """A die with an L2 of its own, and the cache of all dies in front of memory.  Bytes, bytes per second, nanoseconds."""

    units: int  # of one die
    l2: int  # of one die
    ways: int
    line: int
    llc: int  # last level: of all dies together
    llc_bandwidth: int
    l2_miss: int  # until data that the last level has arrives
    llc_miss: int  # until data that only memory has arrives


@dataclass(frozen=True)
class Unit:
    """How a compute unit issues and moves: clocks that an instruction of a wave takes on its SIMD, bytes per clock."""

    simds: int
    slot: int
    lds: int
    l1: int


@dataclass(frozen=True)
class Target:
    """What the passes, the legality check and `explain` may know of a machine.

    `unit` is a streaming multiprocessor or a compute unit; `warp` a warp or a wavefront.  Rates are per unit and
    clock, bytes are bytes, clocks are hertz.  `sources[name]` says where the number in field `name` comes from
    (`matrix.bf16` for an entry of `matrix`, likewise of `achievable`, `chiplet.l2` and `unit.lds` for those of
    `chiplet` and `unit`).
    """

    name: str
    vendor: Vendor
    arch: str  # what the toolchain calls it: sm_90a, gfx942
    device: str  # the product that the numbers describe
    fp8: Literal["ocp", "fnuz"]
    dtypes: frozenset[str]
    features: frozenset[str]
    backends: tuple[Backend, ...]
    units: int
    warp: int
    threads_per_block: int
    shared_memory: int  # most that one block can have
    shared_memory_per_unit: int
    registers: int  # 32-bit registers of a unit
    registers_per_thread: int
    matrix: Mapping[str, int]  # dense FLOP per unit and clock, by operand dtype; empty: not modelled
    achievable: Mapping[
        str, int
    ]  # dense FLOP/s that products of large matrices were measured at within the power limit
    special: int  # exp2, rcp, tanh results per unit and clock
    clock: int
    sustained_clock: int  # under matrix load
    bandwidth: int  # bytes per second of device memory
    l2: int  # bytes, all of it
    xcds: int  # chiplets with an L2 of their own; 1 elsewhere
    grid: tuple[int, int, int]  # most blocks per dimension
    alignment: int  # bytes that the first element and every row of a tensor must be aligned to
    chiplet: Chiplet | None  # None where its caches are not modelled
    unit: Unit | None  # None where its issue is not modelled
    sources: Mapping[str, str] = field(compare=False, repr=False)

    @property
    def modelled(self) -> bool:
        """Whether the speed rows mean anything: they do not on cpu."""
        return bool(self.matrix) and self.bandwidth > 0

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s at the sustained clock for products of `dtype`; KeyError where the target has no such unit."""
        return float(self.matrix[dtype]) * self.units * self.sustained_clock

    def backend(self, name: str) -> Backend | None:
        """The backend of that name, or None where the target does not know it."""
        return next((b for b in self.backends if b.name == name), None)

    @property
    def default_backend(self) -> Backend:
        """The first available one; native ones are listed first."""
        return next(b for b in self.backends if b.available)


def _number(cell: Any, where: str, sources: dict[str, str]) -> Any:
    if not isinstance(cell, dict) or set(cell) != {"value", "source"} or not str(cell["source"]).strip():
        raise ValueError(f"{where}: a number needs a value and a source, not {cell!r}")
    sources[where.rpartition(":")[2]] = cell["source"]
    value = cell["value"]
    return tuple(value) if isinstance(value, list) else value


def read(text: str, path: str) -> Target:
    """A target from the text of its file; ValueError where a number has no source."""
    data = tomllib.loads(text)
    sources: dict[str, str] = {}
    numbers = {k: _number(v, f"{path}:{k}", sources) for k, v in data.pop("numbers").items()}
    matrix, achievable = (
        {k: _number(v, f"{path}:{table}.{k}", sources) for k, v in data.pop(table, {}).items()}
        for table in ("matrix", "achievable")
    )
    die, unit = (
        {k: _number(v, f"{path}:{table}.{k}", sources) for k, v in data.pop(table, {}).items()}
        for table in ("chiplet", "unit")
    )
    backends = tuple(
        Backend(b["name"], b["kind"] == "native", b["state"] == "yes", b["because"]) for b in data.pop("backend")
    )
    dtypes, features = frozenset(data.pop("dtypes")), frozenset(data.pop("features"))
    return Target(
        **data,
        **numbers,
        dtypes=dtypes,
        features=features,
        matrix=matrix,
        achievable=achievable,
        backends=backends,
        chiplet=Chiplet(**die) if die else None,
        unit=Unit(**unit) if unit else None,
        sources=sources,
    )


@cache
def _load(name: str) -> Target:
    text = resources.files("tilec.targets").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return read(text, f"{name}.toml")


def target(name: str) -> Target:
    """The target of that name.  Raises TargetFault E0901 for an unknown one, with the nearest name."""
    if name in NAMES:
        return _load(name)
    near = get_close_matches(name.lower().replace("_", "").removesuffix("a"), NAMES, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`? " if near else ""
    raise TargetFault("E0901", f"`{name}` is not a target", hint=f"{hint}targets are {', '.join(NAMES)}")


def all_targets() -> tuple[Target, ...]:
    """Every target, in the order in which `tilec targets` lists them."""
    return tuple(target(n) for n in NAMES)


def device_target(*, capability: tuple[int, int] | None = None, gcn: str | None = None) -> Target:
    """The target of a device: its CUDA compute capability, or its gcnArchName (`gfx942:sramecc+:xnack-`).

    Raises TargetFault E0902 for a device no target describes.
    """
    if (capability is None) == (gcn is None):
        raise ValueError("give a capability or a gcn name, and not both")
    if capability is not None:
        name, said = f"sm{capability[0]}{capability[1]}", f"compute capability {capability[0]}.{capability[1]}"
    else:
        name = said = str(gcn).partition(":")[0]
    if name in NAMES:
        return _load(name)
    raise TargetFault(
        "E0902",
        f"no target describes this device ({said})",
        note="shared memory, registers and instructions differ between neighbours, so none is assumed",
        hint=f"targets are {', '.join(NAMES)}",
    )


def warp_wide(machine: Target) -> bool:
    """Whether the target's warps multiply and copy for themselves, as Ampere's and Ada's do, and no unit does it for more."""
    return {"mma_sync", "cp_async"} <= machine.features and "tma" not in machine.features
