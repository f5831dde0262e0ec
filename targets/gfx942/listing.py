"""Disassembly of a code object as data: instructions with operands and modifiers, in the order of their addresses.

The text is that of `llvm-objdump -d --mcpu=gfx942` (LLVM, "AMDGPU operand syntax" and "modifier syntax").
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

TOOLS = ("llvm-objdump-19", "llvm-objdump-20", "llvm-objdump-21", "llvm-objdump-22", "llvm-objdump")
LINE = re.compile(r"^\s+(\S.*?)\s*// ([0-9A-F]+): ([0-9A-F ]+?)(?: <.*)?$")
PIECES = re.compile(r"[^,(\[|]*(?:\([^)]*\)[^,(\[|]*|\[[^\]]*\][^,(\[|]*|\|[^|]*\|[^,(\[|]*)*")
WORDS = re.compile(r"(?:[^\s\[(]|\[[^\]]*\]|\([^)]*\))+")
MODIFIER = re.compile(r"([a-z]\w*)(?::(.+))?")
FLAGS = {"offen", "idxen", "addr64", "lds", "glc", "slc", "sc0", "sc1", "nt", "clamp", "gds", "tfe"}
ENCODING = re.compile(r"_(e32|e64|sdwa|dpp|e64_dpp)$")


class NoDisassembly(Exception):
    """No disassembler is installed, or it does not read the code; the message says which."""


@dataclass(frozen=True)
class Instruction:
    """`v_mov_b32_dpp v3, v3 row_bcast:15`: name `v_mov_b32`, form `dpp`, operands `v3` `v3`, modifier row_bcast."""

    address: int
    size: int  # bytes
    text: str
    name: str
    form: str  # e32, e64, sdwa, dpp, or empty where the name says none
    operands: tuple[str, ...]
    modifiers: Mapping[str, str]  # a flag's value is empty

    def number(self, modifier: str, default: int = 0) -> int:
        """The value of a modifier that is one integer."""
        said = self.modifiers.get(modifier)
        return default if said is None else int(said or "0", 0)

    def bits(self, modifier: str, default: Sequence[int]) -> tuple[int, ...]:
        """The value of a modifier that is a list, `op_sel_hi:[1,0]`."""
        said = self.modifiers.get(modifier)
        return tuple(default) if said is None else tuple(int(x, 0) for x in said.strip("[]").split(","))


@dataclass(frozen=True)
class Listing:
    """All instructions of a code object's text; `at` maps an address to an instruction's number."""

    instructions: tuple[Instruction, ...]

    @cached_property
    def at(self) -> dict[int, int]:
        return {x.address: n for n, x in enumerate(self.instructions)}


def read_instruction(text: str, address: int = 0, size: int = 4) -> Instruction:
    """An instruction from its assembly text."""
    mnemonic, _, rest = text.strip().partition(" ")
    pieces = [p.strip() for p in PIECES.findall(rest) if p.strip()]
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    for piece in pieces:
        words = WORDS.findall(piece)
        if mnemonic == "s_waitcnt":
            operands += words
            continue
        head = 0 if _is_modifier(words[0]) else 1
        operands += words[:head]
        for word in words[head:]:
            found = MODIFIER.fullmatch(word)
            if found is None:
                raise NoDisassembly(f"no modifier: `{word}` in `{text}`")
            modifiers[found[1]] = found[2] or ""
    form = ENCODING.search(mnemonic)
    name = mnemonic[: form.start()] if form else mnemonic
    return Instruction(address, size, text.strip(), name, form[1] if form else "", tuple(operands), modifiers)


def _is_modifier(word: str) -> bool:
    return word in FLAGS or (":" in word and "[" not in word.partition(":")[0] and "(" not in word.partition(":")[0])


def parse(text: str) -> Listing:
    """The instructions of a disassembly; lines that hold none are passed over."""
    out = []
    for line in text.splitlines():
        if found := LINE.match(line):
            words = found[3].split()
            x = read_instruction(found[1], int(found[2], 16), 4 * len(words))
            if x.name.startswith(("s_branch", "s_cbranch")):  # shown as a label where the file has one
                x = replace(x, operands=(str(int(words[0], 16) & 0xFFFF),))
            out.append(x)
    return Listing(tuple(out))


@cache
def disassembler() -> str | None:
    """The path of an llvm-objdump; None where there is none."""
    return next((p for t in TOOLS if (p := shutil.which(t)) is not None), None)


def disassemble(code: bytes) -> str:
    """The text of a code object.  Raises NoDisassembly where no llvm-objdump is, or where it fails on this file."""
    tool = disassembler()
    if tool is None:
        raise NoDisassembly("there is no llvm-objdump: Debian's package llvm-19 or ROCm brings it")
    with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
        file.write(code)
        file.flush()
        run = subprocess.run([tool, "-d", "--mcpu=gfx942", file.name], capture_output=True, text=True, check=False)
    if run.returncode:
        raise NoDisassembly(f"{tool}: {run.stderr.strip().partition(chr(10))[0]}")
    return run.stdout
