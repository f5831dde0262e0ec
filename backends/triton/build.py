"""From generated source to Triton's compiled kernel, with or without a device."""

from __future__ import annotations

import hashlib
import json
import linecache
import types
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tilec.dsl.faults import TargetFault

if TYPE_CHECKING:
    from tilec.backends.runtime.cache import Store

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


def compile_kernel(
    name: str, source: str, metadata: Mapping[str, Any], target: str, *, aligned: bool, store: Store | None = None
) -> Any:
    """Triton's CompiledKernel for `target`.  `aligned`: base addresses and strides of the tensors of the products are
    multiples of 16 bytes, which lets loads be wide.  `store`: where compiled kernels are kept; with None only Triton's own
    cache is asked.  Raises TargetFault E0917 where ptxas fails on what Triton made."""
    from triton.compiler import ASTSource

    function = getattr(module_of(name, source), metadata["function"])
    signature, divisors = types_of(metadata, aligned=aligned)
    signature |= dict.fromkeys(metadata["constants"], "constexpr")
    names = list(signature)
    attrs = {(names.index(n),): [["tt.divisibility", d]] for n, d in divisors.items()}
    kernel = ASTSource(function, signature, dict(metadata["constants"]), attrs)
    if store is None:
        return _compile(kernel, metadata, target)
    made: list[Any] = []

    def build() -> dict[str, bytes]:
        made.append(_compile(kernel, metadata, target))
        return {Path(p).name: Path(p).read_bytes() for p in made[0].metadata_group.values()}

    key = _key(source, metadata, target, aligned)
    files = store.get_or_build(key, build)
    return made[0] if made else _restored(kernel, files, key)


def _compile(kernel: Any, metadata: Mapping[str, Any], target: str) -> Any:
    import triton
    from triton.runtime.errors import PTXASError

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


def _key(source: str, metadata: Mapping[str, Any], target: str, aligned: bool) -> str:
    """What the machine code depends on.  Triton's own key hashes its whole installation, a third of a second in every
    process; its version and the settings that it says change code stand for that here."""
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars

    settings = sorted(get_cache_invalidating_env_vars().items())
    parts = [source, dict(metadata), target, aligned, triton.__version__, settings]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _restored(kernel: Any, files: Mapping[str, bytes], key: str) -> Any:
    """A CompiledKernel from the files of one that was compiled before.  It reads them as it is made."""
    from triton.compiler import CompiledKernel

    with TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        return CompiledKernel(kernel, {name: str(Path(folder) / name) for name in files}, key)


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
