"""A code object: what its ELF file, metadata note and kernel descriptors say.

Layout: LLVM, "User Guide for AMDGPU Backend": Code Object V5 Metadata, Kernel Descriptor for GFX9, Initial Kernel
Execution State.  One file holds any number of kernels; `<name>.kd` is the 64-byte descriptor of each.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

AMDGPU_MACHINE = 224
GFX942 = 0x4C  # e_flags, EF_AMDGPU_MACH
NOTE = 32  # NT_AMDGPU_METADATA
PRELOADED_ENTRY = 256  # bytes past the entry where firmware that preloads kernel arguments starts


REGISTERS = 512  # of a lane of a SIMD, architectural and accumulation together (AMD Instinct MI300 ISA reference)
GRANULE = 8
MOST_WAVES = 8  # of a SIMD (AMD CDNA 3 white paper)


class BadCodeObject(Exception):
    """The bytes are no code object of gfx942; the message says what is wrong."""


@dataclass(frozen=True)
class Argument:
    """One of a kernel's arguments, `kind` as the metadata calls it: global_buffer, by_value, hidden_block_count_x …"""

    name: str
    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Kernel:
    """One kernel: metadata (bytes, registers of a lane) and the register set-up of its descriptor."""

    name: str
    entry: int  # address in the file
    arguments: tuple[Argument, ...]
    kernarg_size: int
    lds: int  # bytes, fixed
    scratch: int  # bytes of a lane
    vgprs: int  # architectural and accumulation registers together
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    most_threads: int
    user_sgprs: tuple[str, ...]  # what the first scalar registers hold, one word each
    group_ids: tuple[bool, bool, bool]
    group_info: bool
    scratch_offset: bool
    preload: tuple[int, int]  # first dword of the kernel arguments, and how many come in scalar registers
    accum_offset: int  # register that a0 is


@dataclass(frozen=True)
class CodeObject:
    """`image`: the file's loaded bytes by address from 0."""

    data: bytes
    image: bytes
    kernels: Mapping[str, Kernel]


def waves_of(registers: int) -> int:
    """Waves of a SIMD that so many registers of a lane leave room for."""
    return min(MOST_WAVES, REGISTERS // (-(-max(1, registers) // GRANULE) * GRANULE))


USER = (  # bits of kernel_code_properties, and the scalar registers that each sets up
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg", 2),
    ("dispatch_id", 2),
    ("flat_scratch", 2),
    ("private_segment_size", 1),
)


def _descriptor(data: bytes) -> dict[str, Any]:
    (entry,) = struct.unpack_from("<q", data, 16)
    rsrc3, _, rsrc2, properties, preload = struct.unpack_from("<IIIHH", data, 44)
    user = tuple(f"{n}.{k}" for bit, (n, words) in enumerate(USER) if properties >> bit & 1 for k in range(words))
    return {
        "entry": entry,
        "user_sgprs": user,
        "group_ids": (bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        "group_info": bool(rsrc2 >> 10 & 1),
        "scratch_offset": bool(rsrc2 & 1),
        "preload": (preload >> 7, preload & 127),
        "accum_offset": 4 * ((rsrc3 & 63) + 1),
    }


def _metadata(elf: Any) -> dict[str, Any]:
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOTE":
            continue
        for note in section.iter_notes():
            if note["n_type"] in (NOTE, "NT_AMDGPU_METADATA"):
                raw = note["n_descdata"]
                found: dict[str, Any] = msgpack.unpackb(raw if isinstance(raw, bytes) else raw.encode("latin-1"))
                return found
    raise BadCodeObject("the file has no note of AMDGPU metadata")


def read(data: bytes) -> CodeObject:
    """A code object from a file's bytes.  Raises BadCodeObject, as for an offload bundle or another machine's code."""
    if not data.startswith(b"\x7fELF"):
        raise BadCodeObject("not an ELF file (compile with --no-gpu-bundle-output)")
    elf = ELFFile(io.BytesIO(data))
    if elf["e_machine"] not in (AMDGPU_MACHINE, "EM_AMDGPU") or elf["e_flags"] & 0xFF != GFX942:
        raise BadCodeObject(f"code of another machine: {elf['e_machine']}, flags {elf['e_flags']:#x}")
    loaded = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
    image = bytearray(max(s["p_vaddr"] + s["p_memsz"] for s in loaded))
    for s in loaded:
        image[s["p_vaddr"] : s["p_vaddr"] + s["p_filesz"]] = s.data()
    tables = (s for s in elf.iter_sections() if isinstance(s, SymbolTableSection))
    symbols = {s.name: s["st_value"] for t in tables for s in t.iter_symbols()}
    kernels = {}
    for said in _metadata(elf)["amdhsa.kernels"]:
        where = symbols[said[".symbol"]]
        descriptor = _descriptor(bytes(image[where : where + 64]))
        arguments = tuple(
            Argument(a.get(".name", ""), a[".offset"], a[".size"], a[".value_kind"]) for a in said.get(".args", ())
        )
        kernels[said[".name"]] = Kernel(
            name=said[".name"],
            arguments=arguments,
            kernarg_size=said[".kernarg_segment_size"],
            lds=said[".group_segment_fixed_size"],
            scratch=said[".private_segment_fixed_size"],
            vgprs=said[".vgpr_count"],
            agprs=said.get(".agpr_count", 0),
            sgprs=said[".sgpr_count"],
            vgpr_spills=said.get(".vgpr_spill_count", 0),
            sgpr_spills=said.get(".sgpr_spill_count", 0),
            most_threads=said[".max_flat_workgroup_size"],
            **descriptor | {"entry": where + descriptor["entry"]},
        )
    return CodeObject(data, bytes(image), kernels)
