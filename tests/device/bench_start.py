"""Seconds from `tilec.load` to the first result, in a fresh process: with empty caches, and with caches filled by it.

    python tests/device/bench_start.py --out tests/device/results/h200-start.json [--backend cuda|triton]...

Of each backend: `cold` with empty caches, the compiler's work included, of which `nvrtc` is NVRTC's and `inspected` the check of
the machine code; `cached` with caches that another process filled, `call` the time that one Python call takes on the host,
kernels not waited for.  Imports of torch, triton and tilec, and the creation of the CUDA context, are not counted; `imports` is
what those of tilec take.  `captured`: the first call is one that a CUDA graph records, with filled caches.  Times are the shorter
of two processes': the first on a machine also reads the compilers from its disk.  Exit status 1 if a bar is missed, or if a
backend gave no result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tilec.bench import commit, versions

SPEC = Path(__file__).resolve().parents[2] / "examples" / "causal_gqa" / "spec.tile"
BARS = {
    "cuda": {"cold": 2.0, "cached": 0.3, "captured": 0.3, "call": 15e-6},
    "triton": {"cold": 5.0, "cached": 0.3, "captured": 0.3, "call": 25e-6},
}

CHILD = """
import json, sys, time
import torch, triton
begun = time.perf_counter()
import tilec, tilec.jit, tilec.backends.cuda.launch, tilec.backends.triton.launch, tilec.pipeline
imports = time.perf_counter() - begun
from tilec.backends.cuda import build, machine
from tilec.backends.runtime import timing
spent = {"nvrtc": 0.0, "inspected": 0.0}

def timed(module, name, part):
    inner = getattr(module, name)
    def outer(*args, **more):
        start = time.perf_counter()
        try:
            return inner(*args, **more)
        finally:
            spent[part] += time.perf_counter() - start
    setattr(module, name, outer)

timed(build, "build", "nvrtc")
timed(machine, "check_cubin", "inspected")
spec, backend, captured = sys.argv[1], sys.argv[2], sys.argv[3] == "captured"
q = torch.randn(2, 300, 32, 128, device="cuda", dtype=torch.bfloat16)
k, v = (torch.randn(2, 300, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
torch.cuda.synchronize()
start = time.perf_counter()
attention = tilec.load(spec, backend=backend)
if captured:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v)
    graph.replay()
else:
    attention(q, k, v)
torch.cuda.synchronize()
first = time.perf_counter() - start
q, k, v = (t[:1, :64].contiguous() for t in (q, k, v))
call = min(timing.host_overhead(lambda: attention(q, k, v), q.device) for _ in range(20))
device = timing.device_name(q.device)
print(json.dumps({"first": first, "call": call, "imports": imports, "device": device, **spent}))
"""


def run(cache: str, spec: Path, backend: str, how: str) -> dict[str, float | str]:
    """What one process measured.  `how`: `eager`, or `captured` for a first call in a graph."""
    env = {
        **os.environ,
        "TILEC_CACHE": f"{cache}/tilec",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "XDG_CACHE_HOME": cache,
    }
    command = [sys.executable, "-c", CHILD, str(spec), backend, how]
    out = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=120)
    if out.returncode:
        raise RuntimeError(f"{backend}, {how}: {out.stderr.strip()[-2000:]}")
    found: dict[str, float | str] = json.loads(out.stdout.splitlines()[-1])
    return found


def measure(backend: str) -> tuple[dict[str, float], str]:
    """(seconds, the device's name)."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as other:
        spec = Path(cache, "spec.tile")  # without schedules, which are for one backend or the other
        spec.write_text(SPEC.read_text(encoding="utf-8").partition("\nschedule")[0] + "\n", encoding="utf-8")
        cold = min((run(c, spec, backend, "eager") for c in (other, cache)), key=lambda found: float(found["first"]))
        again = [run(cache, spec, backend, "eager") for _ in range(2)]
        graphs = [run(cache, spec, backend, "captured") for _ in range(2)]
    least = {key: min(float(a[key]) for a in again) for key in ("first", "call", "imports")}
    seconds = {"cold": float(cold["first"]), "cached": least["first"]}
    seconds["captured"] = min(float(g["first"]) for g in graphs)
    parts = {part: float(cold[part]) for part in ("nvrtc", "inspected") if backend == "cuda"}
    return {**seconds, **parts, "call": least["call"], "imports": least["imports"]}, str(cold["device"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", action="append", choices=tuple(BARS), help="all of them if not given")
    options = parser.parse_args()
    seconds, failed, device = {}, [], ""
    for backend in options.backend or BARS:
        try:
            seconds[backend], device = measure(backend)
        except (RuntimeError, subprocess.TimeoutExpired) as problem:
            failed.append(backend)
            print(f"{backend}: {problem}")
            continue
        for name, value in seconds[backend].items():
            bar = BARS[backend].get(name)
            missed = bar is not None and value > bar
            failed += [f"{backend} {name}"] * missed
            print(f"{backend:6} {name:8} {value:.6f} s{f', bar {bar}' if bar else ''}{'  MISSED' if missed else ''}")
    found = {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": device,
        "versions": versions(),
        "seconds": seconds,
        "bars": {b: BARS[b] for b in seconds},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
