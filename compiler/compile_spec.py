"""What `tilec compile` prints and writes: the program after each pass, and the files of an artifact by kind."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tilec.backends.base import Artifact
from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind
from tilec.ir.attention import Attention
from tilec.legality import choose_backend
from tilec.targets import target as target_of

SUFFIXES = {"asm": (".ptx", ".amdgcn", ".sass", ".s"), "binary": (".cubin", ".hsaco")}


def dump(
    spec: Spec,
    attn: Attention,
    target: str,
    constants: Mapping[str, int],
    only: str | None = None,
    backend: str | None = None,
) -> str:
    """The program after each pass, or after the pass named `only`, for calls with every feature that the backend compiles
    for.  TargetFault E0907 if there is no such pass."""
    from tilec.backends.base import features_of
    from tilec.ir.print import show_program
    from tilec.pipeline import stages

    bound = bind(attn, constants)
    chosen = choose_backend(target_of(target), backend).name
    schedule = spec.schedule(attn.name, target)
    found = list(stages(bound, target, schedule, chosen, features=features_of(chosen)))
    names = [name for name, _ in found]
    if only is not None and only not in names:
        raise TargetFault("E0907", f"no pass `{only}` runs for {target}", hint=f"passes are {', '.join(names)}")
    return "\n\n".join(f"# after {name}\n{show_program(p)}" for name, p in found if only in (None, name))


def emitted(
    spec: Spec, attn: Attention, target: str, backend: str | None, constants: Mapping[str, int], kinds: tuple[str, ...]
) -> dict[str, bytes]:
    """Files of an artifact, by name, of the variant with every feature that the backend compiles for: what well-aligned
    tensors get.

    TargetFault E0908 for a kind that the backend does not make."""
    from tilec.aot import compile_all

    artifacts = compile_all(spec, bind(attn, constants), target, backend)
    made: dict[str, bytes] = {}
    if set(kinds) - {"source"}:
        made = dict(artifacts[-1].binaries) | _machine_code(artifacts[-1])
    of = {"source": {n: t.encode() for n, t in artifacts[-1].sources.items()}}
    of |= {kind: {n: x for n, x in made.items() if n.endswith(ends)} for kind, ends in SUFFIXES.items()}
    out: dict[str, bytes] = {}
    for kind in kinds:
        if not of[kind]:
            message = f"the {artifacts[0].backend} backend makes no {kind} for {target}"
            raise TargetFault("E0908", message, hint=f"it makes {', '.join(k for k in of if of[k])}")
        out |= of[kind]
    return out


def _machine_code(artifact: Artifact) -> dict[str, bytes]:
    """From the backend's `offline` module, where it has one: its artifacts hold source, compiled at the first launch."""
    module = f"tilec.backends.{artifact.backend}.offline"
    if find_spec(module) is None:
        return {}
    files: dict[str, bytes] = import_module(module).machine_code(artifact)
    return files


def print_files(files: Mapping[str, bytes]) -> None:
    """On stdout, as they are."""
    for data in files.values():
        sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Into `folder`, which is made if it is not there; says what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
        print(folder / name)
