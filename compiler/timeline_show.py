"""A timeline for a person: as characters, and as SVG.

Both draw a window of a few key steps in the middle, where the roles have found their rhythm.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from tilec.timeline import Span, Timeline

COLUMNS = 96
STEPS = 3  # of the window
LETTERS = {"product": "M", "copy": "c", "compute": "#", "wait": "."}
COLOURS = {"product": "#3b6fb6", "copy": "#4f9d69", "compute": "#d08c2f", "wait": "#d9d9d9"}
ROW, GAP, LEFT, TOP, WIDTH = 26, 8, 110, 40, 1100  # pixels


@dataclass(frozen=True)
class Frame:
    """The part of a timeline that is drawn."""

    start: float
    end: float
    steps: int


def window(t: Timeline, steps: int = STEPS) -> Frame:
    """`steps` key steps from the middle; everything where there are fewer than that."""
    if len(t.marks) <= steps:
        return Frame(0.0, t.end, len(t.marks))
    first = (len(t.marks) - steps) // 2
    return Frame(t.marks[first], t.marks[first + steps], steps)


def inside(t: Timeline, lane: str, w: Frame) -> list[Span]:
    """The lane's spans that reach into the window."""
    return [s for s in t.spans if s.lane == lane and s.end > w.start and s.start < w.end]


def as_text(t: Timeline, columns: int = COLUMNS) -> list[str]:
    """One line for each lane; in each column what the lane did for most of it."""
    w = window(t)
    width, clock = max(map(len, t.lanes)), (w.end - w.start) / columns
    out = []
    for lane in t.lanes:
        spans, line = inside(t, lane, w), ""
        for n in range(columns):
            lo, hi = w.start + n * clock, w.start + (n + 1) * clock
            shares: dict[str, float] = {}
            for s in spans:
                shares[s.kind] = shares.get(s.kind, 0.0) + max(0.0, min(s.end, hi) - max(s.start, lo))
            most = max(shares, key=lambda k: shares[k], default="")
            line += LETTERS[most] if most and shares[most] > clock / 3 else " "
        out.append(f"{lane:{width}} |{line}|  {t.busy(lane, w.start):4.0%}")
    steps = [round((m - w.start) / clock) for m in t.marks if w.start <= m < w.end]
    ruler = "".join("^" if n in steps else " " for n in range(columns))
    out.append(f"{'':{width}}  {ruler.rstrip()}")
    return [x.rstrip() for x in out]


def legend(t: Timeline) -> list[str]:
    """What the letters mean, and the rhythm."""
    w = window(t)
    lines = [
        f"{w.steps} key steps, {w.end - w.start:,.0f} clocks: M product, c copy, # elements, . waits, ^ a step begins"
    ]
    if t.period:
        lines.append(f"a step takes {t.period:,.0f} clocks in this model, which orders events and forecasts no speed")
    return lines


def as_svg(t: Timeline, title: str) -> str:
    """The same window as a picture; each bar says what it is when it is pointed at."""
    w = window(t)
    scale = (WIDTH - LEFT) / (w.end - w.start)
    height = TOP + len(t.lanes) * (ROW + GAP) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 20}" height="{height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<text x="8" y="20" font-size="14">{escape(title)}</text>',
    ]
    for row, lane in enumerate(t.lanes):
        y = TOP + row * (ROW + GAP)
        parts.append(f'<text x="8" y="{y + 17}">{escape(lane)}</text>')
        for s in inside(t, lane, w):
            lo, hi = max(s.start, w.start), min(s.end, w.end)
            box = f'x="{LEFT + (lo - w.start) * scale:.1f}" y="{y}" width="{(hi - lo) * scale:.1f}" height="{ROW}"'
            said = f"{s.label}: {s.end - s.start:,.0f} clocks from {s.start:,.0f}"
            parts.append(f'<rect {box} fill="{COLOURS[s.kind]}"><title>{escape(said)}</title></rect>')
    bottom = TOP + len(t.lanes) * (ROW + GAP)
    for m in t.marks:
        if w.start <= m <= w.end:
            x = LEFT + (m - w.start) * scale
            parts.append(
                f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#888" stroke-dasharray="3 3"/>'
            )
    for n, (kind, colour) in enumerate(COLOURS.items()):
        x = LEFT + n * 120
        parts.append(f'<rect x="{x}" y="{bottom + 8}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{bottom + 20}">{kind}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
