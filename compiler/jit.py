"""`tilec.load`: from a spec to a callable that compiles for the device of the tensors it meets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tilec.backends.base import Artifact, Backend, Variant, backend
from tilec.backends.runtime.cache import Store
from tilec.backends.runtime.kernel import Kernel
from tilec.backends.runtime.settings import settings
from tilec.dsl.faults import CallFault, TargetFault
from tilec.frontend import Spec, bind, read_spec, read_text
from tilec.identity import cache_key, kernel_identity
from tilec.ir.attention import Attention
from tilec.route import candidates, first
from tilec.signature_of import signature_of
from tilec.targets import Backend as Offered
from tilec.targets import target as target_table

ASSEMBLED = ("E0918", "E0919")  # what only machine code shows
REFUSAL = "refusal.json"  # the one file of a cache entry that says why there is no kernel


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
    Without a backend each call gets the first of its target's that takes it; `Kernel.passed_over` says which did not, and why.
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


class Compiler:
    """Artifacts of one kernel, from the cache or compiled now.  The Provider of `backends.runtime.kernel`."""

    def __init__(self, spec: Spec, attn: Attention, backend: str | None, store: Store) -> None:
        self.spec = spec
        self.attn = attn
        self.backend = backend
        self.store = store
        self.rebuild = 'tilec.load(…, target="{target}")'

    def backends(self, target: str) -> tuple[Backend, ...]:
        """Those that may compile for `target`, the preferred one first.  TargetFault E0903 where there is none."""
        return tuple(backend(b.name) for b in candidates(target_table(target), self.backend))

    def features(self, target: str) -> frozenset[str]:
        """Those that a backend of the target compiles for."""
        return frozenset[str]().union(*(b.features for b in self.backends(target)))

    def artifact(self, target: str, variant: Variant) -> Artifact:
        """Of the first backend that takes the kernel and the variant (see `route`), compiled unless the cache has it; its
        variant keeps the features that the backend compiles for.  Raises the faults of passes and toolchains."""
        attn = bind(self.attn, dict(variant.constants), self.spec.source)

        def attempt(b: Offered) -> Artifact:
            return self.compiled(backend(b.name), attn, target, variant)

        made, refused = first(target_table(target), self.backend, attempt, self.spec.source)
        return replace(made, passed_over=tuple(map(str, refused)))

    def compiled(self, by: Backend, attn: Attention, target: str, variant: Variant) -> Artifact:
        """By this backend.  `attn` has the variant's constants.

        What is wrong with its machine code is remembered as well: finding out takes seconds."""
        features, schedule = by.features & variant.features, self.spec.schedule(attn.name, target)
        by.check(attn, target, features)
        variant = replace(variant, features=by.telling(attn, target, schedule, features))

        def build() -> dict[str, bytes]:
            try:
                return by.compile(attn, target, schedule, variant).to_files()
            except TargetFault as refusal:
                if refusal.code not in ASSEMBLED:
                    raise
                said = {"code": refusal.code, "message": refusal.message, "note": refusal.note, "hint": refusal.hint}
                return {REFUSAL: json.dumps(said).encode()}

        key = cache_key(attn, target, by.name, schedule, variant, by.toolchain(target))
        files = self.store.get_or_build(key, build)
        if REFUSAL in files:
            raise TargetFault(**json.loads(files[REFUSAL]))
        return Artifact.from_files(files)
