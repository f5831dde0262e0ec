"""The speed that this project claims for the forward pass, measured beside FlexAttention in one run.

    python tests/device/bench_forward.py --out tests/device/results/h200.json [--only masks]

Every row has a bar: the least ratio of FlexAttention's time to ours.  Bursts are interleaved; sustained figures (one
implementation alone at the chip's power limit) stand beside them.  Exit status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from speed_cases import VARIANTS, Row, measure

from tilec.bench import Options
from tilec.measure import Plan

GRID = [
    Row(kind, d, s, mask, bar=1.0)
    for d in (64, 128)
    for s in (2048, 4096, 8192, 16384)
    for kind, mask in (("full", ""), ("causal", "k <= q"))
]
BARS = {"window": 1.3, "documents": 1.3, "prefix": 1.0, "softcap": 1.5, "alibi": 1.05, "dilated": 3.0}
MASKS = [replace(row, bar=BARS[row.name]) for row in VARIANTS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("grid", "masks"))
    options = parser.parse_args()
    rows = {"grid": GRID, "masks": MASKS}.get(options.only or "", GRID + MASKS)
    found, missed = [], 0
    for row in rows:
        result = measure(row, ["flex"], Options(Plan(sustained=0.4), watchdog=60.0))
        ours, flex = result.row("tilec"), result.row("flex")
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
        found.append({"case": asdict(row), "ratio_burst": ratio, "ratio_sustained": lasting, **result.to_data()})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
