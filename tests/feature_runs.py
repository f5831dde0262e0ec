"""Runs features of `feature_specs`: through the interpreter of tile programs, Triton's interpreter, or on a GPU."""

from __future__ import annotations

from functools import cache

import feature_specs
import torch

import tilec
from tilec.frontend import bind, read_text
from tilec.oracle.inputs import make_inputs
from tilec.oracle.numerics import verify
from tilec.oracle.tensors import from_torch, to_torch

STYLES = ("normal", "shifted", "onehot", "position")
BACKENDS = ("cpu", "triton")
BY_NAME = feature_specs.BY_NAME


@cache
def attention(name):
    """The Attention of a feature, constants bound."""
    f = BY_NAME[name]
    return bind(read_text(f.text).kernels[0], dict(f.constants))


@cache
def kernel(name, backend, folder, target="cpu"):
    """The callable of a feature; without a target, for the device of its tensors."""
    f = BY_NAME[name]
    return tilec.load(f.text, target=target, backend=backend, cache_dir=folder, **f.constants)


def tensors_of(name, sizes, style="normal", seed=0):
    """(inputs as arrays, as tensors by name)."""
    f = BY_NAME[name]
    free = {n: v for n, v in sizes.items() if n not in f.constants}
    inputs = make_inputs(attention(name), free, seed, style, lengths=f.lengths, tail=f.tail, tile=32)
    return inputs, to_torch(inputs, "cpu")


SEED, OFFSET = 2**40 + 12345, 3


def outputs_of(attend, tensors):
    """A call whose outputs are poisoned first; outputs by name.  Dropout gets SEED and OFFSET."""
    given = [tensors[n] for n in attend.signature.names]
    device = given[0].device
    more = {attend.signature.dropout: torch.tensor([SEED, OFFSET], device=device)} if attend.signature.dropout else {}
    bound = attend.plan(given, None).bound
    out = tuple(torch.full(o.shape, float("nan"), device=device).to(o.dtype) for o in bound.outputs)
    with torch.no_grad():
        attend(*given, out=out if len(out) > 1 else out[0], **more)
    return {o.name: t for o, t in zip(attend.signature.outputs, out, strict=True)}


def complaints(name, backend, folder, sizes, style):
    """Reports of the outputs that the oracle's rule refuses."""
    inputs, tensors = tensors_of(name, sizes, style)
    got = from_torch(outputs_of(kernel(name, backend, folder), tensors))
    reports = verify(attention(name), inputs, got, sizes=sizes, seed=SEED, offset=OFFSET)
    return [str(r) for r in reports.values() if not r.ok]
