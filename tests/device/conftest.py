"""Several processes share one GPU and the cores beside it: under xdist each has one thread for arithmetic, where libraries would
start one per core, in every process.
"""

import os

import pytest

BLOCKS = 6  # so that each takes several tiles; even, for pairs

if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def pytest_collection_modifyitems(items):
    if "PYTEST_XDIST_WORKER" in os.environ:
        left_out = pytest.mark.skip(reason="times need the machine to themselves: make times")
        for item in items:
            if item.get_closest_marker("alone"):
                item.add_marker(left_out)


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    """Native kernels, each text compiled once."""
    import tilec

    folder, made = tmp_path_factory.mktemp("kernels"), {}

    def get(text):
        if text not in made:
            made[text] = tilec.load(text, target="sm90", backend="cuda", cache_dir=folder)
        return made[text]

    return get


@pytest.fixture
def few_blocks(monkeypatch):
    """Launches as on a device of BLOCKS multiprocessors."""
    from tilec.backends.cuda.launch import Kernel

    shape = Kernel.shape
    monkeypatch.setattr(Kernel, "shape", lambda self, extents: shape(self, {**extents, "SMS": BLOCKS}))
