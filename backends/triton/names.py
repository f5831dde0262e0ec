"""Python identifiers of a generated kernel: what the spec calls things where that is free, else with an underscore more."""

from __future__ import annotations

import keyword
from collections.abc import Hashable, Iterable

from tilec.backends.names import Identifiers

RESERVED = {*keyword.kwlist, "tl", "triton", "float", "floor_div", "floor_mod", "tanh", "uniform"}


class Names(Identifiers):
    """Names of what this printer writes."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        super().__init__((*RESERVED, *reserved))

    def lane(self, axis: str) -> str:
        """Of 0, 1, 2, … along a tile axis."""
        return self(f"lane_{axis}", "lane", axis)

    def box(self, tensor: str) -> str:
        """Of a tensor's map, which fetches boxes of it."""
        return self(f"{tensor}_box", "box", tensor)

    def base(self, tensor: str, index: Hashable) -> str:
        """Of a tensor's address at scalar indices."""
        return self(f"{tensor}_base", "base", tensor, index)
