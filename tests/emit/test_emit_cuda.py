"""CUDA C++ of a Hopper program: as text, and as the machine code that NVRTC makes of it without a device."""

import re
from functools import cache
from pathlib import Path

import pytest

from tilec.backends.base import Artifact
from tilec.backends.cuda import compile_program
from tilec.backends.cuda.build import build
from tilec.backends.cuda.check import check
from tilec.backends.cuda.emit import emit
from tilec.dsl.faults import TargetFault
from tilec.ir.nodes import Cluster, For, If, Let, While, walk
from tilec.ir.parse import parse_program
from tilec.ir.print import show_stmt
from tilec.targets.inspect.sass import disassemble, parse

HERE = Path(__file__)
TEXT = (HERE.parents[1] / "ir" / "programs" / "hopper_causal_d128.tp").read_text(encoding="utf-8")
GOLDEN = HERE.with_name("golden") / "hopper_causal_d128.cu"


def edited(*edits):
    """The program with each `old` replaced everywhere by `new`; every edit must hit."""
    text = TEXT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return parse_program(text)


@cache
def printed(*edits):
    return emit(edited(*edits))


@cache
def built(*edits):
    kernel = printed(*edits)
    return build(kernel.text, kernel.function)


@cache
def opcodes(*edits):
    """Instructions of the kernel."""
    (function,) = parse(disassemble(built(*edits).cubin)).values()
    return function.opcodes


def test_golden(request):
    """`pytest --update-golden` writes the file anew."""
    text = printed().text
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_source_includes_nothing_and_every_helper_is_used():
    text = printed().text
    assert "#include" not in text
    assert max(map(len, text.splitlines())) <= 120
    for name in re.findall(r"^DEVICE (?:constexpr )?[\w ]+? (\w+)\(", text, re.M):
        assert len(re.findall(rf"\b{name}\b", text)) > 1, name


def test_an_early_launch_sets_itself_up_before_it_waits_for_the_one_in_front():
    edit = ("order longest_first", "order longest_first early")
    early, late = printed(edit).text, printed().text
    assert early.replace("  launch_early();\n", "").endswith(late[late.index('extern "C"') :])
    head = early[: early.index("if (warp < 4)")]
    assert head.index("barriers_ready();") < head.index("launch_early();") and "prefetch_map(Q_map)" in head
    order = [i for i in disassemble(built(edit).cubin).splitlines() if "ACQBULK" in i or "UTMALDG" in i or "ATOM" in i]
    assert "ACQBULK" in order[0] and "ACQBULK" not in disassemble(built().cubin)


def test_every_statement_stands_above_its_code():
    text = re.sub(r"\n\s*//   ", " ", printed().text)
    plain = (Let, If, While, For, Cluster)
    statements = [s for role in edited().roles for s in walk(role.body) if not isinstance(s, plain)]
    assert len(statements) > 60
    for s in statements:
        assert f"// {show_stmt(s)}\n" in text


def test_parameters_are_those_that_the_kernel_uses():
    kinds = {p.name: p.kind for p in printed().parameters}
    assert {n for n, k in kinds.items() if k == "map"} == {"Q_map", "K_map", "V_map"}
    assert {n for n, k in kinds.items() if k == "pointer"} == {"O_ptr", "L_ptr", "counter_ptr"}
    assert {n for n, k in kinds.items() if k == "extent"} == {"B", "H", "M", "N"}
    assert [k for k in kinds.values() if k == "stride"] == ["stride"] * 6  # features of O are contiguous


def test_an_arrival_counts_warps():
    text = printed().text
    counts = dict(re.findall(r"barrier_init\(smem \+ (\w+), (\d+)\)", text))
    assert counts == {
        "q_full": "1",
        "q_empty": "4",
        "k_full": "1",
        "k_empty": "8",
        "v_full": "1",
        "v_empty": "8",
        "slot_full": "1",
        "slot_empty": "8",
    }
    assert text.count("named_sync(turn + wg, 256)") == 2


def test_machine_code_keeps_the_schedule():
    resources = check(built().log, "kernel")
    assert resources.registers == 168 and resources.spills == 0
    ops = opcodes()
    assert not any(op.startswith(("LDL", "STL")) for op in ops)
    products = [op for op in ops if op.startswith("HGMMA")]
    assert set(products) == {"HGMMA.64x128x16.F32.BF16"}
    assert len(products) == (3 + 3) * 8  # QK in prologue and two loops, PV in two loops and epilogue; 8 steps of 16
    assert sum(op.startswith("UTMALDG.5D") for op in ops) == 5
    assert sum(op.startswith("USETMAXREG") for op in ops) == 2
    assert sum(op.startswith("LDSM") for op in ops) == 8
    exponentials = sum(op.startswith("MUFU.EX2") for op in ops)
    assert exponentials == 3 * 64 + 2 * 2  # of S in three places, of c in two


def test_the_wait_for_a_product_stays_in_the_exponentials():
    """After 8 of 32 groups of 2: at least 16 of a thread's 64 exponentials, and the correction, come before it."""
    text = " ".join(op for op in opcodes() if op.startswith(("HGMMA", "WARPGROUP.DEPBAR", "MUFU.EX2", "STS")))
    steps = re.findall(r"HGMMA\S+ WARPGROUP.DEPBAR\S* ((?:MUFU.EX2 )+)STS WARPGROUP.DEPBAR", text)
    assert len(steps) == 2
    assert all(step.count("MUFU") >= 16 for step in steps)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param((("bf16", "f16"),), id="f16"),
        pytest.param((("D = 128", "D = 64"),), id="head dim 64"),
        pytest.param((("after 8 of 32", "after 20 of 32"),), id="a later wait"),
        pytest.param(
            (
                ("    Q = @sQ[wg]\n", ""),
                ("  register Q : bf16[q = 64, d = D] layout fragment(mma = m64n128k16, operand = A)\n", ""),
                ("mma S = Q .", "mma S = sQ[wg] ."),
            ),
            id="Q from shared memory",
        ),
        pytest.param((("    new = max(@top", "    S = tanh(@S * 0.01)\n        new = max(@top"),), id="softcap"),
        pytest.param(
            (("    new = max(@top", "    S = @S + 0.5 * float(j * TK + iota(k) - row)\n        new = max(@top"),),
            id="ALiBi",
        ),
        pytest.param(
            (("tensor counter", "tensor n : table i32[B]\ntensor counter"), ("iota(k) < N, @S", "iota(k) < n[b], @S")),
            id="lengths",
        ),
        pytest.param(
            (
                ("tensor counter", "tensor doc : param i32[N]\ntensor counter"),
                ("    let row = ", "    seek first in 0 .. N where doc[first] >= b\n    let row = first + "),
            ),
            id="seek",
        ),
        pytest.param((("sum[k](@S)", "sum[k](2.0 * @S)"),), id="a sum of more than a tile"),
        pytest.param(
            (("    top = -inf\n", "    load top = L[b, h, row + iota(q)] where row + iota(q) < M\n"),), id="load"
        ),
    ],
)
def test_variants_compile_without_spills(edits):
    assert check(built(*edits).log, "kernel").spills == 0


def test_sums_in_two_chains_need_no_more_registers():
    text, log = emit(edited(("sum[k](@S)", "sum[k, 2](@S)"))).text, built(("sum[k](@S)", "sum[k, 2](@S)")).log
    assert "row_sum_in_two<16>(S, i)" in text and check(log, "kernel").spills == 0


def test_artifact_is_complete():
    made = compile_program(edited())
    assert Artifact.from_files(made.to_files()) == made
    assert made.metadata["threads"] == 384
    assert made.metadata["shared"] <= 232448
    box = {"tensor": "Q", "axis": 1, "rows": 64, "columns": 128, "single": False, "heads": [], "period": 1, "first": 0}
    assert made.metadata["boxes"]["Q_map"] == box


REFUSED = [
    ("1 warp registers", "1 block registers", "warps and warpgroups"),
    ("swizzle(bytes = 128, major = d)", "swizzle(bytes = 64, major = d)", "128-byte swizzled"),
    ("iota(k) < N signal", "iota(k) < N - 1 signal", "leaves out other elements"),
    ("mma S = Q . sK[n % 2] queue wgmma", "mma S = Q . sK[n % 2]", "asynchronously"),
    ("    O = 0.0", "    priority 1\n    O = 0.0", "no text for Priority"),
    ("after 8 of 32", "after 1 of 7", "no whole number"),
    ("barrier turn : named arrivals 2 stages 2", "barrier turn : named arrivals 2 stages 16", "named barriers"),
    ("D = 128, G = 4", "D = 96, G = 4", "128-byte swizzled"),
    ("fragment(mma = m64n128k16, operand = C)", "fragment(mma = m64n128k16, operand = B)", "no fragment"),
    ("registers 24", "registers 20", "multiple of 8"),
    ("sum[k](@S)", "sum[k, 3](@S)", "no sum in 3 chains"),
    ("max[k](@S)", "max[k, 2](@S)", "no max in 2 chains"),
    ("        await wgmma pending 0\n        arrive v_empty[(n - 1) % 2]\n", "", "in flight"),
]


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED, ids=[r[2] + " / " + r[1].strip()[:24] for r in REFUSED])
def test_a_program_without_text_here_is_refused(old, new, reason):
    with pytest.raises(ValueError, match=reason):
        emit(edited((old, new)))


def test_source_that_is_no_cuda_is_a_fault():
    with pytest.raises(TargetFault, match="identifier") as caught:
        build("__device__ int f() { return x; }", "f")
    assert caught.value.code == "E0917"


def test_a_kernel_that_does_not_fit_is_a_fault():
    with pytest.raises(TargetFault) as caught:
        compile_program(edited(("TK = 128", "TK = 176")))
    assert caught.value.code == "E0918"
    assert "serialized" in caught.value.note


def test_spills_are_a_fault():
    log = "56 bytes stack frame, 92 bytes spill stores, 152 bytes spill loads\nptxas info    : Used 168 registers"
    with pytest.raises(TargetFault, match="244 bytes"):
        check(log, "f")
    assert check(log.replace("92", "8").replace("152", "8"), "f").spills == 16
