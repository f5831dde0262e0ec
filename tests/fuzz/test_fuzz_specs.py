"""Random valid specs on random shapes: the lowered program in the interpreter against the float64 oracle."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import specs

from tilec.dsl.faults import Faults
from tilec.frontend import bind, read_text
from tilec.ir.expr import Int, Op, Var
from tilec.ir.interp import run
from tilec.ir.verify import verify as check_program
from tilec.oracle.dtypes import numpy_dtype
from tilec.oracle.inputs import make_inputs
from tilec.oracle.layout import bind as bind_call
from tilec.oracle.numerics import verify
from tilec.pipeline import stages

STYLES = ("normal", "shifted", "onehot", "position")
KEPT = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SCHEDULE = "schedule f on any {{ tile q = {q}, k = {k} }}\n"


def multiple(attn, symbol):
    """A number of heads must be whole groups."""
    groups = [1]
    for t in attn.tensors:
        for e in t.index:
            match e:
                case Op("//", (Var(name), Int(group))) if attn.index(name).extent is Var(symbol):
                    groups.append(group)
    return max(groups)


@st.composite
def calls(draw):
    """(attention, sizes, style, seed) of a spec and a small call that its assumptions allow."""
    text = draw(specs(schedules=False))
    text += SCHEDULE.format(q=draw(st.sampled_from([16, 32])), k=draw(st.sampled_from([16, 32, 64])))
    spec = read_text(text)
    attn = spec.kernels[0]
    features = {attn.index(n).extent for n in (*attn.contracted, attn.feature)}
    constants = {e.name: draw(st.sampled_from([8, 16, 24])) for e in features if isinstance(e, Var)}
    constants |= {"G": 1} if "G" in text else {}
    attn = bind(attn, constants)
    sizes = {n: draw(st.integers(1, 2)) * multiple(attn, n) for n in attn.extents if n not in ("M", "N")}
    n = draw(st.sampled_from([1, 15, 16, 17, 33, 64, 70]))
    m = draw(st.sampled_from([x for x in (1, 16, 17, 33, 70) if x <= n or not (attn.assumes or "doc" in text)]))
    if "M" in attn.extents:
        sizes |= {"M": m, "N": n}
    # Large logits in f32 are off by the rounding of the logit, a few elements of which say little beside another few.
    styles = ("normal", "position") if attn.tensor(attn.value).dtype == "f32" else STYLES
    return spec, attn, sizes, draw(st.sampled_from(styles)), draw(st.integers(0, 99))


@KEPT
@given(calls())
def test_random_specs_give_what_the_oracle_gives(case):
    spec, attn, sizes, style, seed = case
    lengths = "full" if "doc" in spec.source.text else "random"  # doc[b, q] must exist
    inputs = make_inputs(attn, sizes, seed, style, lengths=lengths, tile=16)
    call = bind_call(attn, inputs, sizes)
    names = [n for n in (attn.output, attn.lse) if n is not None]
    dense = attn.index(attn.q).storage.kind == "dense"
    fills = (np.nan, np.nan) if dense else (0.0, -np.inf)
    try:
        programs = dict(stages(attn, "cpu", spec.schedule(attn.name, "cpu")))
    except Faults as refused:
        assert all(f.code.startswith(("E08", "E09")) for f in refused.faults)
        return
    for stage in ("prove_mask", "tidy"):
        check_program(programs[stage], proofs=not attn.assumes)  # what a spec assumes is not in its program
        outputs = {
            n: np.full(call.shape(n), fill, numpy_dtype(attn.tensor(n).dtype))
            for n, fill in zip(names, fills, strict=False)
        }
        more = {} if attn.rng is None else {attn.rng: np.array([2**33 + 5, 1])}
        extents = {e: call.number(Var(e)) for e in programs[stage].extents}
        run(programs[stage], {**inputs, **outputs, **more}, extents)
        reports = verify(attn, inputs, outputs, sizes=sizes, seed=2**33 + 5, offset=1)
        assert all(r.ok for r in reports.values()), (stage, [str(r) for r in reports.values()])
