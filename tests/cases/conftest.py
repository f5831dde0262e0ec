"""`attend`: a Runner for each CPU backend; `interpret`: the interpreter of tile programs alone, which has gradients."""

import pytest
from case_kit import Runner


@pytest.fixture(scope="session")
def runners(tmp_path_factory):
    root = tmp_path_factory.mktemp("kernels")
    return {name: Runner(name, root) for name in ("cpu", "triton")}


@pytest.fixture(params=["cpu", "triton"])
def attend(request, runners):
    return runners[request.param]


@pytest.fixture
def interpret(runners):
    return runners["cpu"]
