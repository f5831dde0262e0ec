"""C++ identifiers of a generated kernel: what the program calls things where that is free, else with an underscore more."""

from __future__ import annotations

from collections.abc import Hashable

from tilec.backends.names import Identifiers

_KEYWORDS = """alignas alignof and asm auto bool break case catch char class const constexpr continue default delete do double
else enum explicit export extern false float for friend goto if inline int long mutable namespace new not operator or private
protected public register return short signed sizeof static struct switch template this throw true try typedef typename union
unsigned using virtual void volatile while xor"""

# What the printer itself writes into every kernel.
_OURS = "a e g i p r s v x y lane warp smem shared scratch row0 col0 to from left right live value low high bar page"


class Names(Identifiers):
    """Names of what this printer writes."""

    def __init__(self, reserved: frozenset[str]) -> None:
        super().__init__((*_KEYWORDS.split(), *_OURS.split(), *reserved))

    def stage(self, name: str) -> str:
        """Of the bytes that a stage of a shared buffer takes."""
        return self(f"{name}_stage", "stage", name)

    def barrier(self, name: str) -> str:
        """Of the offset of an mbarrier, or of the number of a named barrier."""
        return self(name, "barrier", name)

    def map(self, tensor: str, box: Hashable) -> str:
        """Of a tensor's map with this box."""
        return self(f"{tensor}_map", "map", tensor, box)
