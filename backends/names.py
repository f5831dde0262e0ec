"""Identifiers of generated code: what the program calls things where that is free, else with an underscore more.

Each printer derives its own, with the words its language and its prelude reserve.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Identifiers:
    """One identifier for each thing: a thing is named by any key, and keeps the identifier it got first."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self.taken = set(reserved)
        self.given: dict[Hashable, str] = {}

    def __call__(self, wanted: str, *key: Hashable) -> str:
        """The identifier of thing `key`; at first use `wanted`, or the nearest that is free."""
        if key not in self.given:
            while wanted in self.taken:
                wanted += "_"
            self.taken.add(wanted)
            self.given[key] = wanted
        return self.given[key]

    def scalar(self, name: str) -> str:
        """Of a scalar: an extent, a tile constant, a `let`, a loop counter, `cta`, a role's instance number."""
        return self(name, "scalar", name)

    def buffer(self, name: str) -> str:
        """Of a register tile, or of a shared buffer's offset."""
        return self(name, "buffer", name)

    def pointer(self, tensor: str) -> str:
        """Of a tensor's first element."""
        return self(f"{tensor}_ptr", "pointer", tensor)

    def stride(self, tensor: str, dimension: int) -> str:
        """Of a tensor's stride, in elements."""
        return self(f"{tensor}_s{dimension}", "stride", tensor, dimension)
