"""The check of machine code against the program: good kernels pass, and each planted difference is found."""

import re
from dataclasses import replace
from functools import cache

import pytest
from feature_specs import kernel
from test_emit_cuda import built, edited, printed

from tilec.backends.base import Variant
from tilec.backends.cuda import ALIGNED, BACKEND, compile_program, machine
from tilec.backends.cuda.build import build
from tilec.backends.cuda.expect import expected, unused
from tilec.backends.cuda.machine import check_machine
from tilec.backends.cuda.offline import machine_code
from tilec.dsl.faults import TargetFault
from tilec.frontend import read_text
from tilec.native import lower_native
from tilec.schedule import EMPTY
from tilec.targets.inspect import sass
from tilec.targets.inspect.sass import disassemble, parse

pytestmark = pytest.mark.skipif(sass.disassembler() is None, reason="no nvdisasm here")

QK = "mma S = Q . sK[n % 2] queue wgmma\n"
PV = "        mma O += P . sV[(n - 1) % 2] queue wgmma\n"
TURN = "        arrive turn[1 - wg]\n"
SYNC = "        sync turn[wg]\n"
FILL = (
    "      copy sK[n % 2] = K[b, j * TK + iota(k), h // G, iota(d)] where j * TK + iota(k) < N signal k_full[n % 2]\n"
)
PINS = re.compile(r"^ *pin\([^;]*;\n", re.M)


@cache
def code(cubin):
    (function,) = parse(disassemble(cubin)).values()
    return function


def refused(program, function):
    with pytest.raises(TargetFault) as caught:
        check_machine(program, function)
    return caught.value


def test_a_good_kernel_passes():
    right, full = check_machine(edited(), code(built().cubin)).steps
    assert (right.loop, full.loop) == ("for j, right", "for j, full")
    for step in (right, full):
        assert (step.passes, step.products, step.exponentials, step.asked) == (1, 16, 66, 16)
        assert 16 <= step.ahead <= 66
        assert step.instructions > step.products + step.exponentials
    assert right.instructions > full.instructions  # the mask


def test_what_a_program_asks_for():
    want = expected(edited())
    assert (want.products, want.copies, want.fills) == (48, 5, (1, 2))
    right, full = want.passes
    assert (full.products, full.least, full.most, full.ahead) == (16, 66, 66, 16)
    assert (full.waits, full.syncs, full.arrivals) == (2, 1, 1)
    assert (right.least, right.most) == (66, 66)


def test_exponentials_that_may_be_shared_or_moved_have_a_least_and_a_most():
    alike = edited(("    O = @O * @c\n", "    O = @O * @c * exp2(@top) * exp2(float(wg))\n"))
    full = expected(alike).passes[1]
    assert (full.least, full.most) == (66 + 2, 66 + 64 + 64)  # one for each row; once in front of the loop


def test_exponentials_that_a_tile_is_made_of_come_before_its_wait():
    more = edited(("        new = max(@top", "        S = exp2(@S)\n        new = max(@top"))
    assert [p.ahead for p in expected(more).passes] == [64 + 16] * 2


FACTOR = "        top = exp2(@top)\n"
V_FULL = "        wait v_full[(n - 1) % 2] parity (n - 1) // 2 % 2\n"
FIRST = QK + "        await wgmma pending 0\n"
DIFFERENCES = {
    "a product in loops": ((PV, PV + PV), "E0919", "loops have 16, 16 products (HGMMA), the program's have 24, 24"),
    "a product elsewhere": ((FIRST, QK + "        " + FIRST), "E0919", "16 products (HGMMA) are outside of loops"),
    "an exponential": (("        S = exp2", FACTOR + "        S = exp2"), "E0919", "for j, right: 66 exponentials (MUFU.EX2)"),
    "an arrival": ((TURN, TURN + TURN), "E0919", "for j, right: 1 arrivals at a named barrier (BAR.ARV)"),
    "a turn": ((SYNC, SYNC + SYNC), "E0919", "for j, right: 1 waits for a named barrier (BAR.SYNC)"),
    "a wait": ((V_FULL + PV, V_FULL + V_FULL + PV), "E0919", "for j, right: 2 waits for barriers (SYNCS.PHASECHK)"),
    "a copy": ((FILL, FILL + FILL), "E0919", "loops have 1, 2 copies (UTMALDG), the program's have 1, 3"),
    "a later wait for products": (("after 8 of 32", "after 32 of 32"), "E0918", "for j, full: products are awaited after"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_the_code_lacks_of_its_program_is_found(name):
    edit, number, reason = DIFFERENCES[name]
    found = refused(edited(edit), code(built().cubin))
    assert (found.code, found.note[: len(reason)]) == (number, reason)


def test_the_message_says_what_differs():
    assert str(refused(edited((FILL, FILL + FILL)), code(built().cubin))).splitlines() == [
        "error[E0919]: the machine code of `causal_gqa_forward` is not what its program says",
        "    = loops have 1, 2 copies (UTMALDG), the program's have 1, 3",
        "    = this is a mistake of the compiler, not of the spec",
    ]


def test_a_product_too_many_is_found():
    found = refused(edited(), code(built((PV + TURN, PV + PV + TURN)).cubin))
    assert (found.code, found.note) == ("E0919", "loops have 24, 24 products (HGMMA), the program's have 16, 16")


def test_a_wait_that_nothing_pins_moves_and_is_a_fault(monkeypatch):
    good = printed()
    loose = replace(good, text=PINS.sub("", good.text))
    assert loose.text != good.text
    monkeypatch.setattr("tilec.backends.cuda.emit.emit", lambda _: loose)
    with pytest.raises(TargetFault) as caught:
        compile_program(edited())
    assert caught.value.code == "E0918"
    assert re.fullmatch(r"for j, \w+: products are awaited after \d+ exponentials, and not after 16", caught.value.note)


def test_spills_in_a_loop_with_products_are_found():
    """Consumers with the registers of a kernel that trades none."""
    good = printed()
    tight = good.text.replace("registers_up<240>", "registers_up<168>")
    assert tight != good.text
    found = refused(edited(), code(build(tight, good.function).cubin))
    assert found.code == "E0918"
    assert re.match(r"\d+ instructions of a loop with products store or load spilled registers", found.note)


# ---------------------------------------------------------------------------------------------- which loop is which


@pytest.mark.parametrize(
    ("sizes", "want", "which"),
    [
        ([16, 16], [16, 16], [0, 1]),
        ([32, 16], [16, 16], [0, 1]),  # the first makes two passes at a time
        ([16, 16, 16], [16, 16], [0, 0, 1]),
        ([8, 8, 12], [8, 12], [0, 0, 1]),
        ([8, 12, 24], [8, 12], [0, 1, 1]),
        ([12, 8], [8, 12], None),
        ([16, 24], [16, 16], None),
        ([16], [16, 16], None),
        ([], [], []),
    ],
)
def test_loops_are_the_programs_in_its_order(sizes, want, which):
    assert machine._in_order(sizes, want) == which


def test_loops_that_run_a_fixed_number_of_times_are_not_compared():
    text = kernel(d="d : 128", k="k : 256", schedule="", scale="scale 1 / sqrt(128)")
    made = BACKEND.compile(read_text(text).kernels[0], "sm90", EMPTY, Variant((), ALIGNED))
    read = made.metadata["machine"]
    assert (read["checked"], read["steps"]) == (False, [])
    assert read["because"].startswith("of 2 loops with products the code has ")


def test_products_that_nothing_reads_are_not_compared():
    text = kernel("score s = 2", d="d : 64", schedule="")
    read = compile_program(lower_native(read_text(text).kernels[0], "sm90")).metadata["machine"]
    assert (read["checked"], read["because"]) == (
        False,
        "nothing reads the products that make scores: the assembler need not make them",
    )
    assert unused(edited()) is None


# ---------------------------------------------------------------------------------------------- what is kept


def test_an_artifact_says_what_was_found():
    made = compile_program(edited())
    read = made.metadata["machine"]
    assert read["checked"] and [s["products"] for s in read["steps"]] == [16, 16]
    (name, text), *others = machine_code(made).items()
    assert name.endswith("_sm90.sass") and not others
    assert text.count(b" HGMMA.64x128x16.F32.BF16 ") == 48


def test_without_a_disassembler_the_artifact_says_so(monkeypatch):
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    made = compile_program(edited())
    assert made.metadata["machine"]["checked"] is False
    assert made.metadata["machine"]["because"].startswith("there is no nvdisasm")
    assert machine_code(made) == {}
