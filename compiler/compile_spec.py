"""What `tilec compile` prints and writes: the program after each pass, and the files of an artifact by kind."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec, bind
from tilec.ir.attention import Attention

# Suffixes of text files that a toolchain made; every other text is source.
ASSEMBLY = (".ptx", ".sass", ".s", ".amdgcn", ".ttir", ".ttgir", ".llir")


def dump(spec: Spec, attn: Attention, target: str, constants: Mapping[str, int], only: str | None = None) -> str:
    """The program after each pass, or after the pass named `only`.  TargetFault E0907 if there is no such pass."""
    from tilec.ir.print import show_program
    from tilec.pipeline import stages

    bound = bind(attn, constants)
    found = list(stages(bound, target, spec.schedule(attn.name, target)))
    names = [name for name, _ in found]
    if only is not None and only not in names:
        raise TargetFault("E0907", f"no pass `{only}` runs for {target}", hint=f"passes are {', '.join(names)}")
    return "\n\n".join(f"# after {name}\n{show_program(p)}" for name, p in found if only in (None, name))


def emitted(
    spec: Spec, attn: Attention, target: str, backend: str | None, constants: Mapping[str, int], kinds: tuple[str, ...]
) -> dict[str, bytes]:
    """Files of the most general artifact, by name.  TargetFault E0908 for a kind that the backend does not make."""
    from tilec.aot import compile_all

    artifact = compile_all(spec, bind(attn, constants), target, backend)[0]
    of = {
        "source": {n: t.encode() for n, t in artifact.sources.items() if not n.endswith(ASSEMBLY)},
        "asm": {n: t.encode() for n, t in artifact.sources.items() if n.endswith(ASSEMBLY)},
        "binary": dict(artifact.binaries),
    }
    out: dict[str, bytes] = {}
    for kind in kinds:
        if not of[kind]:
            message = f"the {artifact.backend} backend makes no {kind} for {target} ahead of time"
            there = ", ".join(k for k in of if of[k])
            raise TargetFault("E0908", message, hint=f"it makes {there}")
        out |= of[kind]
    return out


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
