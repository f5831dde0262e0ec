"""What the checks of native schedule lines share: where a line stands, how it is refused, and which tile sizes are legal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.dsl.faults import Fault, ScheduleFault
from tilec.dsl.spans import Span
from tilec.ir.attention import Attention
from tilec.schedule import Schedule


def at(schedule: Schedule, *names: str) -> Span | None:
    """Of the first of these lines that the schedule has."""
    return next((schedule.spans[n] for n in names if n in schedule.spans), None)


def refused(line: str, span: Span | None, note: str, hint: str = "remove the line", *, backend: str = "cuda") -> Fault:
    """E0811 for a line that a native backend does not decide."""
    return ScheduleFault("E0811", f"the {backend} backend cannot honour `{line}`", span, note=note, hint=hint)


def tile_faults(
    attn: Attention, s: Schedule, legal: Mapping[str, Sequence[int]], notes: Mapping[str, str]
) -> Iterator[Fault]:
    """E0812 for every pinned or listed size that is not among the legal ones of its index, with the nearest; `notes`: why."""
    pinned = [("tile", name, (size,)) for name, size in s.tile]
    for line, name, sizes in [*pinned, *(("choices", n, some) for n, some in s.choices)]:
        span = at(s, f"{line}.{name}", line)
        if name not in legal:
            hint = f"tiles are of {attn.q} and {attn.k}: every other index is one value or whole"
            yield ScheduleFault("E0812", f"`{name}` cannot be tiled", span, hint=hint)
            continue
        for size in sizes:
            if size not in legal[name]:
                near = min(legal[name], key=lambda n: (abs(n - size), n))
                hint = f"`{name} = {near}` is the nearest"
                yield ScheduleFault("E0812", f"a tile of {size} is not legal", span, note=notes[name], hint=hint)
