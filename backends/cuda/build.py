"""From generated CUDA C++ to machine code, by NVRTC: no device, no header and no other tool is needed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import SupportsInt

from tilec.dsl.faults import TargetFault

# NVRTC's own cache gives a kernel back without what the assembler said of it.
OPTIONS = ("-std=c++17", "--ptxas-options=-v", "--no-cache")


@dataclass(frozen=True)
class Built:
    """`log`: what the compiler and the assembler said, with registers and spills of each kernel."""

    cubin: bytes
    log: str


def toolchain() -> dict[str, str]:
    """Version of NVRTC.  Raises TargetFault E0911 where it is not installed."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        raise TargetFault(
            "E0911",
            "the cuda backend compiles with NVRTC, which is not installed",
            hint="pip install 'cuda-bindings>=13.0' 'nvidia-cuda-nvrtc>=13.0'",
        ) from None
    try:
        build = version("nvidia-cuda-nvrtc")  # NVRTC itself does not tell its builds apart
    except PackageNotFoundError:
        build = "of the system"
    return {"nvrtc": f"{major}.{minor}, {build}"}


def build(source: str, name: str, arch: str = "sm_90a") -> Built:
    """The cubin of `source` for `arch` (`sm_90a`).  Raises TargetFault E0911 without NVRTC, E0917 where it refuses the text."""
    toolchain()
    from cuda.bindings import nvrtc

    error, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, None, None)
    _succeed(error)
    options = [o.encode() for o in (f"--gpu-architecture={arch}", *OPTIONS)]
    (outcome,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    buffer = b" " * size
    nvrtc.nvrtcGetProgramLog(program, buffer)
    log = buffer.rstrip(b"\0 ").decode(errors="replace")
    try:
        if outcome != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            first = next((line for line in log.splitlines() if "error" in line), log.partition("\n")[0])
            raise TargetFault("E0917", f"NVRTC fails on the source of `{name}`", note=first)
        error, size = nvrtc.nvrtcGetCUBINSize(program)
        _succeed(error)
        cubin = b" " * size
        (error,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        _succeed(error)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Built(cubin, log)


def _succeed(error: SupportsInt) -> None:
    if int(error):
        raise RuntimeError(f"NVRTC: {error}")
