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
    from tilec.ir.print import show_program
    from tilec.lowering import lowering

    found = lowering(spec, bind(attn, constants), target, backend)
    names = [name for name, _ in found.passes]
    if only is not None and only not in names:
        raise TargetFault("E0907", f"no pass `{only}` runs for {target}", hint=f"passes are {', '.join(names)}")
    said = "".join(f"# {line}\n" for line in found.passed_over)
    return said + "\n\n".join(f"# after {name}\n{show_program(p)}" for name, p in found.passes if only in (None, name))


def emitted(artifact: Artifact, kinds: tuple[str, ...]) -> dict[str, bytes]:
    """Files of an artifact, by name.  TargetFault E0908 for a kind that its backend does not make."""
    made: dict[str, bytes] = {}
    if set(kinds) - {"source"}:
        made = dict(artifact.binaries) | _machine_code(artifact)
    of = {"source": {n: t.encode() for n, t in artifact.sources.items()}}
    of |= {kind: {n: x for n, x in made.items() if n.endswith(ends)} for kind, ends in SUFFIXES.items()}
    out: dict[str, bytes] = {}
    for kind in kinds:
        if not of[kind]:
            message = f"the {artifact.backend} backend makes no {kind} for {artifact.target}"
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
