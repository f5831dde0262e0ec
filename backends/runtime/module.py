"""What a generated module imports: its kernel from the text in it or from the files beside it, with no compiler.

A generated module holds the signature, the target and, for each artifact, either its files as text or the folder beside
the module that has them with the digest they had when written.  Nothing is read or loaded before the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from tilec.backends.base import Artifact, Variant
from tilec.backends.runtime import device as devices
from tilec.backends.runtime.kernel import Kernel
from tilec.backends.runtime.signature import Signature
from tilec.dsl.faults import TargetFault

Read = Callable[[], dict[str, bytes]]


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and contents of an artifact's files."""
    total = sha256()
    for name in sorted(files):
        total.update(f"{name} {len(files[name])}\n".encode())
        total.update(files[name])
    return total.hexdigest()


class Module:
    """The artifacts of one kernel for one target.  The Provider of `runtime.kernel`.

    Of several artifacts a call takes the one whose features it has most of; one without features fits every call."""

    def __init__(self, target: str, readers: Mapping[frozenset[str], Read], rebuild: str) -> None:
        self.target = target
        self.readers = readers
        self.rebuild = rebuild

    def features(self, target: str) -> frozenset[str]:
        return frozenset().union(*self.readers)

    def artifact(self, target: str, variant: Variant) -> Artifact:
        """Raises TargetFault E0912 for another target, E0914 for tensors without a feature that every artifact needs, E0915 for
        files that are gone or not those that were written."""
        if target != self.target:
            message = f"this kernel was built for {self.target}, not for {target}"
            raise TargetFault("E0912", message, hint=f"rebuild with `{self.rebuild.format(target=target)}`")
        fitting = [f for f in self.readers if f <= variant.features]
        if not fitting:
            lacking = " and ".join(sorted(min(self.readers, key=len) - variant.features))
            message = f"this module's kernel was built only for calls whose tensors are {lacking}, and these are not"
            note = "aligned: addresses and all strides but the last are multiples of 16 bytes, and not 0"
            again = self.rebuild.format(target=target)
            hint = f"rebuild with `{again}`, without `--backend` and without lines that Triton refuses"
            raise TargetFault("E0914", message, note=note, hint=hint)
        best = max(fitting, key=len)
        return Artifact.from_files(self.readers[best]())

    @staticmethod
    def from_text(signature: str, *, target: str, identity: str, rebuild: str, files: Mapping[str, str]) -> Kernel:
        """The kernel whose artifact's files are `files`."""
        data = {name: text.encode() for name, text in files.items()}
        return _kernel(signature, Module(target, {frozenset(): lambda: data}, rebuild), identity)

    @staticmethod
    def from_files(
        module: str,
        signature: str,
        *,
        target: str,
        identity: str,
        rebuild: str,
        artifacts: Mapping[str, tuple[str, str]],
    ) -> Kernel:
        """The kernel whose artifacts lie beside `module` (its `__file__`): features -> (folder, digest)."""
        beside = Path(module).parent
        readers = {
            frozenset(features.split()): _reader(beside / folder, expected, rebuild.format(target=target))
            for features, (folder, expected) in artifacts.items()
        }
        return _kernel(signature, Module(target, readers, rebuild), identity)


def _kernel(signature: str, module: Module, identity: str) -> Kernel:
    """The callable.  Raises TargetFault E0912 at once where this machine has a GPU that is not the module's target."""
    device = devices.first()
    if module.target != "cpu" and device.type != "cpu":
        devices.require(module.target, device, module.rebuild)
    return Kernel(Signature.from_json(signature), module, identity, module.target)


def _reader(folder: Path, expected: str, rebuild: str) -> Read:
    def read() -> dict[str, bytes]:
        try:
            files = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
        except OSError as problem:
            message = f"the compiled kernel in {folder} cannot be read: {problem.strerror}"
            raise TargetFault("E0915", message, hint=f"rebuild with `{rebuild}`") from None
        if digest(files) != expected:
            message = f"the files in {folder} are not those that were written with this module"
            raise TargetFault("E0915", message, hint=f"rebuild with `{rebuild}`")
        return files

    return read
