"""The speed of Ampere's and Ada's kernels, on any GPU that runs their instructions, beside FlashAttention-2 (SDPA flash).

    python tests/device/bench_ampere.py --out ampere.json [--dims 64,128,256] [--lengths 2048,4096,8192,16384] [--quick]

Shapes of each head dim and FlashAttention-2 are interleaved in bursts, then held for `sustained`; TFLOP/s on live elements,
bf16, 16384 tokens, heads x head dim = 2048.  Every shape is first held against SDPA.  JSON after every cell.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import ampere_kit
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilec.ampere import WarpOptions
from tilec.backends.runtime.timing import DeviceClock
from tilec.dsl.faults import Fault
from tilec.measure import Plan, measure
from tilec.passes.stage_copies import Staging

TOKENS, WIDTH = 16384, 2048
# (rows, keys, warps, stages, queries)
SHAPES = {
    64: [(128, 128, 4, 1, "shared"), (128, 96, 4, 1, "shared"), (128, 64, 4, 1, "shared"), (128, 64, 4, 2, "shared"),
         (128, 96, 4, 2, "shared"), (128, 64, 4, 1, "registers"), (128, 64, 8, 2, "registers")],
    128: [(128, 64, 4, 1, "shared"), (128, 48, 4, 1, "shared"), (128, 32, 4, 1, "shared"), (128, 32, 4, 2, "shared"),
          (128, 64, 4, 2, "shared"), (64, 64, 4, 1, "shared"), (128, 64, 8, 2, "registers")],
    256: [(64, 64, 4, 1, "shared"), (128, 64, 8, 1, "shared"), (64, 32, 4, 1, "shared"), (64, 32, 4, 2, "shared")],
}  # fmt: skip


def spec(d: int, mask: str) -> str:
    return f"""
kernel speed {{
  index  b : B, h : {WIDTH // d}, q : M, k : N, d : {d}
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  lse    L[b, h, q] : f32
  scale  1 / sqrt({d})
  {mask}
}}
"""


def cell(d: int, causal: bool, length: int, kernels: dict, plan: Plan) -> dict[str, object]:
    """Figures of one case."""
    batch, heads = max(1, TOKENS // length), WIDTH // d
    q, k, v = (torch.randn(batch, length, heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    turned = [x.transpose(1, 2) for x in (q, k, v)]

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=causal)

    want = flash().transpose(1, 2).float()
    calls, errors = {"fa2": flash}, {}
    for name, kernel in kernels.items():
        o, lse = torch.empty_like(q), torch.empty(batch, heads, length, device="cuda")
        shape, tensors = (
            kernel.shape({"B": batch, "M": length, "N": length}),
            {"Q": q, "K": k, "V": v, "O": o, "L": lse},
        )
        kernel(shape, tensors)
        torch.cuda.synchronize()
        errors[name] = float((o.float() - want).abs().max())
        calls[name] = lambda kernel=kernel, shape=shape, tensors=tensors: kernel(shape, tensors)
    flops = 4 * batch * heads * length * length * d / (2 if causal else 1)
    found = measure(calls, DeviceClock(q.device), plan)
    rates = {n: {"burst": flops / s.burst / 1e12, "sustained": flops / s.sustained / 1e12} for n, s in found.items()}
    return {"d": d, "causal": causal, "length": length, "tflops": rates, "largest_difference": errors}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("ampere.json"))
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--lengths", default="2048,4096,8192,16384")
    parser.add_argument("--quick", action="store_true", help="bursts alone, fewer of them")
    a = parser.parse_args()
    plan = Plan(rounds=3, sustained=0.05) if a.quick else Plan()
    cells: list[dict[str, object]] = []
    for d in map(int, a.dims.split(",")):
        for causal in (False, True):
            kernels = {}
            for rows, keys, warps, stages, queries in SHAPES[d]:
                name = f"{rows}x{keys}, {warps} warps, {stages} stages, queries in {queries}"
                try:
                    options = WarpOptions(warps, Staging(stages, queries))
                    kernels[name] = ampere_kit.at_shape(spec(d, "mask k <= q" if causal else ""), rows, keys, options)
                except Fault as fault:
                    print(f"{d} {name}: {str(fault).splitlines()[0]}", file=sys.stderr, flush=True)
            for length in map(int, a.lengths.split(",")):
                cells.append(cell(d, causal, length, kernels, plan))
                a.out.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
                print(json.dumps(cells[-1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
