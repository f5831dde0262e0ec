"""Every statement of the language on this machine's GPU, held against the float64 oracle; strides that change no bit."""

import feature_runs as runs
import feature_specs
import pytest
import torch

from tilec.backends.runtime.device import target_of
from tilec.oracle.numerics import verify
from tilec.oracle.tensors import from_torch
from tilec.oracle.units import units_of
from tilec.targets import target

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FP8 = {f.name for f in feature_specs.FP8}
FEATURES = [f for f in feature_specs.FEATURES if f.name not in FP8]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.mark.parametrize("feature", FEATURES, ids=str)
def test_feature_on_the_gpu(feature, folder):
    attend = runs.kernel(feature.name, None, folder, None)
    units = units_of(target(target_of(torch.device("cuda"))))
    for sizes in feature.sizes:
        for style in runs.STYLES:
            inputs, tensors = runs.tensors_of(feature.name, sizes, style)
            got = from_torch(runs.outputs_of(attend, {n: t.cuda() for n, t in tensors.items()}))
            more = {"sizes": sizes, "seed": runs.SEED, "offset": runs.OFFSET, "units": units}
            found = verify(runs.attention(feature.name), inputs, got, **more)
            assert [str(r) for r in found.values() if not r.ok] == [], (sizes, style)


def test_a_replayed_graph_reads_its_seed_again(folder):
    attend = runs.kernel("dropout", None, folder, None)
    _, tensors = runs.tensors_of("dropout", {"B": 1, "M": 70, "N": 101})
    given = [t.cuda() for t in tensors.values()]
    pair = torch.tensor([1, 0], device="cuda")
    attend(*given, rng=pair)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, _ = attend(*given, rng=pair)
    for seed in (5, 6):
        pair[0] = seed
        graph.replay()
        assert torch.equal(output, attend(*given, seed=seed)[0])
