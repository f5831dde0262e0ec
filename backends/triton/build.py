"""From generated source to Triton's compiled kernel, with or without a device."""

from __future__ import annotations

import hashlib
import linecache
import types
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from tilec.dsl.faults import TargetFault

POINTERS = {
    "bf16": "*bf16",
    "f16": "*fp16",
    "f32": "*fp32",
    "e4m3": "*fp8e4nv",
    "e5m2": "*fp8e5",
    "i32": "*i32",
    "i64": "*i64",
    "bool": "*i1",
}
FNUZ = {"e4m3": "*fp8e4b8", "e5m2": "*fp8e5b16"}
ALIGNMENT = 16  # bytes that the feature `aligned` promises of base addresses and strides


def module_of(name: str, source: str) -> types.ModuleType:
    """The generated source as a module.  Triton reads functions back through `inspect`, so the text is kept in linecache."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    path = f"<tilec {name} {digest}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = types.ModuleType(f"tilec_generated_{digest}")
    module.__file__ = path
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def gpu_target(target: str) -> Any:
    """Triton's name of a target."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", int(target[2:]), 32) if target.startswith("sm") else GPUTarget("hip", target, 64)


def compile_kernel(name: str, source: str, metadata: Mapping[str, Any], target: str, *, aligned: bool) -> Any:
    """Triton's CompiledKernel for `target`.  `aligned`: base addresses and strides of the tensors of the products are
    multiples of 16 bytes, which lets loads be wide.  Raises TargetFault E0917 where ptxas fails on what Triton made."""
    import triton
    from triton.compiler import ASTSource
    from triton.runtime.errors import PTXASError

    function = getattr(module_of(name, source), metadata["function"])
    signature, divisors = types_of(metadata, aligned=aligned)
    signature |= dict.fromkeys(metadata["constants"], "constexpr")
    names = list(signature)
    attrs = {(names.index(n),): [["tt.divisibility", d]] for n, d in divisors.items()}
    kernel = ASTSource(function, signature, dict(metadata["constants"]), attrs)
    options = {"num_warps": metadata["warps"], "num_stages": metadata["stages"]}
    try:
        with redirect_stdout(StringIO()):  # Triton prints all of the PTX that ptxas fails on
            return triton.compile(kernel, target=gpu_target(target), options=options)
    except PTXASError as failure:
        raise TargetFault(
            "E0917",
            f"ptxas fails on the code that Triton made of `{metadata['function']}` for {target}",
            note=str(failure).partition("\n")[0],
            hint="another `stages` line, or other tiles, give it other code",
        ) from failure


def types_of(metadata: Mapping[str, Any], *, aligned: bool) -> tuple[dict[str, str], dict[str, int]]:
    """Triton type of each runtime argument, and the divisor known of some.

    Pointers and boxes by dtype, strides i64, extents i32."""
    kinds: dict[str, str] = {}
    divisors: dict[str, int] = {}
    pointers = POINTERS | (FNUZ if metadata["fnuz"] else {})
    for name, kind, of, dimension in metadata["arguments"]:
        if kind == "extent":
            kinds[name] = "i32"
            if of in metadata["rounds"]:
                divisors[name] = ALIGNMENT
            continue
        mode, dtype, rank = metadata["tensors"][of]
        if kind == "box":
            kinds[name] = f"tensordesc<{pointers[dtype].removeprefix('*')}{metadata['boxes'][of]}>"
            continue
        kinds[name] = pointers[dtype] if kind == "pointer" else "i64"
        if aligned and mode in ("in", "out") and dtype in WIDTH and (kind == "pointer" or dimension < rank - 1):
            divisors[name] = ALIGNMENT if kind == "pointer" else ALIGNMENT // WIDTH[dtype]
    return kinds, divisors


WIDTH = {"bf16": 2, "f16": 2, "e4m3": 1, "e5m2": 1}
