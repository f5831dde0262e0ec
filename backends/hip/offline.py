"""Machine code of an artifact as text: what `tilec compile --emit asm` writes beside the code object."""

from __future__ import annotations

from tilec.backends.base import Artifact
from tilec.backends.hip.build import build
from tilec.targets import target


def machine_code(artifact: Artifact) -> dict[str, bytes]:
    """The assembler's text that each code object was made from, by file name.  Raises as `build` does."""
    arch = target(artifact.target).arch
    return {
        f"{name.removesuffix('.hip')}.s": build(text, artifact.metadata["function"], arch).assembly.encode()
        for name, text in artifact.sources.items()
        if name.endswith(".hip")
    }
