"""C++ identifiers of a generated kernel: what the program calls things where that is free, else with an underscore more."""

from __future__ import annotations

from collections.abc import Hashable

_KEYWORDS = """alignas alignof and asm auto bool break case catch char class const constexpr continue default delete do double
else enum explicit export extern false float for friend goto if inline int long mutable namespace new not operator or private
protected public register return short signed sizeof static struct switch template this throw true try typedef typename union
unsigned using virtual void volatile while xor"""

# What the printer itself writes into every kernel.
_OURS = "a e g i r s v x y lane warp smem shared scratch row0 col0 to live value low high bar"


class Names:
    """One identifier for each thing: a thing is named by any key, and keeps the identifier it got first."""

    def __init__(self, reserved: frozenset[str]) -> None:
        self.taken = {*_KEYWORDS.split(), *_OURS.split(), *reserved}
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

    def stage(self, name: str) -> str:
        """Of the bytes that a stage of a shared buffer takes."""
        return self(f"{name}_stage", "stage", name)

    def barrier(self, name: str) -> str:
        """Of the offset of an mbarrier, or of the number of a named barrier."""
        return self(name, "barrier", name)

    def pointer(self, tensor: str) -> str:
        """Of a tensor's first element."""
        return self(f"{tensor}_ptr", "pointer", tensor)

    def map(self, tensor: str, box: Hashable) -> str:
        """Of a tensor's map with this box."""
        return self(f"{tensor}_map", "map", tensor, box)

    def stride(self, tensor: str, dimension: int) -> str:
        """Of a tensor's stride, in elements."""
        return self(f"{tensor}_s{dimension}", "stride", tensor, dimension)
