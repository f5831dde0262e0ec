"""Machine code of an artifact as text: what `tilec compile --emit asm` writes beside the cubin."""

from __future__ import annotations

from tilec.backends.base import Artifact
from tilec.targets.inspect.sass import NoDisassembly, disassemble


def machine_code(artifact: Artifact) -> dict[str, bytes]:
    """The disassembly of each cubin, by file name; none where no nvdisasm is."""
    out = {}
    for name, cubin in artifact.binaries.items():
        try:
            out[f"{name.removesuffix('.cubin')}.sass"] = disassemble(cubin).encode()
        except NoDisassembly:
            continue
    return out
