"""The speed that this project claims for the forward pass, measured beside FlexAttention in one run.

    python tests/device/bench_forward.py --out tests/device/results/h200.json [--only masks]

Every row has a bar: the least ratio of FlexAttention's time to ours.  Bursts are interleaved; sustained figures (one
implementation alone at the chip's power limit) stand beside them.  Exit status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tilec.bench import Options, Result, bench_kernel
from tilec.frontend import read_spec

TOKENS, WIDTH = 16384, 2048  # batch * length, heads * head dim

SPEC = """kernel {name} {{
  index  b : B, h : {heads}, q : M, k : N, d : {d}
  {param}
  query  Q[b, q, h, d] : bf16
  key    K[b, k, h, d] : bf16
  value  V[b, k, h, d] : bf16
  output O[b, q, h, d] : bf16
  scale  1 / sqrt({d})
  {score}
  {mask}
}}
"""


@dataclass(frozen=True)
class Row:
    """One case; `bar`: FlexAttention's time over ours must be at least this."""

    name: str
    d: int
    s: int
    bar: float
    mask: str = ""
    score: str = ""
    param: str = ""

    def spec(self) -> str:
        mask = f"mask {self.mask}" if self.mask else ""
        fields = {"name": self.name, "heads": WIDTH // self.d, "d": self.d}
        return SPEC.format(**fields, param=self.param, score=self.score, mask=mask)


GRID = [
    Row(kind, d, s, 1.0, mask)
    for d in (64, 128)
    for s in (2048, 4096, 8192, 16384)
    for kind, mask in (("full", ""), ("causal", "k <= q"))
]
MASKS = [
    Row("window", 128, 16384, 1.3, "k <= q and q - k < 1024"),
    Row("documents", 128, 16384, 1.3, "doc[b, q] == doc[b, k] and k <= q", param="param doc[b, k] : i32 nondecreasing"),
    Row("prefix", 128, 16384, 1.0, "k <= q or k < 4096"),
    Row("softcap", 128, 16384, 1.5, "k <= q", score="score s = 30.0 * tanh(s / 30.0)"),
    Row("alibi", 128, 16384, 1.05, "k <= q", score="score s = s - slope[h] * (q - k)", param="param slope[h] : f32"),
    Row("dilated", 128, 16384, 3.0, "k <= q and (q - k) % 4 == 0"),
]


def measure(row: Row, options: Options) -> Result:
    torch._dynamo.reset()  # FlexAttention recompiles per shape, and dynamo gives up after eight
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{row.name}.tile"
        path.write_text(row.spec(), encoding="utf-8")
        spec = read_spec(path)
        shape = {"B": TOKENS // row.s, "M": row.s, "N": row.s}
        return bench_kernel(spec, spec.kernels[0], "sm90", None, shape, ["flex"], options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("grid", "masks"))
    options = parser.parse_args()
    rows = {"grid": GRID, "masks": MASKS}.get(options.only or "", GRID + MASKS)
    found, missed = [], 0
    for row in rows:
        result = measure(row, Options(rounds=7, launches=5, sustained_seconds=0.4, watchdog=300.0))
        ours, flex = ({r.name: r for r in result.rows}[n] for n in ("tilec", "flex"))
        ratio = flex.burst / ours.burst if flex.burst and ours.burst else None
        lasting = flex.sustained / ours.sustained if flex.sustained and ours.sustained else None
        ok = ratio is not None and ratio >= row.bar
        missed += not ok
        figures = [r.tflops(result.flops, of) or 0.0 for of in ("burst", "sustained") for r in (ours, flex)]
        print(
            f"{row.name:10} d {row.d:3} s {row.s:5}  burst {figures[0]:6.1f} flex {figures[1]:6.1f} ratio {ratio or 0:.2f}"
            f"  sustained {figures[2]:6.1f} flex {figures[3]:6.1f} ratio {lasting or 0:.2f}  bar {row.bar}"
            f"  host {(ours.host or 0) * 1e6:.1f} us{'' if ok else '  MISSED'} {flex.note}",
            flush=True,
        )
        found.append(
            {"case": asdict(row), "ratio_burst": ratio, "ratio_sustained": lasting, **json.loads(result.to_json())}
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
