"""What `bench_native.py` measured, as the table that the README shows.  Needs no device and no torch."""

HEAD = (
    "| case | d | S | heads | sustained | best other | its | ratio | burst ratio |",
    "|---|---|---|---|---|---|---|---|---|",
)


def measured(cells):
    """The cells with a figure of ours and of another."""
    return [c for c in cells if c.get("best") and all(c["best"].values())]


def rate(cell, name, of):
    """TFLOP/s on live elements of an implementation, or None."""
    return next((r["tflops"][of] for r in cell["rows"] if r["name"] == name), None)


def line(cell):
    """One row: TFLOP/s of tilec and of the fastest other, both sustained, and tilec's speed over that of the fastest other,
    sustained and in bursts."""
    case, best = cell["case"], cell["best"]
    other = best["sustained"]["name"]
    speeds = [f"{rate(cell, 'tilec', 'sustained'):.0f}", other, f"{rate(cell, other, 'sustained'):.0f}"]
    ratios = [f"{best[of]['ratio']:.2f}" for of in ("sustained", "burst")]
    heads = case["heads"] or 2048 // case["d"]
    return f"| {' | '.join(map(str, (case['name'], case['d'], case['s'], heads, *speeds, *ratios)))} |"


def table(cells):
    """The README's lines."""
    return [*HEAD, *map(line, measured(cells))]


def causal_over_full(cells):
    """{(d, S): (tilec's causal time over its full time, the same of the fastest others)}, sustained; 0.5 is ideal."""
    times = {}
    for c in measured(cells):
        if c["part"] == "grid":
            rows = {r["name"]: r["sustained"] for r in c["rows"]}
            best = rows[c["best"]["sustained"]["name"]]
            times[c["case"]["name"], c["case"]["d"], c["case"]["s"]] = rows["tilec"], best
    return {
        (d, s): tuple(causal / full for causal, full in zip(times["causal", d, s], times["full", d, s], strict=True))
        for kind, d, s in times
        if kind == "full" and ("causal", d, s) in times
    }
