"""The speed of native Hopper kernels beside the fastest fixed kernels and FlexAttention, all in one run.

    python tests/device/bench_native.py --out tests/device/results/h200-native.json
        [--part grid|uneven|variants|host]... [--dims 64,128,256] [--masks full,causal] [--lengths 512,2048,...]
        [--peers sdpa,cudnn,flex,fa3,fa4] [--grid-without flex,sdpa] [--limit 460] [--backend cuda]

`--out` is written after every cell, and cells that are there already and not measured now are kept; so a run that is cut off,
by `--limit` seconds or from outside, loses one cell at most.  Where the native backend refuses a case, the target's default
is measured; a cell says which.  A kernel that hangs ends the process within 15 s.  Exit status 1 if a cell has no figure of
ours.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from native_table import causal_over_full, line, measured, table
from speed_cases import CAUSAL, VARIANTS, Row, measure

from tilec.bench import Options
from tilec.bench import Row as Ours
from tilec.dsl.faults import Fault, Faults
from tilec.measure import SUSTAINED, Plan

LENGTHS = (512, 2048, 4096, 8192, 16384)
DIMS = (128, 64, 256)
MASKS = {"full": "", "causal": CAUSAL}
PEERS = ("sdpa", "cudnn", "flex", "fa3", "fa4")
PARTS = ("grid", "uneven", "variants", "host")


def cells(part: str, dims: tuple[int, ...], masks: tuple[str, ...], lengths: tuple[int, ...]) -> list[Row]:
    """The cases of a part; the longest first, for a run that is cut off."""
    match part:
        case "grid":
            return [Row(m, d, s, MASKS[m]) for d in dims for m in masks for s in sorted(lengths, reverse=True)]
        case "uneven":  # numbers of (batch, head) problems that no number of blocks divides
            return [Row(m, 128, 4096, MASKS[m], batch=1, heads=n) for n in (33, 67) for m in masks]
        case "variants":
            return VARIANTS
        case _:  # little work, so that the host's share is the whole
            return [Row("causal", 128, 512, CAUSAL, batch=1)]


def key(part: str, row: dict[str, object]) -> str:
    return json.dumps([part, row], sort_keys=True)


class Record:
    """The cells of `path`, by part and case."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        self.cells = {key(c["part"], c["case"]): c for c in found}

    def put(self, cell: dict[str, object]) -> None:
        """Written at once, and whole: a time-out leaves the cells before."""
        self.cells[key(cell["part"], cell["case"])] = cell
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".part")
        half.write_text(json.dumps(list(self.cells.values()), indent=1) + "\n", encoding="utf-8")
        half.replace(self.path)


def run(part: str, row: Row, peers: list[str], options: Options, backend: str) -> dict[str, object]:
    """One cell.  `refused`: what backends said that did not take it; without a taker there are no figures."""
    cell: dict[str, object] = {"part": part, "case": asdict(row), "refused": []}
    for name in (backend, None):
        try:
            return cell | measure(row, peers, options, name).to_data()
        except (Fault, Faults) as fault:
            cell["refused"].append(str(fault).splitlines()[0])
    return cell | {"backend": "none", "rows": [asdict(Ours("tilec", note="; ".join(cell["refused"])))], "best": {}}


def words(choices: tuple[object, ...]):
    """`64,128`: some of `choices`."""
    named = {str(c): c for c in choices}

    def some(text: str) -> tuple[object, ...]:
        return tuple(named[w] for w in text.split(",") if w)

    return some


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=PARTS, help="all of them if not given")
    parser.add_argument("--dims", type=words(DIMS), default=DIMS)
    parser.add_argument("--masks", type=words(tuple(MASKS)), default=tuple(MASKS))
    parser.add_argument("--lengths", type=words(LENGTHS), default=LENGTHS)
    parser.add_argument("--peers", type=words(PEERS), default=PEERS)
    parser.add_argument("--grid-without", type=words(PEERS), default=(), help="peers to leave out of grid and uneven")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sustained", type=float, default=SUSTAINED, help="seconds of each kernel alone")
    parser.add_argument("--limit", type=float, default=460.0, help="seconds after which no cell is begun")
    asked = parser.parse_args()
    begun = time.monotonic()
    options = Options(Plan(asked.rounds, sustained=asked.sustained), watchdog=15.0, building=150.0)
    record, now = Record(asked.out), []
    todo = [(part, row) for part in asked.part or PARTS for row in cells(part, asked.dims, asked.masks, asked.lengths)]
    for number, (part, row) in enumerate(todo):
        if time.monotonic() - begun > asked.limit:
            print(f"{asked.limit:g} s are over: {len(todo) - number} of {len(todo)} cells are not measured", flush=True)
            break
        left_out = asked.grid_without if part in ("grid", "uneven") else ()
        cell = run(part, row, [p for p in asked.peers if p not in left_out], options, asked.backend)
        record.put(cell)
        now.append(cell)
        notes = "; ".join(f"{r['name']} {r['note']}" for r in cell["rows"] if r["note"])
        shown = line(cell) if measured([cell]) else f"| {row.name} | {row.d} | {row.s} |"
        hosts = ", ".join(f"{r['name']} {r['host'] * 1e6:.0f}" for r in cell["rows"] if r["host"])
        print(f"{time.monotonic() - begun:5.0f} s {cell['backend']:6} {shown} host us: {hosts} {notes}", flush=True)
    kept = list(record.cells.values())
    print("\n".join(table(kept)))
    for (d, s), (ours, best) in causal_over_full(kept).items():
        print(f"causal time over full time, d {d}, S {s}: {ours:.3f}, fastest others {best:.3f}")
    return int(any(not c["rows"][0]["sustained"] for c in now))


if __name__ == "__main__":
    sys.exit(main())
