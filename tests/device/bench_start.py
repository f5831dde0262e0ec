"""Seconds from `tilec.load` to the first result, in a fresh process: with empty caches, and with caches filled by it.

    python tests/device/bench_start.py --out tests/device/results/h200-start.json

Imports of torch, triton and tilec, and the creation of the CUDA context, are not counted.  Also the time that one Python
call takes on the host, kernels not waited for.  Bars: 5 s cold, 0.3 s cached, 25 us a call.  Exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SPEC = Path(__file__).resolve().parents[2] / "examples" / "causal_gqa" / "spec.tile"
BARS = {"cold": 5.0, "cached": 0.3, "call": 25e-6}

CHILD = """
import sys, time
import torch, triton
import tilec, tilec.jit, tilec.backends.triton.launch, tilec.pipeline
from tilec.backends.runtime import timing
q = torch.randn(2, 300, 32, 128, device="cuda", dtype=torch.bfloat16)
k, v = (torch.randn(2, 300, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
torch.cuda.synchronize()
start = time.perf_counter()
attention = tilec.load(sys.argv[1])
attention(q, k, v)
torch.cuda.synchronize()
first = time.perf_counter() - start
q, k, v = (t[:1, :64].contiguous() for t in (q, k, v))
call = min(timing.host_overhead(lambda: attention(q, k, v), q.device) for _ in range(5))
print(first, call)
"""


def run(cache: str) -> tuple[float, float]:
    """(seconds to the first result, seconds of a call) of one process."""
    env = {
        **os.environ,
        "TILEC_CACHE": f"{cache}/tilec",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "XDG_CACHE_HOME": cache,
    }
    out = subprocess.run(
        [sys.executable, "-c", CHILD, str(SPEC)], env=env, check=True, capture_output=True, text=True, timeout=120
    )
    first, call = map(float, out.stdout.split())
    return first, call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        cold, _ = run(cache)
        again = [run(cache) for _ in range(2)]
    found = {"cold": cold, "cached": min(f for f, _ in again), "call": min(c for _, c in again)}
    for name, bar in BARS.items():
        print(f"{name:7} {found[name]:.6f} s, bar {bar}{'' if found[name] <= bar else '  MISSED'}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"seconds": found, "bars": BARS}, indent=1) + "\n", encoding="utf-8")
    return int(any(found[n] > bar for n, bar in BARS.items()))


if __name__ == "__main__":
    sys.exit(main())
