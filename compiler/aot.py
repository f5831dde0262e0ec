"""Ahead of time: a Python module for one kernel and target, that needs torch and the runtime but no compiler.

build/causal_gqa_sm90.py           signature, the spec as a comment, what was built
build/causal_gqa_sm90.kernels/…    a folder per artifact, unless all of it is text and fits in the module
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilec.backends.base import Artifact, Variant, usual
from tilec.backends.runtime.cache import Store
from tilec.backends.runtime.module import digest
from tilec.backends.runtime.settings import settings
from tilec.backends.runtime.signature import Signature
from tilec.dsl.faults import Fault, Faults, TargetFault
from tilec.frontend import Spec, bind
from tilec.identity import kernel_identity
from tilec.ir.attention import Attention
from tilec.jit import Compiler
from tilec.signature_of import signature_of


def build(
    spec: Spec,
    kernel: str,
    target: str,
    folder: Path,
    *,
    backend: str | None = None,
    constants: Mapping[str, int] | None = None,
) -> Path:
    """Compiles one kernel and writes its module into `folder`; returns the module's path.

    Raises `Faults` and Faults of the compiler, TargetFault E0905 when symbols that a tile needs have no value."""
    attn = bind(spec.kernel(kernel), dict(constants or {}), spec.source)
    return write_module(attn, spec, compile_all(spec, attn, target, backend), folder)


def compile_all(spec: Spec, attn: Attention, target: str, backend: str | None = None) -> tuple[Artifact, ...]:
    """The artifacts that a module for this target holds: for any tensors, unless the schedule is for aligned ones alone, and
    last for well-aligned ones."""
    signature = signature_of(attn, spec.source)
    if signature.constants:
        needed = ", ".join(signature.constants)
        wanted = " ".join(f"--set {s}=…" for s in signature.constants)
        message = f"a kernel built ahead of time needs values for {needed}"
        raise TargetFault("E0905", message, note="tiles need them as numbers", hint=f"add {wanted}")
    chosen = settings()
    compiler = Compiler(spec, attn, backend or chosen.backend, Store(chosen.cache, chosen.lock_wait))
    best = compiler.artifact(target, Variant((), usual(compiler.features(target))))
    try:
        general = compiler.artifact(target, Variant())
    except (Fault, Faults):  # a schedule or a backend that serves no other tensors than the best artifact does
        return (best,)
    return (best,) if (general.backend, general.variant) == (best.backend, best.variant) else (general, best)


def write_module(attn: Attention, spec: Spec, artifacts: Sequence[Artifact], folder: Path) -> Path:
    """Writes the module of these artifacts (of one kernel and target) and the files beside it."""
    first = artifacts[0]
    stem = f"{attn.name}_{first.target}"
    folder.mkdir(parents=True, exist_ok=True)
    if len(artifacts) == 1 and not first.binaries:
        body = _from_text(first)
    else:
        body = _from_files(artifacts, folder, stem)
    path = folder / f"{stem}.py"
    identity = kernel_identity(attn, first.target, *(a.backend for a in artifacts), "ahead of time")
    path.write_text(_module(attn, spec, first, stem, identity, body), encoding="utf-8")
    return path


def _from_text(artifact: Artifact) -> tuple[str, str]:
    """Definitions for the module, and the last argument of its call."""
    names, out = [], []
    for name, data in artifact.to_files().items():
        constant = name.upper().replace(".", "_")
        names.append(f"    {name!r}: {constant},\n")
        out.append(f"{constant} = {_literal(data.decode())}\n")
    return "\n".join(out), "files={\n" + "".join(names) + "}"


def _literal(text: str) -> str:
    """A string literal a person can read: the text itself where it needs no escapes, else one line of text a line."""
    if "\\" not in text and '"""' not in text and not text.endswith('"'):
        return f'"""\\\n{text}"""'
    return "(\n" + "".join(f"    {line!r}\n" for line in text.splitlines(keepends=True)) + ")"


def _from_files(artifacts: Sequence[Artifact], folder: Path, stem: str) -> tuple[str, str]:
    rows = []
    for artifact in artifacts:
        name = "_".join(sorted(artifact.variant.features)) or "general"
        where = folder / f"{stem}.kernels" / name
        where.mkdir(parents=True, exist_ok=True)
        for old in where.iterdir():
            old.unlink()
        files = artifact.to_files()
        for file, data in files.items():
            (where / file).write_bytes(data)
        features = " ".join(sorted(artifact.variant.features))
        rows.append(f"    {features!r}: ({f'{stem}.kernels/{name}'!r}, {digest(files)!r}),\n")
    return "", "artifacts={\n" + "".join(rows) + "}"


def _module(attn: Attention, spec: Spec, artifact: Artifact, stem: str, identity: str, body: tuple[str, str]) -> str:
    from tilec import __version__

    signature = signature_of(attn, spec.source)
    outputs = ", ".join(o.name for o in signature.outputs)
    definitions, last = body
    embedded = last.startswith("files")
    opening = "Module.from_text(SIGNATURE, " if embedded else "Module.from_files(__file__, SIGNATURE, "
    rebuild = f"tilec compile {Path(spec.source.path).name} --target {{target}}"
    comment = "".join(f"#     {line}".rstrip() + "\n" for line in spec.source.text.splitlines())
    return f'''"""{attn.name} for {artifact.target}, written by tilec {__version__}.  Needs torch and tilec's runtime.

    from {stem} import {attn.name}
    {outputs} = {attn.name}({", ".join(signature.names)})

{_table(signature)}
"""

# The spec this was compiled from, {Path(spec.source.path).name}:
#
{comment}
from tilec.backends.runtime.module import Module

SIGNATURE = r"""{json.dumps(json.loads(signature.to_json()))}"""

{definitions}
{attn.name} = {opening}target={artifact.target!r}, identity={identity!r}, rebuild={rebuild!r}, {last})
'''


def _table(signature: Signature) -> str:
    return "\n".join(
        f"    {a.name:8} {a.dtype}[{', '.join(a.dims)}]" for a in (*signature.arguments, *signature.outputs)
    )
