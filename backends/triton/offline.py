"""Machine code of an artifact without a device: what `tilec compile --emit asm,binary` writes."""

from __future__ import annotations

from tilec.backends.base import Artifact

KINDS = ("ttgir", "ptx", "cubin", "amdgcn", "hsaco")


def machine_code(artifact: Artifact) -> dict[str, bytes]:
    """What Triton makes of an artifact's source, by file name: `.ptx` and `.cubin`, or `.amdgcn` and `.hsaco`, and the
    Triton IR they came from.  Empty for cpu, whose source is interpreted."""
    if artifact.target == "cpu":
        return {}
    from tilec.backends.triton.build import compile_kernel

    name = next(n for n in artifact.sources if n.endswith(".triton.py"))
    aligned = "aligned" in artifact.variant.features
    compiled = compile_kernel(name, artifact.sources[name], artifact.metadata, artifact.target, aligned=aligned)
    stem = name.removesuffix(".triton.py")
    made = {kind: compiled.asm[kind] for kind in KINDS if kind in compiled.asm}
    return {f"{stem}.{kind}": x if isinstance(x, bytes) else x.encode() for kind, x in made.items()}
