"""What random specs share: constants and sizes that they allow, and a run of a program against the float64 oracle."""

import numpy as np
from hypothesis import strategies as st

from tilec.frontend import unbound_constants
from tilec.ir.expr import Int, Op, Var
from tilec.ir.interp import run
from tilec.oracle.dtypes import numpy_dtype
from tilec.oracle.layout import bind as bind_call
from tilec.oracle.numerics import verify

STYLES = ("normal", "shifted", "onehot", "position")
RNG = (2**33 + 5, 1)  # seed and offset of dropout


def multiple(attn, symbol):
    """A number of heads must be whole groups."""
    groups = [1]
    for t in attn.tensors:
        for e in t.index:
            match e:
                case Op("//", (Var(name), Int(group))) if attn.index(name).extent is Var(symbol):
                    groups.append(group)
    return max(groups)


def constants(draw, attn, widths):
    """Head dims of these widths where the spec leaves them open, and groups of one head."""
    return {n: 1 if n == "G" else draw(st.sampled_from(widths)) for n in unbound_constants(attn)}


def call_sizes(draw, attn, rows, keys):
    """Of a call: numbers of queries and keys from these lists, which what the spec assumes allows."""
    sizes = {n: draw(st.integers(1, 2)) * multiple(attn, n) for n in attn.extents if n not in ("M", "N")}
    n = draw(st.sampled_from(keys))
    documents = any(t.name == "doc" for t in attn.tensors)  # of rows: doc[b, q] must exist
    m = draw(st.sampled_from([x for x in rows if x <= n or not (attn.assumes or documents)]))
    return sizes | ({x: v for x, v in (("M", m), ("N", n)) if x in attn.extents})


def complaints(program, attn, inputs, sizes, extents=None, **order):
    """What the oracle refuses of a run into poisoned memory; `extents`: those that are no size of the call."""
    call = bind_call(attn, inputs, sizes)
    names = [n for n in (attn.output, attn.lse) if n is not None]
    dense = attn.index(attn.q).storage.kind == "dense"
    fills = (np.nan, np.nan) if dense else (0.0, -np.inf)
    outputs = {
        n: np.full(call.shape(n), fill, numpy_dtype(attn.tensor(n).dtype))
        for n, fill in zip(names, fills, strict=False)
    }
    more = {} if attn.rng is None else {attn.rng: np.array(RNG)}
    known = extents or {}
    values = {e: known[e] if e in known else call.number(Var(e)) for e in program.extents}
    run(program, {**inputs, **outputs, **more}, values, **order)
    reports = verify(attn, inputs, outputs, sizes=sizes, seed=RNG[0], offset=RNG[1])
    return [str(r) for r in reports.values() if not r.ok]
