"""The least clocks of one key step of a block on a compute unit of AMD's, by what each of its parts must do, if its instructions
are as many as AITER's kernels have: our own may have fewer, and the model of cycles knows how many.

    matrix   products at the target's rate
    issue    slots of a SIMD: one for each matrix and each vector instruction of its waves, four for a transcendental; matrix and
             vector instructions share the slot of a clock
    lds      every wave reads the whole tile of keys and of values, which are written once
    memory   that tile through the vector cache

The longest is the step's, where a SIMD has two waves or more; where it has one, nothing hides the vector work behind products.
The rule and the number of vector instructions are from AITER's forward kernels for gfx942: 248 of them to 32 scores of a lane
with truncated weights, 344 rounded half away, 392 to nearest even, of which it predicts the times' ratios 1 : 1.06 : 1.16 where
1 : 1.08 : 1.14 were measured (MoonMath's published times of them).  Of the 248, 64 are taken to rescale the output, once a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.budget import width
from tilec.ir.attention import BYTES, Attention
from tilec.ir.expr import Op, walk
from tilec.targets import Target

SCORES = 32  # of a lane, in the kernels that were counted
PLAIN = (248 - 64) / SCORES  # vector instructions to a score: maximum, exponent, sum, addresses
ROUNDED = {"bf16": 144 / SCORES, "f16": 1.0}  # more of them, to nearest even; f16 has an instruction that rounds two
PRODUCT = 16_384  # FLOP of a matrix instruction: v_mfma_f32_32x32x8 (AMD matrix instruction calculator, cdna3)
TRANSCENDENTAL = ("exp", "exp2", "log", "log2", "tanh", "sqrt")
QUARTER = 4  # slots of a transcendental (AMD Instinct MI300 ISA reference: a quarter of the rate)


@dataclass(frozen=True)
class Bound:
    """Clocks of `matrix`, `lds` and `memory`; instructions of a SIMD: `products`, `vector` and `special` ones, `slot` clocks each
    and the last four times as long; `waves` of a SIMD."""

    matrix: float
    lds: float
    memory: float
    products: float
    vector: float
    special: float
    slot: int
    waves: int

    @property
    def issue(self) -> float:
        """Clocks in which a SIMD issues."""
        return self.slot * (self.products + self.vector + QUARTER * self.special)

    @property
    def parts(self) -> dict[str, float]:
        """Clocks of each."""
        return {"matrix": self.matrix, "issue": self.issue, "lds": self.lds, "memory": self.memory}

    @property
    def clocks(self) -> float:
        """Of the step."""
        longest = max(self.parts.values())
        return longest if self.waves > 1 else max(longest, self.matrix + self.issue)

    @property
    def by(self) -> str:
        """The longest part."""
        return max(self.parts, key=lambda n: self.parts[n])


def bound(
    attn: Attention, target: Target, q: int, k: int, warps: int, resident: int = 1, *, seldom: bool = False
) -> Bound | None:
    """Of a tile of `q` rows and `k` keys on `warps` waves, `resident` blocks being on a unit, of which one is counted; `seldom`:
    outputs are rescaled in so few steps that it does not count.  None for targets whose issue is not described, and while a head
    dim is a symbol."""
    dims = [width(attn, d) for d in (*attn.contracted, attn.feature)]
    dtype = attn.tensor(attn.value).dtype
    unit = target.unit
    if unit is None or None in dims or dtype not in target.matrix:
        return None
    flops = 2 * q * k * sum(d or 0 for d in dims)
    lanes = q * k / (unit.simds * target.warp)  # scores of a lane on a SIMD, over its waves
    some = [e for line in attn.scores for e in walk(line) if isinstance(e, Op)]
    slow = 1 + sum(e.name in TRANSCENDENTAL for e in some)
    vector = PLAIN + ROUNDED.get(dtype, 0.0) + sum(e.name not in TRANSCENDENTAL for e in some)
    rescaled = 0.0 if seldom else q * (dims[-1] or 0) / (unit.simds * target.warp)
    products = flops / (PRODUCT * target.matrix[dtype] / target.matrix["bf16"]) / unit.simds
    size = k * sum(d or 0 for d in dims) * BYTES[dtype]
    return Bound(
        matrix=flops / target.matrix[dtype],
        lds=(warps + 1) * size / unit.lds,
        memory=size / unit.l1,
        products=products,
        vector=rescaled + lanes * vector,
        special=lanes * slow,
        slot=unit.slot,
        waves=max(1, warps * resident // unit.simds),
    )
