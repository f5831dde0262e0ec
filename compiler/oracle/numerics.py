"""How far from exact a target may be: the same attention computed densely in the target's dtypes, and the rule that compares.

The rounded computation keeps scores, softmax and accumulators in float32, rounds exp(s - max) (in 0..1, unscaled) to the
value's dtype before the second product, normalises after it, and rounds each output once to its own dtype.  What else a
target's units do is in `units`.

The rule: an array passes if its error, by maximum and by root mean square, is at most twice the error of the rounded
computation plus a small floor.  The floor is

    FLOOR[dtype] * largest exact value                       +  CANCELLATION * magnitude      for the maximum
    FLOOR[dtype] * share * root mean square of exact values  +  CANCELLATION * magnitude      for the root mean square

where FLOOR is one unit roundoff of the dtype (one rounding that went the other way; in f32, where a target's exp2 and
reciprocal are only good to a few, eight), share = min(1, 1/4 + 4 / sqrt(elements)) as roundings average out (1 in f32, where
the error is that of accumulators, which tensor cores cut off rather than round), and the last term covers f32 sums whose
terms, of size `magnitude`, cancel.
A value that is not finite passes only where the exact one is the same.  Dead rows must be exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.attention import Attention
from tilec.ir.expr import Var
from tilec.ir.storage import batch_of
from tilec.oracle import exact
from tilec.oracle.dtypes import NUMPY, UNIT_ROUNDOFF
from tilec.oracle.units import NEAREST, Units

Array = NDArray[Any]
FACTOR = 2.0
FLOOR = {**UNIT_ROUNDOFF, "f32": 8 * UNIT_ROUNDOFF["f32"]}
CANCELLATION = 2.0**-20


def evaluate_rounded(
    attn: Attention,
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
    units: Units = NEAREST,
) -> dict[str, Array]:
    """Outputs by name as float32 arrays that hold values of their dtypes; arguments and errors as `exact.evaluate`."""
    return exact.evaluate(attn, inputs, sizes=sizes, seed=seed, offset=offset, arithmetic=units.arithmetic)


def gradients_rounded(
    attn: Attention,
    inputs: Mapping[str, Array],
    d_output: Array,
    d_lse: Array | None = None,
    *,
    names: tuple[str, ...] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
    units: Units = NEAREST,
) -> dict[str, Array]:
    """Gradients by name in the target's rounding: weights recomputed from an f32 LSE, delta from the rounded output, P
    rounded to the output's dtype and dS to the key's before their products; arguments and errors as `exact.gradients`."""
    return exact.gradients(
        attn, inputs, d_output, d_lse, names=names, sizes=sizes, seed=seed, offset=offset, arithmetic=units.arithmetic
    )


@dataclass(frozen=True)
class Report:
    """What `check` found.  `worst` is the element of largest error, or the first that broke another clause."""

    name: str
    ok: bool
    error_max: float
    allowed_max: float
    error_rms: float
    allowed_rms: float
    worst: tuple[int, ...] | None
    complaint: str  # empty if ok

    def __str__(self) -> str:
        verdict = "ok" if self.ok else f"FAIL: {self.complaint}"
        return (
            f"{self.name}: max error {self.error_max:.3g} (allowed {self.allowed_max:.3g}), "
            f"rms {self.error_rms:.3g} (allowed {self.allowed_rms:.3g}): {verdict}"
        )


def check(
    got: Array,
    exact: Array,
    rounded: Array,
    *,
    name: str = "output",
    dtype: str | None = None,
    dead: Array | None = None,
    magnitude: float = 1.0,
) -> Report:
    """Applies the rule of this module's docstring to one array.

    `dtype`: the dtype whose roundoff sets the floor, by default that of `got`.  `dead`: where the value must be exactly 0.
    """
    if got.shape != exact.shape or rounded.shape != exact.shape:
        complaint = f"shape {got.shape}, expected {exact.shape} (rounded: {rounded.shape})"
        return Report(name, False, np.inf, 0.0, np.inf, 0.0, None, complaint)
    spec_dtype = dtype or next((n for n, t in NUMPY.items() if t == got.dtype), "f32")
    unit = FLOOR.get(spec_dtype, FLOOR["f32"])
    g, e, r = (x.astype(np.float64) for x in (got, exact, rounded))
    finite = np.isfinite(e)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(finite, np.abs(g - e), 0.0)
        reference = np.where(finite & np.isfinite(r), np.abs(r - e), 0.0)
        values = np.where(finite, np.abs(e), 0.0)
    same = np.where(np.isnan(e), np.isnan(g), g == e)
    strange = np.where(finite, ~np.isfinite(g), ~same)
    alive = np.zeros_like(finite) if dead is None else np.broadcast_to(dead, e.shape) & (g != 0)
    error = np.where(np.isnan(error), np.inf, error)
    allowed_max = FACTOR * _most(reference) + unit * _most(values) + CANCELLATION * magnitude
    share = 1.0 if spec_dtype == "f32" else min(1.0, 0.25 + 4.0 / max(1, e.size) ** 0.5)
    allowed_rms = FACTOR * _rms(reference) + unit * share * _rms(values) + CANCELLATION * magnitude
    error_max, error_rms = _most(error), _rms(error)
    at: tuple[int, ...] | None = None
    complaint = ""
    if strange.any():
        at = _first(strange)
        complaint = f"{strange.sum()} elements are not finite where they should be, or the reverse"
    elif alive.any():
        at = _first(alive)
        complaint = f"{alive.sum()} elements of rows with no live key are not 0"
    elif error.size:
        at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        if error_max > allowed_max:
            complaint = "the largest error is too large"
        elif error_rms > allowed_rms:
            complaint = "the errors are too large on the whole"
    if complaint and at is not None:
        complaint += f"; at {at}: got {g[at]:.8g}, exact {e[at]:.8g}, rounded {r[at]:.8g}"
    return Report(name, not complaint, error_max, allowed_max, error_rms, allowed_rms, at, complaint)


def _most(x: Array) -> float:
    return float(x.max(initial=0.0))


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def _first(where: Array) -> tuple[int, ...] | None:
    found = np.argwhere(where)
    return tuple(int(i) for i in found[0]) if len(found) else None


def verify(
    attn: Attention,
    inputs: Mapping[str, Array],
    got: Mapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
    units: Units = NEAREST,
    partial: bool = False,
) -> dict[str, Report]:
    """Reports on the outputs in `got`, each against the exact and the rounded computation of the same call.

    `partial`: only rows in which something is not NaN, as where some of a kernel's blocks ran into outputs full of NaN."""
    true, dead = exact.evaluate_and_dead(attn, inputs, sizes=sizes, seed=seed, offset=offset)
    near = evaluate_rounded(attn, inputs, sizes=sizes, units=units, seed=seed, offset=offset)
    reports = {}
    for name, array in got.items():
        rows = dead if name == attn.output else None
        values, dtype = (array, true[name], near[name]), attn.tensor(name).dtype
        if partial:
            some = _begun(attn, name, array)
            rows = None if rows is None else np.broadcast_to(rows, array.shape)[some]
            values = array[some], true[name][some], near[name][some]
        reports[name] = check(*values, name=name, dtype=dtype, dead=rows)
    return reports


def _begun(attn: Attention, name: str, array: Array) -> Array:
    """Which elements are of rows with a number in them."""
    written, rows = ~np.isnan(array.astype(np.float64)), attn.index(attn.q)
    gone = batch_of(attn, rows) if rows.storage.kind == "packed" else None  # sequences lie end to end in memory
    axes = tuple(n for n, x in enumerate(e for e in attn.tensor(name).index if e is not gone) if x is Var(attn.feature))
    return np.broadcast_to(written.any(axis=axes, keepdims=True), array.shape)


def verify_gradients(
    attn: Attention,
    inputs: Mapping[str, Array],
    d_output: Array,
    got: Mapping[str, Array],
    d_lse: Array | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    offset: int = 0,
    units: Units = NEAREST,
) -> dict[str, Report]:
    """Reports on the gradients in `got`, each against the exact and the rounded computation of the same call."""
    names = tuple(got)
    true = exact.gradients(attn, inputs, d_output, d_lse, names=names, sizes=sizes, seed=seed, offset=offset)
    near = gradients_rounded(
        attn, inputs, d_output, d_lse, names=names, sizes=sizes, seed=seed, offset=offset, units=units
    )
    # dP - delta cancels: where one key has all the weight it is 0 up to the f32 rounding of products this large.
    terms = _finite_most(d_output) * _finite_most(inputs[attn.value])
    return {
        name: check(array, true[name], near[name], name=f"d{name}", dtype=attn.tensor(name).dtype, magnitude=terms)
        for name, array in got.items()
    }


def _finite_most(x: Array) -> float:
    values = np.abs(x.astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))
