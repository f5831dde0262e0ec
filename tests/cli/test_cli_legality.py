"""What each target and backend honours of a schedule, and the message where it does not."""

import pytest

from tilec.budget import shared_memory
from tilec.dsl.faults import Faults, TargetFault
from tilec.frontend import bind, read_text
from tilec.legality import check_schedule, check_target, choose_backend
from tilec.route import check_spec
from tilec.targets import NAMES, target

KERNEL = """
kernel attend {{
  index  b : B, h : 8, q : M, k : N, d : {depth}
  query  Q[b, q, h, d] : {dtype}
  key    K[b, k, h // 4, d] : {dtype}
  value  V[b, k, h // 4, d] : {dtype}
  output O[b, q, h, d] : bf16
  scale  1
  mask   {mask}
}}
schedule attend on {target} {{ {lines} }}
"""


def spec(lines, on="sm90", *, depth=128, dtype="bf16", mask="k <= q + N - M"):
    return read_text(KERNEL.format(lines=lines, target=on, depth=depth, dtype=dtype, mask=mask))


def faults(lines, on="sm90", backend="triton", **options):
    read = spec(lines, on, **options)
    machine = target(on)
    try:
        check_schedule(
            read.kernels[0], read.schedule("attend", on), machine, choose_backend(machine, backend), read.source
        )
    except Faults as found:
        return found.faults
    return []


HONOURED = ["tile q = 128, k = 64", "tune q in {64, 128}  tune k in {32, 64}", "stages 2"]
HONOURED += ["rescale delayed", "skip proved", "skip none", "map linear", "map longest_first", "map persistent"]
HONOURED += ["warps split_q(4)", "warps split_q(8)"]


@pytest.mark.parametrize("on", NAMES)
@pytest.mark.parametrize("line", HONOURED)
def test_portable_lines_are_honoured_everywhere(line, on):
    assert not faults(line, on)
    native = ("split_q", "persistent") if on == "gfx942" else ("split_q",)  # what native kernels do in their own way
    assert not faults(line, on, backend=None) or any(word in line for word in native)


LEFT = [
    "rescale eager",
    "overlap on",
    "overlap off",
    "split k = auto",
    "split k = 4",
    "rescale conditional 8",
    "skip table",
]


@pytest.mark.parametrize("on", NAMES)
@pytest.mark.parametrize("line", LEFT)
def test_what_a_portable_backend_leaves_to_triton_is_refused(line, on):
    (fault,) = faults(line, on)
    assert fault.code == "E0811"
    assert f"the triton backend cannot honour `{line}`" in fault.message
    assert "remove the line" in fault.hint
    assert fault.span is not None


IMPOSSIBLE = [
    ("warps specialized(consumer = 2)", "gfx942", "cannot take `warps specialized`", "ping_pong(wave = 8)"),
    ("warps specialized(consumer = 2)", "sm80", "cannot take `warps specialized`", "split_q(4)"),
    ("warps ping_pong(consumer = 2)", "gfx950", "cannot take `warps ping_pong`", "ping_pong(wave = 8)"),
    ("warps ping_pong(wave = 8)", "sm90", "cannot take `warps ping_pong`", "ping_pong(consumer = 2)"),
    ("warps ping_pong(wave = 8)", "sm89", "cannot take `warps ping_pong`", "split_q(4)"),
    ("cluster 2", "sm80", "sm80 has no clusters", "sm90"),
    ("cluster 2", "gfx942", "gfx942 has no clusters", "sm90"),
    ("map xcd by h", "sm90", "sm90 has no XCDs", "map longest_first"),
    ("warps split_q(6)", "sm90", "`split_q(6)` is not legal", "split_q(4)"),
]


@pytest.mark.parametrize(("line", "on", "message", "nearest"), IMPOSSIBLE)
def test_what_the_hardware_lacks_names_the_nearest_legal_line(line, on, message, nearest):
    for backend in ("triton", None):
        (fault,) = faults(line, on, backend)
        assert fault.code == "E0810"
        assert message in fault.message
        assert nearest in fault.hint
    with pytest.raises(Faults):
        check_spec(spec(line, on))


@pytest.mark.parametrize(
    ("line", "on", "native"),
    [
        ("warps specialized(consumer = 2)", "sm100", "cuda"),
        ("warps ping_pong(wave = 8)", "gfx950", "hip"),
        ("cluster 2", "sm100", "cuda"),
    ],
)
def test_a_line_for_a_native_backend_says_that_it_is_not_there(line, on, native):
    (fault,) = faults(line, on)
    assert fault.code == "E0811"
    assert f"the {native} backend of {on}" in fault.note
    check_spec(spec(line, on))  # the schedule itself is right: its target has the hardware


def test_map_xcd_is_for_chiplets():
    assert not faults("map xcd by h", "gfx942")
    for by in ("b", "d"):
        (fault,) = faults(f"map xcd by {by}", "gfx942")
        assert (fault.code, fault.hint) == ("E0811", "`map xcd by h` is the nearest")


def test_longest_first_needs_rows_that_can_be_ordered():
    packed = read_text(
        KERNEL.format(lines="map longest_first", target="sm90", depth=64, dtype="bf16", mask="k <= q").replace(
            "q : M", "q : M packed cu"
        )
    )
    with pytest.raises(Faults) as caught:
        check_spec(packed, "sm90", "triton")
    (fault,) = caught.value.faults
    assert (fault.code, "`map linear`" in fault.hint) == ("E0811", True)


@pytest.mark.parametrize(
    ("order", "legal"), [("q", True), ("residue, q", True), ("residue", True), ("h, q", False), ("k", False)]
)
def test_orders(order, legal):
    found = faults(f"order {order}", mask="(q - k) % 4 == 0")
    assert ([f.code for f in found] == []) == legal
    if not legal:
        assert found[0].code == "E0811"
        assert "`order residue, q` or `order q`" in found[0].hint


@pytest.mark.parametrize(("size", "nearest"), [(48, 32), (112, 128), (1024, 512)])
def test_tile_sizes_are_powers_of_two(size, nearest):
    (fault,) = [f for f in faults(f"tile q = {size}") if f.code == "E0812"]
    assert f"= {nearest}`" in fault.hint
    (fault,) = [f for f in faults(f"tune q in {{64, {size}}}") if f.code == "E0812"]
    assert fault.span is not None


def test_the_budget_is_shown_as_a_sum():
    (fault,) = faults("tile q = 128, k = 128  stages 4")
    assert fault.code == "E0803"
    assert fault.message == "this schedule needs 294,912 bytes of shared memory and sm90 has 232,448"
    assert fault.note == "queries 32,768 + K 4 x 32,768 + V 4 x 32,768 = 294,912 of 232,448 bytes"
    assert fault.hint == "`stages 3` or `k = 64` would fit"
    assert not faults("tile q = 128, k = 128  stages 3")


def test_the_budget_refuses_only_what_no_free_choice_can_save():
    assert not faults("stages 4")
    assert not faults("tune k in {32, 256}  tile q = 128  stages 3")
    (fault,) = faults("tune k in {256, 512}  tile q = 128  stages 3")
    assert fault.code == "E0803"


def test_a_value_that_reuses_a_key_is_counted_once():
    text = KERNEL.format(lines="", target="sm90", depth=128, dtype="bf16", mask="true")
    reused = text.replace("value  V[b, k, h // 4, d] : bf16", "value  K")
    one = shared_memory(read_text(reused).kernels[0], target("sm90"), 64, 64, 2)
    two = shared_memory(read_text(text).kernels[0], target("sm90"), 64, 64, 2)
    assert two.total - one.total == 2 * 64 * 128 * 2


def test_the_budget_of_an_unbound_head_dim_is_unknown():
    attn = spec("", depth="D").kernels[0]
    assert shared_memory(attn, target("sm90"), 64, 64, 2) is None
    assert shared_memory(bind(attn, {"D": 80}), target("sm90"), 64, 64, 1).total == 3 * 64 * 128 * 2


def test_residue_order_needs_a_congruence():
    assert not faults("order residue, q", mask="(q - k) % 4 == 0 and k <= q")
    (fault,) = faults("order residue, q")
    assert fault.code == "E0813"


def test_all_faults_of_a_schedule_come_at_once_in_order():
    found = faults("tile q = 48  warps specialized(consumer = 2)  cluster 2  map xcd by h", "sm80")
    assert [f.code for f in found] == ["E0812", "E0810", "E0810", "E0810"]
    assert [f.span.start for f in found] == sorted(f.span.start for f in found)


def test_dtypes_and_backends_of_a_target():
    attn = spec("", dtype="e4m3").kernels[0]
    check_target(attn, target("sm90"))
    with pytest.raises(Faults) as caught:
        check_target(attn, target("sm80"))
    assert {f.code for f in caught.value.faults} == {"E0904"}
    assert choose_backend(target("gfx942")).name == "hip"
    for name, machine in (("cuda", "gfx942"), ("cuda", "sm100"), ("cpu", "sm90")):
        with pytest.raises(TargetFault) as refused:
            choose_backend(target(machine), name)
        assert refused.value.code == "E0903"
        assert "`triton`" in refused.value.hint
