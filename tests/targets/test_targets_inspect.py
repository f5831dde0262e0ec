"""Readers of machine code: instructions, and loops wherever the assembler lays their blocks."""

import subprocess
import sys

import pytest

from tilec.targets.inspect import sass
from tilec.targets.inspect.loops import blocks_of, innermost, loops
from tilec.targets.inspect.sass import Instruction, NoDisassembly, count, disassemble, parse

HEAD = """\
\t.target\tsm_90

//--------------------- .text.f  --------------------------
\t.section\t.text.f,"ax",@progbits
\t.align\t128
        .global         f
f:
.text.f:
"""
# A loop over tiles with a loop of products inside.  The retry of its wait, L_9, lies behind the end, as ptxas puts it; L_4 issues
# a copy once for each value of a register that must be uniform.
NESTED = """\
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   ISETP.GE.AND P1, PT, R15, R22, PT ;
        /*0020*/              @!P1 BRA `(.L_x_3) ;
.L_x_2:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R11+UR4+0x28028], R21 ;
        /*0040*/              @!P1 BRA `(.L_x_9) ;
.L_x_5:
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, R152, gdesc[UR8].tnspB, R24, !UPT, gsb0 ;
        /*0060*/               @P2 MUFU.EX2 R18, R21 ;
        /*0070*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0080*/               @P1 BRA `(.L_x_2) ;
.L_x_3:
        /*0090*/                   STG.E.128 desc[UR10][R2.64], R4 ;
.L_x_4:
        /*00a0*/                   UTMALDG.5D [UR8], [UR16] ;
        /*00b0*/               @P0 BRA.U.ANY `(.L_x_4) ;
        /*00c0*/                   BRA.U !UP0, `(.L_x_1) ;
        /*00d0*/                   EXIT ;
.L_x_9:
        /*00e0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R14+URZ+0x28028], R21 ;
        /*00f0*/              @!P1 BRA `(.L_x_9) ;
        /*0100*/                   BRA `(.L_x_5) ;
.L_x_99:
        /*0110*/                   BRA `(.L_x_99);
        /*0120*/                   NOP;
"""


def function(text):
    return parse(HEAD + text)["f"]


def test_an_instruction_has_opcode_modifiers_operands_and_predicate():
    found = function(NESTED).instructions
    assert found[3] == Instruction(
        0x30, "SYNCS", ("PHASECHK", "TRANS64", "TRYWAIT"), ("P1", "[R11+UR4+0x28028]", "R21"), None
    )
    assert found[5].operands == ("R24", "R152", "gdesc[UR8].tnspB", "R24", "!UPT", "gsb0")
    assert (found[4].predicate, found[4].target) == ("!P1", ".L_x_9")
    assert found[-1] == Instruction(0x120, "NOP", (), (), None)
    copies = found[11]
    assert copies.name == "BRA.U.ANY"
    assert copies.is_("BRA") and copies.is_("LDL", "BRA.U") and not copies.is_("BRA.UP")


def test_functions_are_sections():
    second = (HEAD + "        /*0000*/                   EXIT ;\n").replace(".text.f", ".text.g")
    found = parse(HEAD + NESTED + second)
    assert [(n, len(f.instructions)) for n, f in found.items()] == [("f", 19), ("g", 1)]
    assert found["f"].labels[".L_x_5"] == 5


def test_a_wait_that_is_tried_again_elsewhere_is_in_the_loop_that_waits():
    outer, inner, retry = found = loops(function(NESTED))
    addresses = [[i.address for i in x.instructions()] for x in found]
    assert addresses[2] == [0xE0, 0xF0]
    assert addresses[1] == [0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0xE0, 0xF0, 0x100]
    assert addresses[0] == [*range(0x10, 0xD0, 0x10), 0xE0, 0xF0, 0x100]
    assert retry.inner == frozenset() and inner.inner == retry.blocks and outer.inner == inner.blocks | retry.blocks


def test_a_step_leaves_out_loops_inside_and_jumps_back():
    _, inner, _ = loops(function(NESTED))
    assert [i.opcode for i in inner.step()] == ["SYNCS", "BRA", "HGMMA", "MUFU", "WARPGROUP", "BRA"]
    assert count(inner.step(), "MUFU.EX2", "HGMMA") == 2


def test_innermost_loops_with_an_instruction():
    found = loops(function(NESTED))
    assert innermost(found, "HGMMA") == (found[1],)
    assert innermost(found, "UTMALDG") == (found[0],)
    assert innermost(found, "LDL") == ()


def test_a_backward_jump_into_code_that_is_entered_elsewhere_is_no_loop():
    """Of two blocks that jump to each other and are both entered from outside, neither dominates the other."""
    text = """\
        /*0000*/               @P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0010*/                   NOP ;
.L_x_2:
        /*0020*/               @P1 BRA `(.L_x_1) ;
        /*0030*/                   EXIT ;
"""
    f = function(text)
    assert [b.next for b in blocks_of(f)] == [(2, 1), (2,), (1, 3), ()]
    assert loops(f) == ()


def test_without_a_disassembler_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    with pytest.raises(NoDisassembly, match="no nvdisasm"):
        disassemble(b"")


@pytest.mark.skipif(sass.disassembler() is None, reason="no nvdisasm here")
def test_what_is_no_cubin_is_not_read():
    with pytest.raises(NoDisassembly, match="nvdisasm"):
        disassemble(b"no ELF")


def test_finding_the_disassembler_imports_nothing_heavy():
    code = "import sys; from tilec.targets.inspect.sass import disassembler; disassembler(); print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
