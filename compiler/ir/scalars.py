"""The scalars of a call: tile constants, extents, and what the program computes of them."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.arith.evaluate import evaluate
from tilec.ir.nodes import Program


def call_scalars(p: Program, extents: Mapping[str, int]) -> dict[str, int]:
    """Values by name, of `p.tile`, `extents` and `p.scalars`.  Raises what `evaluate` does for an extent that is missing."""
    known = {**extents, **dict(p.tile)}
    for name, value in p.scalars:
        known[name] = int(evaluate(value, known))
    return known
