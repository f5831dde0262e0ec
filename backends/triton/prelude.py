"""Functions that generated Triton sources may need, printed only where used."""

from __future__ import annotations

FLOOR_DIV = '''@triton.jit
def floor_div(a, b):
    """a // b rounded towards minus infinity (Triton's `//` truncates)."""
    return a // b - ((a % b != 0) & ((a < 0) != (b < 0)))
'''

FLOOR_MOD = '''@triton.jit
def floor_mod(a, b):
    """a % b with the sign of b (Triton's `%` has that of a)."""
    return a - floor_div(a, b) * b
'''

# tanh.approx.f32: one MUFU operation, relative error below 2**-10.987.  PTX ISA, "tanh"; sm_75 and later.
TANH_NVIDIA = '''@triton.jit
def tanh(x):
    """Hardware tanh, relative error below 2**-10.9."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
'''

TANH_PORTABLE = '''@triton.jit
def tanh(x):
    """1 - 2 / (exp(2x) + 1), which keeps its limits where exp overflows; near 0, where it cancels, a series."""
    y = x * x
    series = x * (1.0 - y * (0.33333333 - y * (0.13333333 - y * (0.053968254 - y * 0.021869489))))
    return tl.where(y < 0.0625, series, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))
'''

UNIFORM = '''@triton.jit
def uniform(seed, offset, b, h, q, k):
    """Philox4x32-10 with key (seed low, seed high + offset) and counter (k, q, h, b): upper 24 bits, in [0, 1)."""
    q, k = tl.broadcast(q, k)
    zero = q * 0
    key = tl.cast(seed, tl.uint64) + (tl.cast(offset, tl.uint64) << 32)
    word, _, _, _ = tl.philox(key, k, q, zero + h, zero + b)
    return (tl.cast(word, tl.uint32, bitcast=True) >> 8).to(tl.float32) * 5.9604644775390625e-08
'''


def prelude(helpers: set[str], target: str, interpret: bool) -> str:
    """Definitions of the used helpers, each followed by two blank lines."""
    native = target.startswith("sm") and not interpret
    texts = []
    if helpers & {"floor_div", "floor_mod"}:
        texts.append(FLOOR_DIV)
    if "floor_mod" in helpers:
        texts.append(FLOOR_MOD)
    if "tanh" in helpers:
        texts.append(TANH_NVIDIA if native else TANH_PORTABLE)
    if "uniform" in helpers:
        texts.append(UNIFORM)
    return "".join(f"\n{t}\n" for t in texts)
