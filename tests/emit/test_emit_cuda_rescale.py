"""Conditional rescaling in CUDA: the line that asks for it, what is printed, and machine code that branches around it."""

from dataclasses import replace
from functools import cache

import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.cuda import compile_program, machine
from tilec.backends.cuda.build import build
from tilec.backends.cuda.emit import emit
from tilec.frontend import read_text
from tilec.ir.nodes import Compute, walk
from tilec.native import lower_native, program_at
from tilec.schedule import EMPTY
from tilec.targets.inspect.loops import innermost, loops
from tilec.targets.inspect.sass import count, disassemble, disassembler, parse
from tilec.tune.hopper import points


def attention(d, mask="", lines=""):
    schedule = lines and f"schedule f on sm90 {{ {lines} }}"
    return read_text(kernel(mask, d=f"d : {d}", scale=f"scale 1 / sqrt({d})", schedule=schedule))


@cache
def program(d, mask, seldom=8.0):
    attn = attention(d, mask).kernels[0]
    return program_at(attn, "sm90", None, replace(next(points(attn, EMPTY)), seldom=seldom))


def left_out(p):
    return [str(s.unless) for r in p.roles for s in walk(r.body) if isinstance(s, Compute) and s.unless is not None]


@pytest.mark.parametrize(
    ("lines", "found"),
    [("", "8.0"), ("rescale delayed", None), ("rescale conditional 8", "8.0"), ("rescale conditional 2.5", "2.5")],
)
def test_the_line_decides(lines, found):
    read = attention(128, CAUSAL, lines)
    attn, schedule = read.kernels[0], read.schedule("f", "sm90")
    for p in (lower_native(attn, "sm90", schedule), program_at(attn, "sm90", schedule, next(points(attn, schedule)))):
        assert len(left_out(p)) == (0 if found is None else 2)
        text = [str(s.value) for r in p.roles for s in walk(r.body) if isinstance(s, Compute)]
        assert sum(f"<= @row_max + {found} / " in x for x in text) == len(left_out(p))


def test_what_is_printed():
    text = emit(program(128, CAUSAL)).text
    assert text.count("if (any_lane(!(shrink[0] == 1.0f && shrink[1] == 1.0f))) {") == 2
    assert "any_lane" not in emit(program(128, CAUSAL, None)).text


@pytest.mark.parametrize(("d", "mask"), [(256, ""), (128, CAUSAL), (64, "")])
def test_a_warp_jumps_over_the_multiplications(d, mask):
    p = program(d, mask)
    printed = emit(p)
    made = build(printed.text, printed.function)
    assert "C75" not in made.log and " 0 bytes spill stores" in made.log
    compile_program(p)
    if disassembler() is None:
        pytest.skip("no nvdisasm here")
    (code,) = parse(disassemble(made.cubin)).values()
    for loop in innermost(loops(code), *machine.PRODUCTS):
        found = [i for i in loop.instructions() if i.is_("VOTE", "FMUL", "BRA")]
        vote = next(n for n, i in enumerate(found) if i.is_("VOTE"))
        assert found[vote + 1].is_("BRA")
        assert count(found[vote + 2 : vote + 2 + d // 2], "FMUL") == d // 2
