"""Compiled kernels are kept with the other artifacts: a process that finds one never asks Triton to compile."""

import pytest
import triton

from tilec.backends.base import Variant
from tilec.backends.runtime.cache import Store
from tilec.backends.triton import BACKEND
from tilec.backends.triton.build import compile_kernel
from tilec.frontend import read_text
from tilec.schedule import EMPTY

SPEC = """kernel small {
  index  b : B, h : 2, q : M, k : N, d : 64
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  mask   k <= q
}
"""


@pytest.fixture(scope="module")
def artifact():
    return BACKEND.compile(read_text(SPEC).kernels[0], "sm90", EMPTY, Variant((), frozenset({"aligned"})))


def compiled(artifact, store, *, aligned=True):
    (name,) = (n for n in artifact.sources if n.endswith(".triton.py"))
    return compile_kernel(name, artifact.sources[name], artifact.metadata, "sm90", aligned=aligned, store=store)


def test_a_kept_kernel_is_not_compiled_again(artifact, tmp_path, monkeypatch):
    first = compiled(artifact, Store(tmp_path))
    monkeypatch.setattr(triton, "compile", lambda *_, **__: pytest.fail("compiled again"))
    again = compiled(artifact, Store(tmp_path))
    assert again.kernel == first.kernel and again.packed_metadata == first.packed_metadata
    assert again.metadata.name == first.metadata.name and again.src.constants == first.src.constants


def test_what_the_code_depends_on_is_in_the_key(artifact, tmp_path):
    store = Store(tmp_path)
    assert compiled(artifact, store).kernel != compiled(artifact, store, aligned=False).kernel


def test_a_damaged_kernel_is_compiled_again(artifact, tmp_path):
    first = compiled(artifact, Store(tmp_path))
    (cubin,) = tmp_path.rglob("*.cubin")
    cubin.write_bytes(cubin.read_bytes()[:100])
    assert compiled(artifact, Store(tmp_path)).kernel == first.kernel
