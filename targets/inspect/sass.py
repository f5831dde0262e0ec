"""NVIDIA's machine code as text, and the text as data: functions, instructions, branch targets.

The text is that of `nvdisasm -c` (CUDA Binary Utilities, "nvdisasm"), which Triton's package and the CUDA toolkit bring.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

TOOL = "nvdisasm"
SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+),")
LABEL = re.compile(r"^(\S+):\s*$")
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\w*)((?:\.\w+)*)\s*(.*?)\s*;")
TARGET = re.compile(r"`\((\S+)\)")


class NoDisassembly(Exception):
    """No disassembler is installed, or it does not read the code; the message says which."""


@dataclass(frozen=True)
class Instruction:
    """`@!P1 BRA.U `(.L_x_9)`: predicate `!P1`, opcode `BRA`, modifiers (`U`,), operands as they are written."""

    address: int
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    predicate: str | None = None

    @cached_property
    def name(self) -> str:
        """Opcode and modifiers: `MUFU.EX2`."""
        return ".".join((self.opcode, *self.modifiers))

    def is_(self, *names: str) -> bool:
        """Whether its name is one of these, or one of these with more modifiers behind it."""
        return f"{self.name}.".startswith(tuple(f"{n}." for n in names))

    @property
    def target(self) -> str | None:
        """The label among its operands."""
        return next((m[1] for o in self.operands if (m := TARGET.fullmatch(o))), None)


@dataclass(frozen=True)
class Function:
    """Instructions in the order of their addresses; `labels`: the number of the instruction that each stands before."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @cached_property
    def opcodes(self) -> tuple[str, ...]:
        """Names of all instructions."""
        return tuple(i.name for i in self.instructions)


def count(instructions: Iterable[Instruction], *names: str) -> int:
    """How many of the instructions have one of these names, more modifiers or not."""
    return sum(i.is_(*names) for i in instructions)


def parse(text: str) -> dict[str, Function]:
    """The functions of a disassembly, by name.  What is no instruction, label or section of code is passed over."""
    out: dict[str, Function] = {}
    name, instructions, labels = "", list[Instruction](), dict[str, int]()
    for line in [*text.splitlines(), "\t.section\t.text.,"]:
        if found := LINE.match(line):
            address, predicate, opcode, modifiers, operands = found.groups()
            parts = tuple(o.strip() for o in operands.split(",")) if operands else ()
            instructions.append(
                Instruction(int(address, 16), opcode, tuple(modifiers.split(".")[1:]), parts, predicate)
            )
        elif found := LABEL.match(line):
            labels[found[1]] = len(instructions)
        elif (found := SECTION.match(line)) or line.startswith("\t.section\t.text.,"):
            if instructions:
                out[name] = Function(name, tuple(instructions), labels)
            name, instructions, labels = found[1] if found else "", [], {}
    return out


@cache
def disassembler() -> str | None:
    """The path of nvdisasm: Triton's, else the one on PATH; None without either."""
    triton = find_spec("triton")
    for folder in (triton.submodule_search_locations or ()) if triton is not None else ():
        bundled = Path(folder, "backends", "nvidia", "bin", TOOL)
        if bundled.is_file():
            return str(bundled)
    return shutil.which(TOOL)


def disassemble(cubin: bytes) -> str:
    """The text of a cubin's code.  Raises NoDisassembly where no nvdisasm is, or where it fails on this cubin."""
    tool = disassembler()
    if tool is None:
        raise NoDisassembly(f"there is no {TOOL}: Triton's package or the CUDA toolkit brings it")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            run = subprocess.run([tool, "-c", "-ndf", file.name], capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoDisassembly(f"{tool}: {error.strerror}") from None
    if run.returncode:
        raise NoDisassembly(f"{tool}: {run.stderr.strip().partition(chr(10))[0]}")
    return run.stdout
