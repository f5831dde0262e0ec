"""Python identifiers of a generated kernel: what the spec calls things where that is free, else with an underscore more."""

from __future__ import annotations

import keyword
from collections.abc import Hashable, Iterable

RESERVED = {*keyword.kwlist, "tl", "triton", "float", "floor_div", "floor_mod", "tanh", "uniform"}


class Names:
    """One identifier for each thing: a thing is named by any key, and keeps the identifier it got first."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.taken = {*RESERVED, *reserved}
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
        """Of a scalar of the program: an extent, a tile constant, a `let`, a loop counter, `cta`."""
        return self(name, "scalar", name)

    def buffer(self, name: str) -> str:
        """Of a register tile."""
        return self(name, "buffer", name)

    def lane(self, axis: str) -> str:
        """Of 0, 1, 2, … along a tile axis."""
        return self(f"lane_{axis}", "lane", axis)

    def pointer(self, tensor: str) -> str:
        """Of a tensor's first element."""
        return self(f"{tensor}_ptr", "pointer", tensor)

    def box(self, tensor: str) -> str:
        """Of a tensor's map, which fetches boxes of it."""
        return self(f"{tensor}_box", "box", tensor)

    def stride(self, tensor: str, dimension: int) -> str:
        """Of a tensor's stride, in elements."""
        return self(f"{tensor}_s{dimension}", "stride", tensor, dimension)

    def base(self, tensor: str, index: Hashable) -> str:
        """Of a tensor's address at scalar indices."""
        return self(f"{tensor}_base", "base", tensor, index)
