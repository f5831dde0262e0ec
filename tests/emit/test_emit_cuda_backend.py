"""The cuda backend from a spec to machine code: which kernels it takes, at which shape, and what it says of the others."""

from functools import cache

import native_kit as kit
import pytest
from feature_specs import CAUSAL, kernel

from tilec.backends.base import Artifact, Variant, backend
from tilec.backends.cuda import ALIGNED, BACKEND
from tilec.dsl.faults import Faults, ScheduleFault, TargetFault
from tilec.frontend import read_text
from tilec.ir.nodes import For, walk
from tilec.ir.parse import parse_program
from tilec.ir.verify import verify
from tilec.native import lower_native
from tilec.targets.inspect.sass import disassembler
from tilec.tune.hopper import points, rows

SOFTCAP = "score s = 30 * tanh(s / 30)"
BIAS = ("bias Bt[b, h, q, k] : f32", "score s = s + Bt[b, h, q, k]")
WINDOW = "mask k <= q + N - M and k > q + N - M - 300"


def spec(*lines, d=128, **parts):
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


def on_sm90(lines):
    return f"schedule f on sm90 {{ {lines} }}"


@cache
def parts(text):
    read = read_text(text)
    return read.kernels[0], read.schedule("f", "sm90")


@cache
def compiled(text):
    return BACKEND.compile(*_arguments(text), Variant((), ALIGNED))


def _arguments(text):
    attn, schedule = parts(text)
    return attn, "sm90", schedule


def tile(text):
    """(query rows, keys) of the compiled kernel."""
    return tuple(compiled(text).metadata["tile"][n] for n in ("TQ", "TK"))


PACKED = {"q": "q : M packed cu_q", "k": "k : N packed cu_k"}
LENGTHS = {"k": "k : N lengths n"}
PAGES = ("", "paged pages[b, k // 16]", "paged pages[b, k // 16]")
TAKEN = {
    "64, no mask": (spec(d=64), (192, 128)),
    "64, softcap": (spec(SOFTCAP, CAUSAL, d=64), (192, 128)),
    "64, bias": (spec(*BIAS, CAUSAL, d=64), (128, 128)),
    "128, causal, groups of 4": (spec(CAUSAL, h="h : 8", head="h // 4"), (128, 128)),
    "128, causal, groups of 7": (spec(CAUSAL, h="h : 14", head="h // 7", dtype="f16"), (128, 128)),
    "128, window, sink": (spec(WINDOW, "sink Z[h] : f32"), (128, 128)),
    "128, prefix": (spec("mask k <= q or k < 40"), (128, 128)),
    "128, chunks": (spec("mask q // 256 == k // 256 and k <= q"), (128, 128)),
    "128, ALiBi": (spec("param slope[h] : f32", "score s = s - slope[h] * (q - k)", "mask k <= q"), (128, 128)),
    "128, bias": (spec(*BIAS, CAUSAL), (128, 112)),
    "192 and 128": (spec(CAUSAL, d=192, more="e : 128", value="V[b, k, h, e] : bf16", output="O[b, q, h, e]"), (128, 128)),
    "two pairs": (spec("query Qr[b, q, h, r] : bf16", "key Kr[b, k, r] : bf16", CAUSAL, more="r : 64"), (128, 128)),
    "256, causal": (spec(CAUSAL, d=256), (128, 80)),
    "dropout": (spec("dropout 0.1", CAUSAL), (128, 128)),
    "f32 output": (spec(CAUSAL, out="f32"), (128, 128)),
    "f16 output": (spec(CAUSAL, out="f16"), (128, 128)),
    "packed, groups of 4": (spec(CAUSAL, h="h : 8", head="h // 4", **PACKED), (128, 128)),
    "64, packed": (spec(d=64, **PACKED), (192, 128)),
    "pages of 16": (spec(CAUSAL, h="h : 8", head="h // 4", tails=PAGES, **LENGTHS), (128, 128)),
    "padded keys, window": (spec(WINDOW, **LENGTHS), (128, 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_a_kernel_compiles_at_this_shape(name):
    text, shape = TAKEN[name]
    made = compiled(text)
    assert made.backend == BACKEND.name == "cuda" and made.variant.features == ALIGNED
    assert tile(text) == shape
    assert made.metadata["registers"] == {128: 168, 192: 128}[shape[0]]  # at entry, before registers are traded
    (cubin,) = made.binaries.values()
    assert cubin.startswith(b"\x7fELF")
    assert made.metadata["machine"]["checked"] == (disassembler() is not None)
    assert Artifact.from_files(made.to_files()) == made
    verify(parse_program(made.sources["program.tile_ir"]), proofs=False)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("64, softcap", {"B": 1, "M": 201, "N": 300}),
        ("128, window, sink", {"B": 1, "M": 300, "N": 420}),
        ("128, bias", {"B": 1, "M": 150, "N": 130}),
        ("192 and 128", {"B": 1, "M": 140, "N": 200}),
        ("two pairs", {"B": 1, "M": 140, "N": 200}),
        ("dropout", {"B": 1, "M": 140, "N": 150}),
        ("f32 output", {"B": 1, "M": 140, "N": 150}),
        ("f16 output", {"B": 1, "M": 140, "N": 150}),
    ],
)
def test_the_lowered_program_is_right(name, sizes):
    text, _ = TAKEN[name]
    assert not kit.complaints(lower_native(*_arguments(text)), text, sizes)


def test_the_backend_is_found_by_name_and_says_its_compiler():
    assert backend("cuda") is BACKEND
    assert BACKEND.features == {"aligned", "short", "few_keys", "many_keys"}
    assert set(BACKEND.toolchain("sm90")) == {"nvrtc"}


# ---------------------------------------------------------------------------------------------- schedules


LINES = {
    "tile q = 64, k = 64": (64, 64),
    "tile k = 48": (128, 48),
    "tune k in {32, 96}": (128, 96),
    "warps specialized(consumer = 1)": (64, 128),
    "warps ping_pong(consumer = 2)  tile k = 64": (128, 64),
    "stages 1": (128, 128),
    "overlap off": (128, 128),
    "map linear": (128, 128),
    "skip none  rescale delayed  order q": (128, 128),
    "rescale conditional 8": (128, 128),
}


def lowered(lines):
    return lower_native(*_arguments(spec(CAUSAL, schedule=on_sm90(lines))))


@pytest.mark.parametrize("lines", LINES)
def test_a_line_is_honoured(lines):
    program = lowered(lines)
    sizes = dict(program.tile)
    assert (sizes["TQ"], sizes["TK"]) == LINES[lines]
    turns = {b.name for b in program.barriers} & {"turn"}
    one_group = "consumer = 1" in lines or "q = 64" in lines
    assert bool(turns) != one_group
    (keys,) = (b for b in program.buffers if b.name == "sK")
    assert keys.stages == (1 if "stages 1" in lines else 2)
    assert any(s.down for r in program.roles for s in walk(r.body) if isinstance(s, For)) != ("overlap off" in lines)
    assert ("descending" in program.grid.order or "longest" in program.grid.order) != ("linear" in lines)


def test_turns_are_what_warps_lines_differ_in():
    barriers = [{b.name for b in lowered(f"warps {n}(consumer = 2)").barriers} for n in ("ping_pong", "specialized")]
    assert barriers[0] - barriers[1] == {"turn"} and not barriers[1] - barriers[0]


REFUSED_LINES = [
    ("tile q = 96", "E0812", "multiples of 64 up to 192", "`q = 64` is the nearest"),
    ("tile k = 272", "E0812", "multiples of 16 up to 256", "`k = 256` is the nearest"),
    ("tile k = 256  stages 1", "E0812", "registers of 240", "smaller tiles of keys"),
    ("tile k = 64  stages 8", "E0803", "of 232,448 bytes", "fewer stages"),
    ("stages 9", "E0808", None, "1 to 8"),
    ("warps split_q(4)", "E0811", "producer warp", "specialized(consumer = 2)"),
    ("warps ping_pong(consumer = 1)", "E0811", "nobody to take turns with", "specialized(consumer = 1)"),
    ("warps specialized(consumer = 4)", "E0808", None, "1 to 3"),
    ("warps specialized(consumer = 2)  tile q = 64", "E0812", "the tile has 64", "`q = 128`"),
    ("warps specialized(consumer = 3)  tune q in {64, 128}", "E0812", "the tile has 64 or 128", "`q = 192`"),
    ("cluster 4", "E0811", "pairs of blocks", "`cluster 2`"),
    ("split k = auto", "E0811", "all keys", "remove"),
    ("warps ping_pong(wave = 8)", "E0810", "AMD", "ping_pong(consumer = 2)"),
    ("rescale eager", "E0811", "divided by the sum once", "`rescale delayed`"),
    ("rescale conditional 16", "E0811", "2 ** 15 is the greatest in f16", "`rescale conditional 8`"),
    ("skip table", "E0811", "tables of tiles", "`skip proved`"),
    ("map xcd by h", "E0810", "one L2", "`map longest_first`"),
]


@pytest.mark.parametrize(("lines", "code", "note", "hint"), REFUSED_LINES, ids=[r[0] for r in REFUSED_LINES])
def test_a_line_that_cannot_be_honoured_is_refused(lines, code, note, hint):
    with pytest.raises((Faults, ScheduleFault)) as caught:
        lowered(lines)
    (fault,) = caught.value.faults if isinstance(caught.value, Faults) else [caught.value]
    assert fault.code == code
    assert (fault.note is None) if note is None else note in fault.note
    assert hint in fault.hint


def test_all_refused_lines_come_at_once_in_order():
    with pytest.raises(Faults) as caught:
        lowered("cluster 4  tile q = 96  skip table")
    assert [f.code for f in caught.value.faults] == ["E0811", "E0812", "E0811"]
    assert [f.span.start for f in caught.value.faults] == sorted(f.span.start for f in caught.value.faults)


def test_shapes_are_tried_from_the_measured_ones_down():
    attn, schedule = parts(spec(CAUSAL, d=64))
    tried = list(points(attn, schedule))
    measured = [r.point for r in rows() if r.widths == (64, 64) and not any(r.classes)]
    assert len(measured) > 1 and tried[: len(measured)] == measured
    assert len(set(tried)) == len(tried)
    assert {p.warpgroups for p in tried} == {1, 2, 3} and min(p.keys for p in tried) == 16
    assert not any(p.turns for p in tried if p.warpgroups == 1)


# ---------------------------------------------------------------------------------------------- what is refused

REFUSED = {
    "pages of 4": (spec(tails=("", "paged pages[b, k // 4]", ""), **LENGTHS), "E0914", "a multiple of 8 rows"),
    "nine residue classes": (spec("mask (q - k) % 9 == 0 and k <= q"), "E0914", "at most 8 residue classes"),
    "f32": (spec(dtype="f32"), "E0914", "bf16 and f16"),
    "e4m3": (spec(dtype="e4m3", out="bf16"), "E0914", "bf16 and f16"),
    "e4m3 output": (spec(out="e4m3"), "E0914", "bf16, f16 or f32"),
    "100 features": (spec(d=100), "E0914", "8 features at a time"),
    "320 features": (spec(d=320), "E0914", "up to 256"),
    "features first": (spec(key="K[b, h, d, k]"), "E0914", "contiguous features"),
    "six dimensions": (
        spec(h="f : 2, g : 2, h : 2", query="Q[b, q, f, g, h, d]", output="O[b, q, f, g, h, d]", lse=""),
        "E0914", "has 5",
    ),
    "a latent of 512": (spec(d=512, key="K[b, k, d]", value="K"), "E0914", "up to 256"),
    "no live key": (spec("mask k > q + N + M"), "E0811", None),
}  # fmt: skip


def faults_of(action):
    with pytest.raises((Faults, TargetFault, ScheduleFault)) as caught:
        action()
    return caught.value.faults if isinstance(caught.value, Faults) else [caught.value]


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_without_native_code_is_refused_with_the_reason(name):
    text, code, note = REFUSED[name]
    found = faults_of(lambda: compiled(text))
    assert {f.code for f in found} == {code}
    assert any(f.note is None if note is None else note in (f.note or "") for f in found)


def test_tensors_that_are_not_aligned_are_refused():
    (fault,) = faults_of(lambda: BACKEND.compile(*_arguments(spec()), Variant()))
    assert fault.code == "E0914" and "16 bytes" in fault.note


@pytest.mark.parametrize("target", ["sm100", "gfx942"])
def test_other_machines_are_refused(target):
    attn, _, schedule = _arguments(spec())
    (fault,) = faults_of(lambda: BACKEND.compile(attn, target, schedule, Variant((), ALIGNED)))
    assert fault.code == "E0914" and target in fault.message


# ---------------------------------------------------------------------------------------------- calls of few queries

SHORT_CALLS = {
    "groups of 4": (spec(CAUSAL, h="h : 8", head="h // 4"), 64),
    "72, groups of 7": (spec(CAUSAL, d=72, h="h : 14", head="h // 7"), 64),
    "64, slopes of groups in pages": (
        spec("param slope[h] : bf16", "score s = s - slope[h] * (q - k)", CAUSAL, d=64, h="h : 8", head="h // 8",
             tails=PAGES, **LENGTHS), 64
    ),
    "128 heads of one key": (spec(CAUSAL, h="h : 128", key="K[b, k, d]", value="V[b, k, d] : bf16"), 128),
    "a key head for each": (spec(CAUSAL), 64),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT_CALLS)
def test_a_variant_for_few_queries(name):
    text, rows = SHORT_CALLS[name]
    made = BACKEND.compile(*_arguments(text), Variant((), BACKEND.features))
    assert made.metadata["tile"]["TQ"] == rows
    packed = made.metadata["boxes"]["Q_map"]["heads"]
    assert bool(packed) == (name != "a key head for each")
    assert Artifact.from_files(made.to_files()).metadata["boxes"]["Q_map"]["heads"] == packed
