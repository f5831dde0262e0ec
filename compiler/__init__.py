"""tilec: from a `.tile` spec of an attention to a callable.

    import tilec
    attn = tilec.load("causal.tile")
    o = attn(q, k, v)

`load` reads a spec; `fp8` converts 8-bit tensors between vendors' forms.  Mistakes raise `Fault` or `Faults`.
Importing this package imports neither torch nor a toolchain: each name is looked up at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilec import fp8 as fp8
    from tilec.backends.runtime.kernel import Kernel as Kernel
    from tilec.dsl.faults import Fault as Fault
    from tilec.dsl.faults import Faults as Faults
    from tilec.jit import load as load

    __version__: str

_HOME = {
    "load": "tilec.jit",
    "Kernel": "tilec.backends.runtime.kernel",
    "Fault": "tilec.dsl.faults",
    "Faults": "tilec.dsl.faults",
}
__all__ = ["Fault", "Faults", "Kernel", "__version__", "fp8", "load"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("tilec")
    elif name == "fp8":
        value = import_module("tilec.fp8")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'tilec' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
