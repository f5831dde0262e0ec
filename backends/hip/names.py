"""C++ identifiers of a generated kernel: what the program calls things where that is free, else with an underscore more."""

from __future__ import annotations

from tilec.backends.names import Identifiers

_KEYWORDS = """alignas alignof and asm auto bool break case catch char class const constexpr continue default delete do double
else enum explicit export extern false float for friend goto if inline int long mutable namespace new not operator or private
protected public register return short signed sizeof static struct switch template this throw true try typedef typename union
unsigned using virtual void volatile while xor"""

# What the printer itself writes into every kernel.
_OURS = "e g i s t v lane own low wave lds shared live value from to rows step bytes at above below INF DEVICE KERNEL SHARED"


class Names(Identifiers):
    """Names of what this printer writes."""

    def __init__(self, reserved: frozenset[str]) -> None:
        super().__init__((*_KEYWORDS.split(), *_OURS.split(), *reserved))

    def stage(self, name: str) -> str:
        """Of the bytes that a stage of a shared buffer takes."""
        return self(f"{name}_stage", "stage", name)

    def lane(self, name: str) -> str:
        """Of the part of an address in a shared buffer, or in a tensor, that belongs to the lane."""
        return self(f"{name}_lane", "lane", name)
