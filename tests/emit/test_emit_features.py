"""Every statement of the language, held against the float64 oracle on both CPU paths through the public API."""

import feature_runs as runs
import feature_specs
import pytest
import torch

NUMBERED = list(enumerate(feature_specs.FEATURES))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.mark.parametrize(("number", "feature"), NUMBERED, ids=[f.name for f in feature_specs.FEATURES])
def test_feature_in_the_interpreter(number, feature, folder):
    """Two styles of inputs each, so that every style meets every kind of statement."""
    for sizes in feature.sizes:
        for style in {runs.STYLES[number % 2], runs.STYLES[2 + number % 2]}:
            assert runs.complaints(feature.name, "cpu", folder, sizes, style) == [], (sizes, style)


@pytest.mark.parametrize(("number", "feature"), NUMBERED, ids=[f.name for f in feature_specs.FEATURES])
def test_feature_as_triton_source(number, feature, folder):
    """One style of inputs each, so that Triton's interpreter, which is slow, sees every style with some feature."""
    style = runs.STYLES[number % len(runs.STYLES)]
    for sizes in feature.sizes:
        assert runs.complaints(feature.name, "triton", folder, sizes, style) == [], (sizes, style)


def strided(t, slot):
    """The same values in memory with gaps, an offset, and dimensions in another order.

    The last dimension of rows stays contiguous; that of params has a stride as well."""
    lead = list(range(t.ndim - 1))[::-1] if slot in ("query", "key", "value", "output") else list(range(t.ndim))[::-1]
    order = lead if len(lead) == t.ndim else [*lead, t.ndim - 1]
    room = torch.full([t.shape[d] + 3 for d in order], float("nan")).to(t.dtype)
    view = room[tuple(slice(1, 1 + t.shape[d]) for d in order)]
    view = view.permute([order.index(d) for d in range(t.ndim)])
    view.copy_(t)
    return view


STRIDED = [
    "causal",
    "bias",
    "bias of keys",
    "key flags",
    "sink",
    "alibi",
    "gqa",
    "mqa",
    "features first",
    "mixed orders",
]
STRIDED += ["two pairs", "packed", "paged", "lengths of both", "f32", "documents, unsorted", "relative table"]


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("backend", runs.BACKENDS)
def test_strides_change_no_bit(name, backend, folder):
    attend, sizes = runs.kernel(name, backend, folder), runs.BY_NAME[name].sizes[0]
    _, tensors = runs.tensors_of(name, sizes)
    slots = {a.name: a.slot for a in attend.signature.arguments}
    moved = {n: t if slots[n] == "table" else strided(t, slots[n]) for n, t in tensors.items()}
    assert any(not t.is_contiguous() for t in moved.values())
    plain, other = runs.outputs_of(attend, tensors), runs.outputs_of(attend, moved)
    assert all(torch.equal(plain[n], other[n]) for n in plain)


@pytest.mark.parametrize("backend", runs.BACKENDS)
def test_expanded_heads_and_batches(backend, folder):
    attend = runs.kernel("causal", backend, folder)
    _, tensors = runs.tensors_of("causal", {"B": 1, "M": 40, "N": 50})
    narrow = {n: t[:, :, :1].expand(2, -1, 2, -1) for n, t in tensors.items()}
    assert narrow["K"].stride()[0] == 0 == narrow["K"].stride()[2]
    same, other = (
        runs.outputs_of(attend, {n: f(t) for n, t in narrow.items()}) for f in (torch.Tensor.contiguous, lambda t: t)
    )
    assert all(torch.equal(same[n], other[n]) for n in same)


@pytest.mark.parametrize("backend", runs.BACKENDS)
def test_outputs_of_the_caller_may_have_strides(backend, folder):
    attend = runs.kernel("causal", backend, folder)
    _, tensors = runs.tensors_of("causal", {"B": 2, "M": 40, "N": 50})
    plain = runs.outputs_of(attend, tensors)
    out = tuple(strided(plain[n].new_full(plain[n].shape, float("nan")), "output") for n in ("O", "L"))
    attend(*(tensors[n] for n in attend.signature.names), out=out)
    assert torch.equal(out[0], plain["O"]) and torch.equal(out[1], plain["L"])
