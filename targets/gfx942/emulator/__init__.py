"""Runs gfx942 machine code on the CPU, instruction by instruction, and says what is wrong with it."""

from tilec.targets.gfx942.emulator.emulator import BadArguments, BankCycles, Emulator, Pointer, Run, spread
from tilec.targets.gfx942.emulator.findings import Finding
from tilec.targets.gfx942.emulator.operands import Unsupported

__all__ = ["BadArguments", "BankCycles", "Emulator", "Finding", "Pointer", "Run", "Unsupported", "spread"]
