"""What statements of a tile program cost on one unit of a target, in clocks: the model behind `timeline`.

    matrix   2 M N K FLOP at the target's rate for the operands
    special  exponentials and other transcendentals, at the target's rate
    vector   other operations on elements, `LANES` a clock; a multiplication whose result is added or subtracted is fused with it;
             operations on scalars and on rows alone are counted over their rows
    memory   bytes at the unit's share of what the L2 reads, where keys and values of neighbouring blocks meet, after `LATENCY`

Not modelled: instruction issue, bank conflicts, what the assembler reorders.  So the figures say who waits for whom, and are no
forecast of speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilec.ir.attention import BYTES, Dtype
from tilec.ir.axes import Lanes, contracted
from tilec.ir.expr import Expr, Iota, Op, Read, Reduce, children
from tilec.ir.nodes import Compute, Copy, Load, Mma, Store
from tilec.targets import Target

TRANSCENDENTAL = ("exp", "exp2", "log", "log2", "tanh", "sqrt")
LANES = 128  # CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions, 9.0: 32-bit float add, multiply
L2 = (
    5120  # bytes a clock over all units: NVIDIA A100 Tensor Core GPU Architecture whitepaper; later ones give no number
)
LATENCY = 700  # chosen: the order of a device memory access
HANDOFF = 30  # chosen: the order of a round trip through shared memory: a barrier, an issue


@dataclass(frozen=True)
class Work:
    """Clocks of each resource."""

    special: float = 0.0
    vector: float = 0.0

    @property
    def span(self) -> float:
        """Clocks from the first to the last element: the slower of the two, which overlap."""
        return max(self.special, self.vector)


@dataclass(frozen=True)
class Costs:
    """`lanes` of every buffer in scope, and its `dtypes`."""

    target: Target
    lanes: Mapping[str, Lanes]
    dtypes: Mapping[str, Dtype]

    def matrix(self, s: Mma) -> float:
        """Clocks of the product on the unit's matrix pipes."""
        dst, a, b = (self.lanes[x.buffer] for x in (s.dst, s.a, s.b))
        deep = prod(dict(a)[axis] for axis in contracted(dst, a, b))
        return 2 * prod(n for _, n in dst) * deep / self.target.matrix[self.dtypes[s.b.buffer]]

    def memory(self, name: str) -> float:
        """Clocks of one stage of a buffer, from the L2."""
        size = prod(n for _, n in self.lanes[name]) * BYTES[self.dtypes[name]]
        return size * self.target.units / L2

    def work(self, s: Compute | Load | Store | Copy) -> Work:
        """Of the statement's elements.  What may be left out is: its condition is all there is to compute."""
        if isinstance(s, Load | Copy):
            return Work(vector=prod(n for _, n in self.lanes[s.dst.buffer]) / LANES)
        sizes = dict(self.lanes[s.dst.buffer]) if isinstance(s, Compute) else {}
        value = s.value if isinstance(s, Store) or s.unless is None else s.unless
        for e in (value,) if isinstance(s, Compute) else (value, *s.index):
            sizes |= self._sizes(e)
        special, vector, axes = self._count(value, sizes)
        if not special and not vector:  # a move, or a conversion
            vector = float(prod(n for a, n in sizes.items() if a in axes))
        return Work(special / self.target.special, vector / LANES)

    def _sizes(self, e: Expr) -> dict[str, int]:
        found = dict(self.lanes[e.buffer]) if isinstance(e, Read) and e.buffer in self.lanes else {}
        for x in children(e):
            found |= self._sizes(x)
        return found

    def _count(self, e: Expr, sizes: Mapping[str, int]) -> tuple[float, float, frozenset[str]]:
        """(transcendentals, other operations, axes) of a value, each operation over the axes of its result."""
        if isinstance(e, Read):
            return 0.0, 0.0, frozenset(a for a, _ in self.lanes.get(e.buffer, ()))
        if isinstance(e, Iota):
            return 0.0, 0.0, frozenset({e.axis})
        parts = [self._count(x, sizes) for x in children(e)]
        axes = frozenset[str]().union(*(a for _, _, a in parts))
        elements = prod(sizes.get(a, 1) for a in axes)
        special, vector = sum(p[0] for p in parts), sum(p[1] for p in parts)
        if isinstance(e, Reduce):
            return special, vector + elements, axes - {e.axis}
        if isinstance(e, Op) and axes:
            if e.name in TRANSCENDENTAL:
                special += elements
            elif not (e.name in ("+", "-") and any(_product(x) for x in children(e))):
                vector += elements
        return special, vector, axes


def _product(e: Expr) -> bool:
    return isinstance(e, Op) and e.name == "*"
