"""`tilec.load` on CPU tensors, whole: parse, lower, cache, interpret; against the exact oracle."""

import subprocess
import sys

import numpy as np
import pytest
import runtime_kit as kit
import torch

import tilec
from tilec.backends.base import Variant
from tilec.backends.cpu import Cpu
from tilec.backends.cpu.launch import as_numpy
from tilec.dsl.faults import CallFault, Faults, TargetFault
from tilec.frontend import bind, read_text
from tilec.identity import cache_key, kernel_identity
from tilec.ir.record import read_record, write_record
from tilec.oracle import exact

SPECS = (kit.CAUSAL, kit.OUTPUT_ONLY, kit.PACKED, kit.PAGED, kit.GROUPED, kit.DOCUMENTS, kit.FP8)

GENERAL = Variant()


@pytest.fixture
def load(tmp_path):
    return lambda text, **more: tilec.load(text, cache_dir=tmp_path / "cache", **more)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def cases():
    g = torch.Generator().manual_seed(3)

    def normal(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=g).to(dtype)

    yield "causal", kit.CAUSAL, kit.dense(M=70, N=90)
    yield "more rows than keys", kit.CAUSAL, kit.dense(M=9, N=4)
    yield "one output", kit.OUTPUT_ONLY, kit.dense()
    q, k, v = (x[0] for x in kit.dense(B=1, M=7, N=9, H=3, G=3))
    yield "packed, an empty sequence, rows past the end", kit.PACKED, (q, k, v, ints(0, 2, 2, 5), ints(0, 3, 4, 8))
    pool = normal(5, 8, 1, 16, dtype=torch.float16), normal(6, 8, 1, 16, dtype=torch.float16)
    tables = ints(3, 0, 17), torch.stack([ints(4, 9, 9), ints(9, 9, 9), ints(1, 0, 3)])
    yield "paged", kit.PAGED, (normal(3, 2, 4, 16, dtype=torch.float16), *pool, *tables)
    yield "symbols for heads and features", kit.GROUPED, (normal(2, 6, 3, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8))
    docs = torch.stack([ints(0, 0, 1, 1, 1), ints(2, 2, 2, 3, 5)])
    yield "documents", kit.DOCUMENTS, (normal(2, 5, 2, 8), normal(2, 5, 2, 8), normal(2, 5, 2, 8), docs)
    eights = [normal(2, n, 4, 16, dtype=torch.float8_e4m3fn) for n in (3, 6, 6)]
    yield "8-bit", kit.FP8, (*eights, normal(2, 4).abs(), normal(2, 4).abs())


CASES = {name: (text, tensors) for name, text, tensors in cases()}


def expected(kernel, text, tensors):
    attn = kit.attention(text)
    arrays = {n: as_numpy(t) for n, t in zip(kernel.signature.names, tensors, strict=True)}
    bound = kernel.plan(tensors, None).bound
    found = exact.evaluate(bind(attn, dict(bound.constants)), arrays)
    return [torch.from_numpy(found[o.name].astype(np.float64)) for o in kernel.signature.outputs]


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_oracles(load, name):
    text, tensors = CASES[name]
    kernel = load(text)
    got = kernel(*tensors)
    wants = expected(kernel, text, tensors)
    for a, want in zip(got if isinstance(got, tuple) else (got,), wants, strict=True):
        tolerance = {"f32": 2e-5, "bf16": 2e-2, "f16": 4e-3, "e4m3": 1e-1}[kernel.signature.argument("V").dtype]
        assert torch.equal(a.isinf(), want.isinf())
        assert torch.allclose(a.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("which", range(3))
def test_every_layout_of_the_same_values_gives_the_same_bits(load, which):
    kernel = load(kit.CAUSAL)
    tensors = list(kit.dense(M=9, N=9))
    want = kernel(*tensors)
    x = tensors[which]
    for other in (
        x.transpose(1, 2).contiguous().transpose(1, 2),
        x.repeat_interleave(2, 1)[:, ::2],
        torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
        torch.cat([x, x], -1)[..., :16],
    ):
        tensors[which] = other
        assert all(torch.equal(a, b) for a, b in zip(kernel(*tensors), want, strict=True))


def test_dropout_draws_what_the_oracle_draws(load):
    kernel, attn = load(kit.DROPPED), kit.attention(kit.DROPPED)
    tensors = kit.dense(M=9, N=12)
    arrays = {n: as_numpy(t) for n, t in zip(kernel.signature.names, tensors, strict=True)}
    want = exact.evaluate(attn, arrays, seed=2**40 + 7, offset=3)["O"]
    got = kernel(*tensors, seed=2**40 + 7, offset=3)[0]
    assert torch.allclose(got.double(), torch.from_numpy(want.astype(np.float64)), atol=3e-2)


def test_a_broadcast_head_is_its_copies(load):
    kernel = load(kit.CAUSAL)
    q, k, v = kit.dense()
    k = k[:, :, :1].expand(k.shape)
    assert torch.equal(kernel(q, k, v)[0], kernel(q, k.contiguous(), v)[0])


def test_gradients_match_autograd_through_the_reference(load):
    kernel = load(kit.CAUSAL)
    tensors = kit.dense(grad=True)
    got = torch.autograd.grad([x.sum() for x in kernel(*tensors)], tensors)
    want = torch.autograd.grad([x.sum() for x in kit.reference(*tensors)], tensors)
    assert all(torch.allclose(a.float(), b.float(), atol=3e-2, rtol=3e-2) for a, b in zip(got, want, strict=True))


def test_a_file_is_read_and_named_in_messages(load, tmp_path):
    path = tmp_path / "causal.tile"
    path.write_text(kit.CAUSAL)
    with pytest.raises(CallFault, match=r"causal\.tile:5:3"):
        load(path)(kit.dense()[0])


def test_constants_may_be_given_ahead(load):
    kernel = load(kit.GROUPED, D=8, G=2)
    assert kernel.signature.constants == ()
    x = torch.zeros(1, 2, 1, 8)
    assert kernel(torch.zeros(1, 4, 1, 8), x, x).shape == (1, 4, 1, 8)
    with pytest.raises(CallFault) as caught:
        kernel(torch.zeros(1, 4, 1, 16), *(torch.zeros(1, 2, 1, 16),) * 2)
    assert caught.value.code == "E1008"


@pytest.mark.parametrize(
    ("more", "kind", "code"),
    [
        ({"kernel": "nope"}, CallFault, "E1021"),
        ({"target": "sm91"}, TargetFault, "E0901"),
        ({"backend": "cuda"}, TargetFault, "E0903"),
    ],
)
def test_wrong_choices_are_typed(load, more, kind, code):
    with pytest.raises(kind) as caught:
        load(kit.CAUSAL, **more)(*kit.dense())
    assert caught.value.code == code


def test_constants_are_integers(load):
    with pytest.raises(Faults) as caught:
        load(kit.GROUPED, D="8")
    assert str(caught.value.faults[0]).startswith("error[E0302]: the extent D cannot be '8'")


def test_several_kernels_need_a_choice(load):
    with pytest.raises(CallFault) as caught:
        load(kit.CAUSAL + kit.NO_GRAD)
    assert caught.value.code == "E1021" and "causal, frozen" in str(caught.value)
    assert load(kit.CAUSAL + kit.NO_GRAD, kernel="frozen").signature.kernel == "frozen"


def test_mistakes_in_the_spec_come_together(load):
    with pytest.raises(Faults) as caught:
        load(kit.CAUSAL.replace("scale", "scael").replace("mask", "maks"))
    assert len(caught.value.faults) >= 2


def test_symbols_no_argument_shows_are_named(load):
    with pytest.raises(CallFault) as caught:
        load(kit.PAGED.replace("k // 8", "k // P"))
    assert caught.value.code == "E1024" and "P=64" in str(caught.value)


def test_the_second_process_compiles_nothing(load, monkeypatch):
    q, k, v = kit.dense()
    want = load(kit.CAUSAL)(q, k, v)
    monkeypatch.setattr(Cpu, "compile", lambda *_: pytest.fail("compiled again"))
    again = "# a comment and other spacing\n" + kit.CAUSAL.replace("  scale  1", "  scale       1")
    assert torch.equal(load(again)(q, k, v)[0], want[0])


def test_a_damaged_cache_entry_is_compiled_again(load, tmp_path):
    q, k, v = kit.dense()
    want = load(kit.CAUSAL)(q, k, v)
    for path in (tmp_path / "cache").rglob("program.tile_ir"):
        path.write_bytes(path.read_bytes()[:-20])
    assert torch.equal(load(kit.CAUSAL)(q, k, v)[0], want[0])


def key(text, target="cpu", backend="cpu", variant=GENERAL, tools=None):
    spec = read_text(text)
    attn = spec.kernels[0]
    return cache_key(attn, target, backend, spec.schedule(attn.name, target), variant, tools or {})


def test_the_key_is_the_meaning_and_the_tools():
    base = key(kit.CAUSAL)
    assert key("# other\n" + kit.CAUSAL) == base
    others = [
        key(kit.CAUSAL.replace("k <= q", "k < q")),
        key(kit.CAUSAL + "schedule causal on cpu { tile q = 32, k = 32 }"),
        key(kit.CAUSAL, target="sm90"),
        key(kit.CAUSAL, backend="triton"),
        key(kit.CAUSAL, variant=Variant((), frozenset({"aligned"}))),
        key(kit.CAUSAL, tools={"triton": "3.6"}),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert kernel_identity(kit.attention(kit.CAUSAL)) != kernel_identity(kit.attention(kit.CAUSAL), "sm90")


@pytest.mark.parametrize("text", SPECS)
def test_a_record_gives_the_attention_back(text):
    attn = kit.attention(text)
    assert read_record(write_record(attn)) == attn


def test_importing_tilec_is_light():
    code = "import sys, tilec; print(tilec.__version__); print({'torch', 'numpy', 'lark', 'triton'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    assert out[0][0].isdigit() and out[1] == "set()"


def test_eight_bit_floats_change_form_not_value():
    x = torch.tensor([0.0, -0.0, 1.0, -3.5, 240.0, 448.0, -448.0, float("nan")]).to(torch.float8_e4m3fn)
    y = tilec.fp8.to_target(x, "gfx942")
    assert y.dtype == torch.float8_e4m3fnuz
    assert y.float().tolist()[:7] == [0.0, 0.0, 1.0, -3.5, 240.0, 240.0, -240.0] and y.float()[7].isnan()
    assert torch.equal(tilec.fp8.to_target(y, "sm90").float()[:5], y.float()[:5])
    assert tilec.fp8.to_target(torch.ones(1).to(torch.float8_e5m2), "gfx942").dtype == torch.float8_e5m2fnuz
    with pytest.raises(CallFault):
        tilec.fp8.to_target(torch.ones(1), "sm90")
