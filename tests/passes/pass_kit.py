"""Programs of features after each pass, and running one against the float64 oracle."""

from __future__ import annotations

import feature_runs as runs
import numpy as np

from tilec.backends.cpu.launch import as_numpy
from tilec.frontend import read_text
from tilec.ir import interp
from tilec.ir.nodes import For, walk
from tilec.oracle.numerics import verify
from tilec.pipeline import stages


def after(name, target, backend=None, features=frozenset(), schedule=None):
    """{pass: program after it} of a feature."""
    spec = read_text(runs.BY_NAME[name].text if schedule is None else runs.BY_NAME[name].text + schedule)
    attn = runs.attention(name)
    return dict(stages(attn, target, spec.schedule(attn.name, target), backend, features=features))


def program(text, target="cpu", stage="tidy", backend=None, features=frozenset()):
    """The program of a spec's text after one pass."""
    spec = read_text(text)
    attn = spec.kernels[0]
    return dict(stages(attn, target, spec.schedule(attn.name, target), backend, features=features))[stage]


def call(name, folder, sizes=None, style="normal"):
    """(sizes, inputs, Bound) of a feature's call."""
    sizes = sizes or runs.BY_NAME[name].sizes[0]
    inputs, tensors = runs.tensors_of(name, sizes, style)
    attend = runs.kernel(name, "cpu", folder)
    return sizes, inputs, attend.plan([tensors[n] for n in attend.signature.names], None).bound


def complaints(p, name, inputs, bound, sizes):
    """Runs `p` on poisoned outputs; reports that the oracle's rule refuses."""
    attn = runs.attention(name)
    names = [n for n in (attn.output, attn.lse) if n is not None]
    dense = attn.index(attn.q).storage.kind == "dense"
    outputs = {}
    for n, fill in zip(names, (0.0, -np.inf), strict=False):
        o = bound.outputs[names.index(n)]
        outputs[n] = as_numpy(runs.torch.full(o.shape, float("nan") if dense else fill).to(o.dtype))
    arrays = {**inputs, **outputs}
    if attn.rng is not None:
        arrays[attn.rng] = np.array([runs.SEED, runs.OFFSET])
    interp.run(p, arrays, bound.extents)
    found = verify(attn, inputs, outputs, sizes=sizes, seed=runs.SEED, offset=runs.OFFSET)
    return [str(r) for r in found.values() if not r.ok]


def key_loops(p):
    """Loops over tiles of keys, in order."""
    return [s for s in walk(p.roles[0].body) if isinstance(s, For) and s.proof is not None]


def segments(p):
    return [(s.proof.part, s.proof.segment) for s in key_loops(p)]
