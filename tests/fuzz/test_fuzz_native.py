"""Random valid specs on random calls, lowered for native kernels: the program that is printed, in the interpreter, where roles
run and copies land in an order that is drawn as well, against the float64 oracle.

TILEC_FUZZ=500 runs so many new examples of each target.
"""

import os

import pytest
from fuzz_kit import STYLES, call_sizes, complaints, constants
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from strategies import specs

from tilec.backends import cuda, hip
from tilec.backends.cuda import ALIGNED
from tilec.backends.cuda import emit as cuda_emit
from tilec.backends.hip import emit as hip_emit
from tilec.dsl.faults import Fault, Faults
from tilec.frontend import bind, read_text
from tilec.ir.interp import adversaries
from tilec.ir.verify import verify as check_program
from tilec.native import lower_native
from tilec.oracle.inputs import make_inputs

EXAMPLES = int(os.environ.get("TILEC_FUZZ", "0"))
KEPT = settings(
    max_examples=EXAMPLES or 10, deadline=None, derandomize=not EXAMPLES, suppress_health_check=list(HealthCheck)
)
FEATURES = {
    "sm90": [set(), {"few_keys"}, {"many_keys"}, {"short"}],
    "sm80": [set()],
    "gfx942": [set()],
}
LINES = {
    "sm90": [
        "",
        "tile q = 64, k = 64",
        "cluster 2",
        "overlap off",
        "map persistent",
        "rescale conditional 8",
        "stages 1",
    ],
    "sm80": ["", "tile q = 64, k = 32", "stages 2", "map persistent", "warps split_q(8)"],
    "gfx942": ["", "warps split_q(4)", "map longest_first", "rescale conditional 8"],
}
BACKENDS = {
    "sm90": (cuda.BACKEND, cuda_emit.emit),
    "sm80": (cuda.BACKEND, cuda_emit.emit),
    "gfx942": (hip.BACKEND, hip_emit.emit),
}
WIDTHS = {"sm90": (16, 24, 64), "sm80": (16, 24, 64), "gfx942": (64, 128)}
UNITS = 3  # multiprocessors, so that blocks take several tiles


@st.composite
def calls(draw, target):
    """(text, constants, sizes, features, seed, style) of a kernel, perhaps one that this target takes, and of a call."""
    text = draw(specs(schedules=False, dtypes=("bf16", "f16"), depths=WIDTHS[target], values=WIDTHS[target]))
    text += f"schedule f on {target} {{ {draw(st.sampled_from(LINES[target]))} }}\n"
    attn = read_text(text).kernels[0]
    fixed = constants(draw, attn, WIDTHS[target])
    sizes = call_sizes(draw, bind(attn, fixed), (1, 64, 65, 257, 300), (1, 63, 64, 129, 257, 400))
    features = draw(st.sampled_from(FEATURES[target]))
    return text, fixed, sizes, features, draw(st.integers(0, 99)), draw(st.sampled_from(STYLES))


@pytest.mark.parametrize("target", FEATURES)
@KEPT
@given(data=st.data())
def test_random_specs_on_native_kernels(target, data):
    text, fixed, sizes, features, seed, style = data.draw(calls(target))
    spec = read_text(text)
    attn = bind(spec.kernels[0], fixed)
    backend, emit = BACKENDS[target]
    try:
        backend.check(attn, target, frozenset(features) | ALIGNED)
        program = lower_native(attn, target, spec.schedule(attn.name, target), frozenset(features))
    except (Fault, Faults) as refused:
        faults = refused.faults if isinstance(refused, Faults) else (refused,)
        assert all(f.code.startswith(("E08", "E09")) for f in faults)
        event(f"refused: {faults[0].code}")
        return
    event("taken")
    check_program(program, proofs=False)
    assert emit(program).function == "f"
    lengths = "full" if "doc" in text or attn.assumes else "random"  # else what is assumed would not hold
    inputs = make_inputs(attn, sizes, seed, style, lengths=lengths, tile=64)
    number = data.draw(st.integers(0, 99))
    orders = adversaries(program)
    order = orders[number % len(orders)]
    assert complaints(program, attn, inputs, sizes, {"SMS": UNITS}, seed=seed, schedule=order) == []
