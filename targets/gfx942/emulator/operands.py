"""Operands as text, and which registers they name.

Registers are numbered in one space, so that a set of them is one integer: v0 to v255 are 0 to 255, a0 to a255 follow,
then scalar registers by their encoding (AMD Instinct MI300 ISA reference, "Scalar operands": vcc 106, m0 124, exec 126).
SCC is one more bit behind them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cache

VECTORS = 512
SCALARS = 128
FIRST_ACC = 256
VCC, M0, EXEC, SCC = 106, 124, 126, 128
NAMED = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1),
    "flat_scratch": (102, 2),
    "xnack_mask": (104, 2),
}
REGISTER = re.compile(r"(v|a|s|ttmp)(?:(\d+)|\[(\d+):(\d+)\])")
WRAPPED = re.compile(r"(-)?(?:\|(.+)\||(?:neg|abs|sext)\((.+)\)|(.+))")


class Unsupported(Exception):
    """An instruction or operand that the emulator has no meaning for; the message shows it."""


@dataclass(frozen=True)
class Operand:
    """`-|v[2:3]|`: kind v (a as v above 255), first 2, count 2, negative and absolute.  A constant has kind c and `value`,
    an integer or the float that it stands for; `off` has kind o."""

    kind: str
    first: int = 0
    count: int = 1
    value: int | float = 0
    negative: bool = False
    absolute: bool = False
    extend: bool = False  # sext(): a sub-dword select is signed

    @property
    def vector(self) -> bool:
        return self.kind == "v"

    @property
    def scalar(self) -> bool:
        return self.kind == "s"

    @property
    def mask(self) -> int:
        """The set of registers it names."""
        if self.kind == "v":
            return ((1 << self.count) - 1) << self.first
        if self.kind == "s":
            return ((1 << self.count) - 1) << (VECTORS + self.first)
        return 0

    @property
    def low(self) -> Operand:
        """The first register of a pair; a constant as it is."""
        return Operand(self.kind, self.first) if self.kind in "vs" else self

    @property
    def high(self) -> Operand:
        """The second register of a pair; a constant as it is."""
        return Operand(self.kind, self.first + 1) if self.kind in "vs" else self

    @property
    def registers(self) -> range:
        """Numbers of its vector registers."""
        return range(self.first, self.first + self.count) if self.kind == "v" else range(0)

    @property
    def bits(self) -> int:
        """A constant as 32 bits; a floating one as IEEE single."""
        if isinstance(self.value, float):
            return int(struct.unpack("<I", struct.pack("<f", self.value))[0])
        return self.value & 0xFFFFFFFF

    @property
    def half(self) -> int:
        """A constant as 16 bits; a floating one as IEEE half."""
        if isinstance(self.value, float):
            return int(struct.unpack("<H", struct.pack("<e", self.value))[0])
        return self.value & 0xFFFF

    @property
    def bits64(self) -> int:
        """A constant as 64 bits: integers are sign-extended, a floating one is IEEE double."""
        if isinstance(self.value, float):
            return int(struct.unpack("<Q", struct.pack("<d", self.value))[0])
        return self.value & 0xFFFFFFFFFFFFFFFF


@cache
def operand(text: str) -> Operand:
    """An operand from its text.  Raises Unsupported."""
    if text == "off":
        return Operand("o")
    if text in NAMED:
        first, count = NAMED[text]
        return Operand("s", first, count)
    found = REGISTER.fullmatch(text)
    if found:
        kind, one, low, high = found.groups()
        first = int(one if one is not None else low)
        count = 1 if one is not None else int(high) - first + 1
        if kind in "va":
            return Operand("v", first + (FIRST_ACC if kind == "a" else 0), count)
        return Operand("s", first + (108 if kind == "ttmp" else 0), count)
    try:
        return Operand("c", value=int(text, 0))
    except ValueError:
        pass
    try:
        return Operand("c", value=float(text))
    except ValueError:
        pass
    wrapped = WRAPPED.fullmatch(text)
    inner = wrapped and (wrapped[2] or wrapped[3] or wrapped[4])
    if wrapped is None or inner is None or inner == text:
        raise Unsupported(f"operand `{text}`")
    base = operand(inner)
    return Operand(
        base.kind,
        base.first,
        base.count,
        base.value,
        negative=bool(wrapped[1]) or text.startswith("neg("),
        absolute=bool(wrapped[2]) or text.startswith(("abs(", "-abs(")),
        extend=text.startswith("sext("),
    )
