"""The cuda backend: readable CUDA C++ for Hopper from a tile program of concurrent roles, compiled by NVRTC."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tilec.backends.base import Artifact, Variant

if TYPE_CHECKING:
    from tilec.ir.nodes import Program

PROGRAM = "program.tile_ir"
ALIGNED = frozenset({"aligned"})  # what tensor maps and 16-byte stores need of every call


def compile_program(program: Program, variant: Variant | None = None) -> Artifact:
    """Prints and compiles a lowered program: source, cubin and what a launch needs.

    Raises ValueError for a program that the printer has no text for, TargetFault E0911 without NVRTC, E0917 where it fails,
    E0918 for a kernel that the assembler spills or whose products it serialises."""
    from tilec.backends.cuda.build import build
    from tilec.backends.cuda.check import check
    from tilec.backends.cuda.emit import emit
    from tilec.ir.expr import show
    from tilec.ir.print import show_program

    printed = emit(program)
    built = build(printed.text, printed.function)
    resources = check(built.log, printed.function)
    metadata = {
        "function": printed.function,
        "arguments": [[p.name, p.kind, p.of, p.dimension] for p in printed.parameters],
        "boxes": {p.name: asdict(p.box) for p in printed.parameters if p.box is not None},
        "tensors": {t.name: [t.mode, t.dtype, len(t.dims)] for t in program.tensors},
        "tile": dict(program.tile),
        "extents": list(program.extents),
        "ctas": show(program.grid.ctas),
        "threads": printed.threads,
        "shared": printed.shared,
        "registers": resources.registers,
    }
    sources = {f"{printed.function}_{program.target}.cu": printed.text, PROGRAM: show_program(program)}
    binaries = {f"{printed.function}_{program.target}.cubin": built.cubin}
    kernel = program.name.partition(".")[0]
    return Artifact(kernel, program.target, "cuda", variant or Variant((), ALIGNED), sources, metadata, binaries)
