"""From generated HIP C++ to machine code, by clang and lld: no device, no header and no ROCm is needed.

The assembler's text is made first and assembled then, so that what is checked and shown is what runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tilec.dsl.faults import TargetFault

LEAST = 19  # major version of clang: earlier ones lack buffer resources as builtins
NAMES = ("clang++-22", "clang++-21", "clang++-20", "clang++-19", "clang++", "/opt/rocm/llvm/bin/clang++")
OPTIONS = ("-O3", "-std=c++20", "-ffp-contract=fast", "-w")
DEVICE = ("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib")


@dataclass(frozen=True)
class Built:
    """`assembly`: text with the metadata of the code object."""

    assembly: str
    code: bytes


@cache
def compiler() -> tuple[str, str]:
    """(path, version) of clang.  Raises TargetFault E0911 where none is recent enough."""
    for name in NAMES:
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"clang version (\d+)\S*", said)
        if found is not None and int(found[1]) >= LEAST:
            return path, found[0]
    raise TargetFault(
        "E0911",
        f"the hip backend compiles with clang {LEAST} or later, which is not installed",
        hint=f"apt install clang-{LEAST} lld-{LEAST}, or ROCm",
    )


def build(source: str, name: str, arch: str) -> Built:
    """The code object of `source` for `arch` (`gfx942`).  Raises TargetFault E0911 without clang, E0917 where it refuses."""
    path, _ = compiler()
    with TemporaryDirectory() as folder:
        stem = Path(folder) / "kernel"
        stem.with_suffix(".hip").write_text(source, encoding="utf-8")
        text, code = stem.with_suffix(".s"), stem.with_suffix(".hsaco")
        _run(
            [path, *DEVICE, f"--offload-arch={arch}", *OPTIONS, "-S", str(stem.with_suffix(".hip")), "-o", str(text)],
            name,
        )
        _run([path, "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-nogpulib", str(text), "-o", str(code)], name)
        return Built(text.read_text(encoding="utf-8"), code.read_bytes())


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.partition("\n")[0])
        raise TargetFault("E0917", f"clang fails on the source of `{name}`", note=first)
