"""What single statements mean, and the errors that running them can raise, on programs of a few lines."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from ir_small import COPY, program

from tilec.ir import errors
from tilec.ir.interp import run
from tilec.ir.philox import uniform


def value(expr: str, *, dtype: str = "f32", axes: str = "q = T, k = 3", **inputs: np.ndarray) -> np.ndarray:
    """An expression over axes q (4 lanes) and k (3 lanes), stored to a tensor and returned."""
    names = [a.split(" = ")[0] for a in axes.split(", ")] if axes else []
    sizes = {"q": 4, "k": 3}
    kinds = {"f": "f32", "i": "i32"}
    declared = "\n".join(f"{n} : in {kinds[x.dtype.kind]}[{x.size}]" for n, x in inputs.items())
    index = ", ".join(f"iota({n})" for n in names) or "0"
    over = f" over {', '.join(names)}" if names else ""
    dims = ", ".join(str(sizes[n]) for n in names) or "1"
    p = program(
        f"X = {expr}\nstore out[{index}]{over} = @X",
        registers=f"X : {dtype}[{axes}]\nqs : f32[q = T]\nks : f32[k = 3]",
        tensors=f"out : out {dtype}[{dims}]\n{declared}",
    )
    out = np.zeros([sizes[n] for n in names] or [1], np.float32 if dtype in ("f32", "bf16", "f16") else np.int64)
    run(p, {"out": out, **inputs}, {"N": 5})
    return out


Q, K = np.arange(4)[:, None], np.arange(3)[None, :]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("iota(q) * 10 + iota(k)", Q * 10 + K),
        ("(iota(q) - 2) // 2 - (iota(k) - 3) % 2", (Q - 2) // 2 - (K - 3) % 2),
        ("min(iota(q), iota(k)) - max(1, iota(q))", np.minimum(Q, K) - np.maximum(1, Q)),
        ("where(iota(k) <= iota(q) and not iota(q) == 2, 1, N)", np.where((K <= Q) & (Q != 2), 1, 5)),
        ("abs(iota(k) - 1) + -iota(q) + T", abs(K - 1) - Q + 4),
        ("sum[q](iota(q) * iota(k))", (Q * K).sum(0) + 0 * Q),
        ("max[k](iota(k) - iota(q))", (K - Q).max(1, keepdims=True) + 0 * K),
        ("sum[k](2) + max[q](7)", np.full((4, 3), 13)),
        ("sum[k, 2](iota(k)) + max[q, 3](iota(q))", np.full((4, 3), 6)),
        ("2 ** iota(q)", 2**Q + 0 * K),
    ],
)
def test_integers_broadcast_by_axis_name(expr: str, expected: np.ndarray):
    np.testing.assert_array_equal(value(expr, dtype="i32"), expected)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("1 / (iota(q) + 3)", 1 / (Q + np.float32(3)) + 0 * K),
        ("exp2(iota(q) * 0.3)", np.exp2(Q.astype(np.float32) * np.float32(0.3)) + 0 * K),
        ("tanh(float(iota(k)) / 7)", np.tanh(K.astype(np.float32) / np.float32(7)) + 0 * Q),
        ("float(16777217) + iota(q)", np.float32(16777217) + Q.astype(np.float32) + 0 * K),
        ("log(iota(q) + 1) + sqrt(iota(k))", np.log((Q + 1).astype(np.float32)) + np.sqrt(K.astype(np.float32))),
        ("where(iota(k) == 1, -inf, 2)", np.where(K == 1, -np.inf, 2.0) + 0 * Q),
    ],
)
def test_floats_are_f32_and_raise_no_warnings(expr: str, expected: np.ndarray):
    with np.errstate(all="ignore"):
        want = expected.astype(np.float32)
    np.testing.assert_array_equal(value(expr), want)


@pytest.mark.filterwarnings("error")
def test_no_numpy_warning_leaks():
    assert np.isnan(value("log(0.0 - iota(q)) + (iota(k) - iota(k)) / 0.0")).any()


def test_scalars_are_lazy():
    table = np.array([3, 4, 5])
    assert value("where(N < 3, t[N], 7) + t[2]", axes="", dtype="i32", t=table)[0] == 12
    assert value("where(N > 3 or t[N] == 1, 1, 0)", axes="", dtype="i32", t=table)[0] == 1
    with pytest.raises(errors.OutOfBounds):
        value("t[N]", axes="", dtype="i32", t=table)
    with pytest.raises(errors.Undefined, match="by zero"):
        value("N // (N - 5)", axes="", dtype="i32")


def test_a_store_rounds_once_to_nearest_even():
    x = np.array([1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    got = value("t[iota(q)]", dtype="bf16", axes="q = T", t=x)
    np.testing.assert_array_equal(got, x.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(got, [1, 1 + 2**-7, 1, 1 + 2**-6])


@pytest.mark.parametrize(("target", "largest"), [("sm90", 448.0), ("gfx950", 448.0), ("gfx942", 240.0)])
def test_e4m3_has_the_range_of_the_target(target: str, largest: float):
    tensors = "t : in f32[1]\nout : out f32[1]"
    p = program("X = t[0]\nstore out[0] = @X", registers="X : e4m3[]", tensors=tensors, target=target)
    out = np.zeros(1, np.float32)
    for x, want in ((largest, largest), (largest * 2, np.nan)):
        run(p, {"t": np.array([x], np.float32), "out": out}, {"N": 1})
        np.testing.assert_equal(out[0], np.float32(want))


def test_uniform_is_philox():
    got = value("uniform(1234567890123, 4, 1, 2, iota(q), iota(k))")
    np.testing.assert_array_equal(got, uniform(1234567890123, 4, 1, 2, Q, K))


def test_a_matrix_product_contracts_shared_axes():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal((5, 3)).astype(np.float32)
    form = "a : f32[q = 4, d = 3]\nb : f32[k = 5, d = 3]\ns : f32[{axes}]"
    load = "load a = A[iota(q), iota(d)]\nload b = B[iota(k), iota(d)]\nmma s = {x} . {y}\nmma s += a . b\n"
    for axes, x, y, want in (("q = 4, k = 5", "a", "b", a @ b.T), ("k = 5, q = 4", "b", "a", b @ a.T)):
        p = program(
            load.format(x=x, y=y) + f"store out[iota({axes[0]}), iota({axes[7]})] over {axes[0]}, {axes[7]} = @s",
            registers=form.format(axes=axes),
            tensors=f"A : in f32[4, 3]\nB : in f32[5, 3]\nout : out f32[{axes[4]}, {axes[11]}]",
        )
        out = np.zeros(want.shape, np.float32)
        run(p, {"A": a, "B": b, "out": out}, {"N": 1})
        np.testing.assert_allclose(out, 2 * want, rtol=1e-6)


def test_batched_products_keep_common_axes():
    p = program(
        "a = iota(h) + iota(q) * iota(d)\nb = iota(d) - iota(h)\nmma s = a . b\nstore out[iota(h), iota(q)] over h, q = @s",
        registers="a : f32[h = 2, q = 3, d = 4]\nb : f32[h = 2, d = 4]\ns : f32[h = 2, q = 3]",
        tensors="out : out f32[2, 3]",
    )
    out = np.zeros((2, 3), np.float32)
    run(p, {"out": out}, {"N": 1})
    h, q, d = np.ogrid[:2, :3, :4]
    np.testing.assert_array_equal(out, ((h + q * d) * (d - h)).sum(-1))


def test_masked_lanes_read_nothing_even_through_tables():
    p = program(
        "load x = t[bt[iota(k) // 2]] where iota(k) // 2 < N and bt[iota(k) // 2] >= 0 other -1.0\n"
        "store out[iota(k)] over k = @x where iota(k) > 0",
        tensors="t : in f32[N]\nbt : table i32[N]\nout : out f32[8]",
        registers="x : f32[k = 8]",
    )
    out = np.full(8, 9, np.float32)
    run(p, {"t": np.array([1, 2, 3], np.float32), "bt": np.array([2, -5, 0]), "out": out}, {"N": 3})
    np.testing.assert_array_equal(out, [9, 3, -1, -1, 1, 1, -1, -1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("load x = t[iota(k)]", "index 5 in dimension 0 of t, whose extent there is 5"),
        ("load x = t[iota(k) - 1] where iota(k) < 5", "index -1 in dimension 0"),
        ("x = t[iota(k) - 1] + where(iota(k) > 0, 0, 1)", "index -1"),
        ("x = where(iota(k) < 5, t[iota(k)], 0.0)", "index 5"),
        ("x = 0.0\nstore out[iota(k) + 1] over k = @x", "index 8 in dimension 0 of out"),
        ("x = 0.0\nx{k: N for 4} = 1.0", "lanes 5 … 8 along k of x, which has 8"),
    ],
)
def test_out_of_bounds(body: str, message: str):
    with pytest.raises(errors.OutOfBounds, match=re.escape(message)) as caught:
        run(program(body, **COPY), {"t": np.ones(5, np.float32), "out": np.zeros(8, np.float32)}, {"N": 5})
    assert f"in {body.splitlines()[-1]}" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("x = @y", "y"),
        ("x{k: 0 for 4} = 1.0\ny = @x", "x"),
        ("ring[1] = 0.0\nx = @ring[N - 5]", "ring[0]"),
        ("if N > 9\n  let a = 1\nx = float(a)", "a"),
        ("x = 1.0\nz = @x\ny = @x", "x"),
    ],
)
def test_undefined_reads_name_the_buffer(body: str, name: str):
    registers = "x : f32[k = 8]\ny : f32[k = 8]\nring : f32[k = 8] stages 2\nz : f32[k = 8] alias x"
    with pytest.raises(errors.Undefined, match=rf"^{re.escape(name)} "):
        run(program(body, registers=registers), {}, {"N": 5})


def test_windows_fill_a_tile_part_by_part():
    body = "for i in 0 .. 2\n  x{k: 4 * i for 4} = 10 * i + iota(k)\nstore out[iota(k)] over k = @x"
    out = np.zeros(8, np.float32)
    run(program(body, **COPY), {"t": np.ones(5, np.float32), "out": out}, {"N": 5})
    np.testing.assert_array_equal(out, [0, 1, 2, 3, 10, 11, 12, 13])


def test_control_flow_and_seek():
    body = """\
seek s in 0 .. N where t[s] >= 2.0
seek e in 0 .. N where t[e] > 99.0
let n = 0
let i = 0
while i < 3
  let i = i + 1
  for j in 0 .. i down
    if j == 1
      let n = n * 10 + j
    else
      let n = n * 10 + 2
x = float(s * 100000 + e * 10000) + n
store out[iota(k)] over k = @x"""
    out = np.zeros(8, np.float32)
    run(program(body, **COPY), {"t": np.array([0, 1, 2, 2, 5], np.float32), "out": out}, {"N": 5})
    assert out[0] == 250000 + 212212


@pytest.mark.parametrize(
    ("tensors", "extents", "message"),
    [
        ({}, {"N": 5}, "tensor t is missing"),
        ({"t": np.ones(4, np.float32)}, {"N": 5}, r"t has shape \(4,\), but the program expects \(5,\)"),
        ({"t": [1.0] * 5}, {"N": 5}, "t is not a NumPy array"),
        ({"t": np.ones(5, np.float32)}, {}, "no value for N"),
    ],
)
def test_calls_must_fit(tensors: dict, extents: dict, message: str):
    with pytest.raises(errors.CallError, match=message):
        run(program("x = 0.0", **COPY), {**tensors, "out": np.zeros(8, np.float32)}, extents)


def test_outputs_keep_what_is_not_stored_and_round_to_their_dtype():
    body = "store out[iota(k) + 1] over k = 1.0 + iota(k) * 0.001953125"
    p = program(body, tensors="out : out bf16[9]", registers="x : f32[k = 8]")
    for dtype in (np.float32, ml_dtypes.bfloat16):
        out = np.full(9, np.nan, dtype)
        run(p, {"out": out}, {"N": 1})
        exact = (1 + np.arange(8) / 512).astype(np.float32)
        assert np.isnan(out[0].astype(np.float32))
        np.testing.assert_array_equal(out[1:].astype(np.float32), exact.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_what_may_be_left_out_changes_nothing():
    def doubled(unless: str) -> np.ndarray:
        p = program(
            f"x = 3.0\nx = @x * where(iota(k) < 5, 1.0, 2.0) unless {unless}\nstore out[iota(k)] over k = @x",
            registers="x : f32[k = 8]",
            tensors="out : out f32[8]",
        )
        out = np.zeros(8, np.float32)
        run(p, {"out": out}, {"N": 5})
        return out

    for unless in ("iota(k) < 5", "iota(k) < 2", "N == 4"):
        np.testing.assert_array_equal(doubled(unless), [3.0] * 5 + [6.0] * 3)
    for unless in ("iota(k) < 6", "N == 5"):
        with pytest.raises(errors.Changed, match="x changes in lanes where"):
            doubled(unless)


def test_what_is_no_number_stays_so():
    p = program("x = log(-1.0)\nx = @x * 1.0 unless N == 5", registers="x : f32[k = 8]")
    run(p, {}, {"N": 5})
