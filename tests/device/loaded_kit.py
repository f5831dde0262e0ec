"""What device tests of loaded native kernels share: a spec's head dim, kernels by their text, calls into poisoned memory."""

import torch
from feature_specs import kernel

from tilec.frontend import read_text
from tilec.ir.attention import Attention
from tilec.oracle.numerics import verify
from tilec.oracle.tensors import from_torch, to_torch
from tilec.oracle.units import units_of
from tilec.targets import target

UNITS = units_of(target("sm90"))


def spec(*lines: str, d: int = 128, **parts: object) -> str:
    """A kernel of head dim `d` with these lines, and no schedule unless one is given."""
    return kernel(*lines, d=f"d : {d}", **{"scale": f"scale 1 / sqrt({d})", "schedule": "", **parts})


def attention(text: str) -> Attention:
    return read_text(text).kernels[0]


def call(attend, text, inputs):
    """Outputs by name, of two calls into poisoned memory, which must agree bit by bit."""
    f = attend(text)
    given = [t.cuda() for t in to_torch(inputs, "cpu").values()]
    bound = f.plan(given, None).bound
    out = tuple(torch.full(o.shape, torch.nan, dtype=o.dtype, device="cuda") for o in bound.outputs)
    with torch.no_grad():
        f(*given, out=out)
        first = [t.clone() for t in out]
        f(*given, out=out)
    torch.cuda.synchronize()
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, out, strict=True))
    return {o.name: t.cpu() for o, t in zip(f.signature.outputs, out, strict=True)}


def complaints(attend, text, inputs, sizes):
    """What the oracle says of a `call`."""
    found = verify(attention(text), inputs, from_torch(call(attend, text, inputs)), sizes=sizes, units=UNITS)
    return [str(r) for r in found.values() if not r.ok]
