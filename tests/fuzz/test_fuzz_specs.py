"""Random valid specs on random shapes: the lowered program in the interpreter against the float64 oracle."""

from fuzz_kit import STYLES, call_sizes, complaints, constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import specs

from tilec.dsl.faults import Faults
from tilec.frontend import bind, read_text
from tilec.ir.verify import verify as check_program
from tilec.oracle.inputs import make_inputs
from tilec.pipeline import stages

KEPT = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SCHEDULE = "schedule f on any {{ tile q = {q}, k = {k} }}\n"


@st.composite
def calls(draw):
    """(spec, attention, sizes, style, seed) of a spec and a small call that its assumptions allow."""
    text = draw(specs(schedules=False))
    text += SCHEDULE.format(q=draw(st.sampled_from([16, 32])), k=draw(st.sampled_from([16, 32, 64])))
    spec = read_text(text)
    attn = bind(spec.kernels[0], constants(draw, spec.kernels[0], (8, 16, 24)))
    sizes = call_sizes(draw, attn, (1, 16, 17, 33, 70), (1, 15, 16, 17, 33, 64, 70))
    # Large logits in f32 are off by the rounding of the logit, a few elements of which say little beside another few.
    styles = ("normal", "position") if attn.tensor(attn.value).dtype == "f32" else STYLES
    return spec, attn, sizes, draw(st.sampled_from(styles)), draw(st.integers(0, 99))


@KEPT
@given(calls())
def test_random_specs_give_what_the_oracle_gives(case):
    spec, attn, sizes, style, seed = case
    lengths = "full" if "doc" in spec.source.text else "random"  # doc[b, q] must exist
    inputs = make_inputs(attn, sizes, seed, style, lengths=lengths, tile=16)
    try:
        programs = dict(stages(attn, "cpu", spec.schedule(attn.name, "cpu")))
    except Faults as refused:
        assert all(f.code.startswith(("E08", "E09")) for f in refused.faults)
        return
    for stage in ("prove_mask", "tidy"):
        check_program(programs[stage], proofs=not attn.assumes)  # what a spec assumes is not in its program
        assert complaints(programs[stage], attn, inputs, sizes) == [], stage
