"""Shapes by the length of a call's sequences: which calls share a kernel, and which row of the table it comes from."""

import pytest
import torch
from feature_specs import CAUSAL, kernel

from tilec.backends.base import FEW_KEYS, LENGTHS, MANY_KEYS, usual
from tilec.backends.cuda import BACKEND
from tilec.backends.runtime.checks import bind
from tilec.frontend import read_text
from tilec.native import programs
from tilec.schedule import EMPTY
from tilec.signature_of import signature_of
from tilec.tune.classes import length_class
from tilec.tune.hopper import measured_points, rows


def read(d, mask=CAUSAL, **more):
    spec = kernel(mask, **{"d": f"d : {d}", "h": "h : 2", "head": "h", "scale": "scale 1 / 8", "schedule": "", **more})
    return read_text(spec)


def attention(d):
    return read(d).kernels[0]


def told(attn, *features, on="sm90", schedule=EMPTY):
    return BACKEND.telling(attn, on, schedule, frozenset({"aligned", *features})) - {"aligned"}


def test_only_lengths_with_a_row_of_their_own_make_a_kernel_of_their_own():
    assert told(attention(64), "few_keys") == {"few_keys"} and told(attention(64), "many_keys") == frozenset()
    assert told(attention(256), "many_keys", "short") == {"many_keys", "short"}
    assert told(attention(96), "few_keys") == told(attention(64), "few_keys", on="sm80") == frozenset()
    pinned = read_text(
        kernel(CAUSAL, d="d : 96", scale="scale 1 / 8", schedule="schedule f on sm90 { tile q = 128, k = 64 }")
    )
    assert told(pinned.kernels[0], "few_keys", schedule=pinned.schedule("f", "sm90")) == frozenset()


@pytest.mark.parametrize("d", [64, 128, 256])
def test_a_row_for_a_length_is_first_for_it_and_for_no_other(d):
    attn = attention(d)
    own = [r.point for r in rows() if r.width == d and "short" in r.classes[2] and r.holds(attn, "short")]
    assert own and measured_points(attn, EMPTY, (), "short")[: len(own)] == own
    assert not set(own) & {*measured_points(attn, EMPTY), *measured_points(attn, EMPTY, (), "long")}


def test_the_program_is_at_the_row_of_the_calls_lengths():
    attn = attention(64)
    few, any_ = (next(programs(attn, "sm90", EMPTY, frozenset(f))) for f in (("few_keys",), ()))
    assert (dict(few.tile)["TQ"], dict(any_.tile)["TQ"]) == (128, 192)


def test_calls_know_their_class_where_sequences_are_dense():
    assert length_class(FEW_KEYS) == "short" and length_class(FEW_KEYS + 1) == length_class(MANY_KEYS) == "middle"
    assert length_class(MANY_KEYS + 1) == "long" and not usual(LENGTHS | {"short"})
    spec = read(32, h="h : 1")
    signature = signature_of(spec.kernels[0], spec.source)

    def features(n):
        q, k = (torch.zeros(1, m, 1, 32, dtype=torch.bfloat16) for m in (80, n))
        return bind(signature, (q, k, k.clone()), "cpu").features & LENGTHS

    found = [features(n) for n in (FEW_KEYS, FEW_KEYS + 1, MANY_KEYS, MANY_KEYS + 1)]
    assert found == [{"few_keys"}, set(), set(), {"many_keys"}]
