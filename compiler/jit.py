"""`tilec.load`: from a spec to a callable that compiles for the device of the tensors it meets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tilec.backends.base import Artifact, Backend, Variant, backend
from tilec.backends.runtime.cache import Store
from tilec.backends.runtime.kernel import Kernel
from tilec.backends.runtime.settings import settings
from tilec.dsl.faults import CallFault
from tilec.frontend import Spec, bind, read_spec, read_text
from tilec.identity import cache_key, kernel_identity
from tilec.ir.attention import Attention
from tilec.legality import choose_backend
from tilec.signature_of import signature_of
from tilec.targets import target as target_table


def load(
    spec: str | Path,
    *,
    kernel: str | None = None,
    target: str | None = None,
    backend: str | None = None,
    cache_dir: str | Path | None = None,
    **constants: int,
) -> Kernel:
    """A callable of one kernel of a spec: `attn = tilec.load("causal.tile"); o = attn(q, k, v)`.

    `spec` is a path, or the text of a spec (recognised by a brace).  `kernel` is needed when the spec has several.  `target`
    pins one instead of taking the tensors' device's; `backend` and `cache_dir` override TILEC_BACKEND and TILEC_CACHE.
    `constants` bind symbols of the spec (`D=128`) ahead of the call.

    Nothing is compiled before the first call.  Raises `Faults` for mistakes in the spec, CallFault E1021 for a kernel that
    is not there, TargetFault for a target or a backend that does not exist.
    """
    text = str(spec)
    read = read_text(text) if isinstance(spec, str) and "{" in text else read_spec(text)
    attn = bind(_choose(read, kernel), constants, read.source)
    chosen = settings()
    if target is not None:
        target_table(target)
    root = chosen.cache if cache_dir is None else Path(cache_dir)
    provider = Compiler(read, attn, backend or chosen.backend, Store(root, chosen.lock_wait))
    choices = (target or "", provider.backend or "", *(f"{n}={v}" for n, v in sorted(constants.items())))
    return Kernel(signature_of(attn, read.source), provider, kernel_identity(attn, *choices), target)


def _choose(spec: Spec, name: str | None) -> Attention:
    names = [k.name for k in spec.kernels]
    if name is None and len(names) > 1:
        hint = f'say which: tilec.load(…, kernel="{names[0]}")'
        raise CallFault("E1021", f"{spec.source.path} has {len(names)} kernels: {', '.join(names)}", hint=hint)
    if name is not None and name not in names:
        raise CallFault("E1021", f"{spec.source.path} has no kernel `{name}`", hint=f"it has {', '.join(names)}")
    return spec.kernel(name or names[0])


def backend_for(target: str, name: str | None) -> Backend:
    """The compile half that serves `target`: of that name, or else the target's default.

    Raises TargetFault E0903 when the target does not have it."""
    return backend(choose_backend(target_table(target), name).name)


class Compiler:
    """Artifacts of one kernel, from the cache or compiled now.  The Provider of `backends.runtime.kernel`."""

    def __init__(self, spec: Spec, attn: Attention, backend: str | None, store: Store) -> None:
        self.spec = spec
        self.attn = attn
        self.backend = backend
        self.store = store
        self.rebuild = 'tilec.load(…, target="{target}")'

    def features(self, target: str) -> frozenset[str]:
        """Those that the target's backend compiles for."""
        return frozenset(backend_for(target, self.backend).features)

    def artifact(self, target: str, variant: Variant) -> Artifact:
        """Compiles unless the cache has it.  Raises the faults of passes and toolchains."""
        by = backend_for(target, self.backend)
        attn = bind(self.attn, dict(variant.constants), self.spec.source)
        schedule = self.spec.schedule(attn.name, target)
        key = cache_key(attn, target, by.name, schedule, variant, by.toolchain(target))
        build: Callable[[], dict[str, bytes]] = lambda: by.compile(attn, target, schedule, variant).to_files()  # noqa: E731
        return Artifact.from_files(self.store.get_or_build(key, build))
