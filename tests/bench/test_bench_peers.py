"""Peers on the CPU: what each can express, that it computes the spec, and how live elements are counted."""

import json
import subprocess
import sys

import pytest
import torch

from tilec import bench
from tilec.frontend import read_text
from tilec.measure import Plan
from tilec.oracle.exact import evaluate
from tilec.oracle.tensors import from_torch
from tilec.peers.adapters import PEERS
from tilec.peers.case import Case, Mask, make_tensors
from tilec.shapes import call_sizes

KERNEL = """
kernel attend {{
  index  b : B, h : 4, q : M{q_storage}, k : N{k_storage}, d : 16
  query  Q[{order}] : {dtype}
  key    K[b, k, {kv}, d] : {dtype}
  value  V[b, k, {kv}, d] : {dtype}
  output O[{order}] : {out}
  {more}
  scale  1 / sqrt(16)
  mask   {mask}
}}
"""
DEFAULTS = {
    "q_storage": "",
    "k_storage": "",
    "order": "b, q, h, d",
    "kv": "h",
    "dtype": "f32",
    "more": "",
    "mask": "true",
}
CAUSAL = "k <= q + N - M"


def case(sizes=(2, 40, 40), **options):
    options = DEFAULTS | options
    options.setdefault("out", options["dtype"])
    attn = read_text(KERNEL.format(**options)).kernels[0]
    extents = call_sizes(attn, dict(zip(("B", "M", "N"), sizes, strict=True)))
    return Case(attn, extents, make_tensors(attn, extents, "cpu"))


def exact(c):
    return evaluate(c.attn, from_torch(c.tensors))["O"]


EXPRESSIBLE = [
    ("sdpa", {}),
    ("sdpa", {"mask": CAUSAL, "kv": "h // 2"}),
    ("sdpa", {"mask": CAUSAL, "order": "b, h, q, d"}),
    ("flex", {"mask": CAUSAL, "kv": "h // 2"}),
    ("flex", {"mask": "(q - k) % 3 == 0 and k <= q", "order": "b, h, q, d"}),
    ("flex", {"mask": "k // 8 == q // 8 or k < 2", "more": "score s = where(k < 5, s * 2, s - 0.1 * abs(q - k))"}),
    ("flex", {"mask": "doc[b, q] == doc[b, k]", "more": "param doc[b, k] : i32 nondecreasing"}),
    ("flex", {"more": "param slope[h] : f32\n  score s = 5 * tanh(s / 5)\n  score s = s - slope[h] * (q - k)"}),
    ("flex", {"more": "score s = max(min(s, 2), -exp(0 - s)) ** 2 / 3"}),
]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("peer", "options"), EXPRESSIBLE)
def test_a_peer_computes_the_spec(peer, options):
    c = case(**options)
    assert PEERS[peer].why_not(c) is None
    got = PEERS[peer].forward(c)()
    assert got.shape == exact(c).shape
    torch.testing.assert_close(got.double(), torch.from_numpy(exact(c)), rtol=1e-4, atol=1e-5)


INEXPRESSIBLE = [
    ("sdpa", {"mask": "k <= q and k > q - 5"}, "a mask other than full and causal"),
    ("sdpa", {"more": "score s = s * 2"}, "score lines"),
    ("sdpa", {"mask": CAUSAL, "sizes": (1, 8, 16)}, "M different from N"),
    ("sdpa", {"dtype": "e4m3", "out": "bf16"}, "dtypes e4m3"),
    ("cudnn", {}, "needs a GPU"),
    ("flex", {"k_storage": " lengths n"}, "storage"),
    ("flex", {"more": "sink Z[h] : f32"}, "a sink"),
    ("fa3", {}, "neither flash_attn_interface nor fa3_fwd_interface is installed"),
    ("fa4", {}, "flash_attn.cute is not installed"),
]


@pytest.mark.parametrize(("peer", "options", "lack"), INEXPRESSIBLE)
def test_a_peer_says_what_it_lacks(peer, options, lack):
    assert lack in PEERS[peer].why_not(case(**options))


@pytest.mark.parametrize(
    ("mask", "sizes", "found"),
    [
        ("true", (1, 20, 30), Mask("full")),
        ("k < N", (1, 20, 30), Mask("full")),
        (CAUSAL, (1, 20, 30), Mask("causal")),
        ("not (k > q)", (1, 30, 30), Mask("causal")),
        ("k <= q", (1, 20, 30), Mask("other")),
        ("k <= q and q - k <= 6", (1, 30, 30), Mask("window", 6)),
        ("k <= q and q - k < 100", (1, 30, 30), Mask("causal")),
        ("k <= q and (q - k) % 2 == 0", (1, 30, 30), Mask("other")),
        ("k <= q + h", (1, 30, 30), Mask("other")),
    ],
)
def test_masks_are_recognised_by_what_they_keep(mask, sizes, found):
    assert case(sizes, mask=mask).mask == found


def test_live_elements_and_flops():
    assert case((2, 40, 40), mask=CAUSAL).live == 2 * 4 * 40 * 41 // 2
    assert case((2, 40, 50)).live == 2 * 4 * 40 * 50
    assert case((1, 40, 40), mask="k <= q + h").live == sum(min(40, q + h + 1) for h in range(4) for q in range(40))
    assert case((2, 40, 50)).flops == 2 * case((2, 40, 50)).live * (16 + 16)


def test_bench_reports_rates_on_live_elements_and_why_not():
    c = case((1, 32, 32), mask=CAUSAL)
    own = PEERS["sdpa"].forward(c)
    options = bench.Options(Plan(rounds=2, burst=0.001, sustained=0.01), watchdog=60)
    said = []
    result = bench.bench(c, own, ("sdpa", "cudnn"), options, said.append)
    rows = {r.name: r for r in result.rows}
    assert rows["sdpa"].error == 0
    assert rows["cudnn"].note == "cannot: it needs a GPU"
    assert rows["cudnn"].burst is None
    assert rows["tilec"].tflops(result.flops) == pytest.approx(result.flops / rows["tilec"].burst / 1e12)
    assert "burst 2 of 2: sdpa" in said
    data = json.loads(result.to_json())
    assert {"date", "commit", "device", "versions", "options", "flops", "live"} <= set(data)
    assert data["rows"][0]["tflops"]["sustained"] > 0
    bench.table(result)


def test_a_peer_that_disagrees_is_not_timed():
    c = case((1, 32, 32), mask=CAUSAL)
    wrong = PEERS["sdpa"].forward(c)
    result = bench.bench(c, lambda: wrong() + 1, ("sdpa",), bench.Options(Plan(1, 0.001, 0.01)))
    (row,) = [r for r in result.rows if r.name == "sdpa"]
    assert row.burst is None
    assert row.note.startswith("disagrees with tilec")


def test_nan_agrees_with_nothing():
    x = torch.ones(4)
    assert bench.distance(x, x) == 0
    assert not bench.distance(x * float("nan"), x) <= bench.AGREE


def test_the_watchdog_ends_a_hung_run():
    script = "import time\nfrom tilec.watchdog import Watchdog\nwith Watchdog(0.2):\n    time.sleep(30)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "Timeout" in done.stderr
