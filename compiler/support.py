"""What works where, as data: the README's tables are printed from it, and tests exercise every cell that says yes.

`python -m tilec.support README.md` rewrites the tables between the markers of a file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tilec.dsl.faults import Fault, Faults
from tilec.frontend import Spec, read_text
from tilec.legality import check_schedule, target_faults
from tilec.pipeline import Routed, routed
from tilec.route import candidates
from tilec.targets import Target, all_targets

ALL = frozenset({"aligned", "unit", "round"})  # what well-aligned tensors have

_SPEC = """\
kernel attend {{
  index  b : B, h : 4, q : M{rows}, k : N{keys}, d : 64{more}

  query  Q[b, q, h, d] : {dtype}{qs}
  {pair}
  key    K[b, k, {head}, d] : {dtype}{ks}
  {pair_key}
  value  {value}{vs}
  output O[b, q, h, d] : {out}
  {tensors}

  scale  1 / 8
  {lines}
  mask   {mask}
}}
"""
_DEFAULTS = {
    **dict.fromkeys(("rows", "keys", "more", "qs", "ks", "vs", "pair", "pair_key", "tensors", "lines"), ""),
    "dtype": "bf16",
    "out": "bf16",
    "head": "h",
    "mask": "true",
    "value": "V[b, k, h, d] : bf16",
}


def _spec(**parts: str) -> str:
    if "dtype" in parts:
        parts.setdefault("out", parts["dtype"])
        parts.setdefault("value", f"V[b, k, h, d] : {parts['dtype']}")
    return _SPEC.format(**{**_DEFAULTS, **parts})


@dataclass(frozen=True)
class Feature:
    """`spec`: the smallest text that uses it.  `lacking`: reason by target name where no check of ours refuses it, and yet
    it does not work."""

    name: str
    spec: str
    lacking: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, target: Target) -> str | None:
        """Why it does not work on a target, or None."""
        found = self._routed(target)
        return found if isinstance(found, str) else None

    def why_not_native(self, target: Target) -> str | None:
        """Why it works through Triton alone where the target has a native backend, or None."""
        found = self._routed(target)
        return None if isinstance(found, str) or not found.refused else _reason(found.refused[0].faults)

    def state(self, target: Target) -> str:
        """`yes` with a native backend, `Triton` with the portable one alone, `no`."""
        found = self._routed(target)
        return "no" if isinstance(found, str) else "yes" if found.backend.native else "Triton"

    def _routed(self, target: Target) -> Routed | str:
        """Who takes it for well-aligned tensors, or why nobody does."""
        if target.name in self.lacking:
            return self.lacking[target.name]
        try:
            return _routed(self.spec, target.name)
        except Fault as found:
            return _reason((found,))
        except Faults as found:
            return _reason(found.faults)


def _reason(faults: Sequence[Fault]) -> str:
    return faults[0].note or faults[0].message


@cache
def _routed(spec: str, target: str) -> Routed:
    return routed(read_text(spec).kernels[0], target, features=ALL)


_GPUS = ("sm80", "sm89", "sm90", "sm100", "gfx942", "gfx950")
_NO_BACKWARD = dict.fromkeys(_GPUS, "they are computed on cpu tensors only")

FEATURES = (
    Feature("bf16", _spec()),
    Feature("f16", _spec(dtype="f16")),
    Feature("f32, IEEE products", _spec(dtype="f32")),
    Feature(
        "e4m3 with descales",
        _spec(
            dtype="e4m3",
            out="bf16",
            value="V[b, k, h, d] : e4m3",
            qs="  scaled qs[b, h]",
            ks="  scaled ks[b, h]",
            vs="  scaled vs[b, h]",
        ),
    ),
    Feature("causal, window and other masks", _spec(mask="k <= q + N - M and k > q + N - M - 100 or k < 4")),
    Feature("document masks", _spec(tensors="param doc[b, k] : i32 nondecreasing", mask="doc[b, q] == doc[b, k]")),
    Feature("dilated masks in residue order", _spec(mask="(q - k) % 4 == 0 and k <= q")),
    Feature("grouped heads", _spec(head="h // 2", value="V[b, k, h // 2, d] : bf16")),
    Feature("softcap, ALiBi and other score lines", _spec(
        tensors="param slope[h] : f32", lines="score s = 30 * tanh(s / 30)\n  score s = s - slope[h] * (q - k)", mask="k <= q"
    )),
    Feature("bias tensors", _spec(tensors="bias T[b, h, q, k] : f32", lines="score s = s + T[b, h, q, k]")),
    Feature("sinks", _spec(tensors="sink Z[h] : f32", mask="k <= q")),
    Feature("log-sum-exp output", _spec(tensors="lse L[b, h, q] : f32", mask="k <= q + N - M")),
    Feature("packed sequences", _spec(rows=" packed cu_q", keys=" packed cu_k", mask="k <= q + N - M")),
    Feature("padded sequences", _spec(keys=" lengths n")),
    Feature("paged keys and values", _spec(
        keys=" lengths n", ks="  paged pages[b, k // 16]", vs="  paged pages[b, k // 16]"
    )),
    Feature("two query and key pairs, value reusing a key", _spec(
        more=", r : 64", pair="query  Qr[b, q, h, r] : bf16", pair_key="key    R[b, k, r] : bf16", value="K"
    )),
    Feature("dropout", _spec(lines="dropout 0.1")),
    Feature("gradients", _spec(lines="grad Q, K, V"), _NO_BACKWARD),
)  # fmt: skip

# Schedule lines in the order of the language's reference; what honours them is `legality`'s to say.
LINES = (
    "tile q = 64, k = 64",
    "tune q in {64, 128}",
    "stages 2",
    "warps split_q(4)",
    "warps specialized(consumer = 2)",
    "warps ping_pong(consumer = 2)",
    "warps ping_pong(wave = 8)",
    "overlap on",
    "rescale eager",
    "rescale delayed",
    "rescale conditional 8",
    "skip proved",
    "skip table",
    "skip none",
    "order residue, q",
    "split k = auto",
    "map linear",
    "map persistent",
    "map longest_first",
    "map xcd by h",
    "cluster 2",
)
_PLAIN = _spec(mask="k <= q")
_DILATED = next(f.spec for f in FEATURES if f.name.startswith("dilated"))


def line_spec(line: str, target: Target) -> Spec:
    """A kernel that the line makes sense for, with the line for this target."""
    return read_text(f"{_DILATED if 'residue' in line else _PLAIN}\nschedule attend on {target.name} {{ {line} }}")


def line_backends(line: str, target: Target) -> list[str]:
    """Backends of the target that honour the line."""
    spec = line_spec(line, target)
    attn, out = spec.kernels[0], []
    for b in candidates(target):
        with suppress(Faults):
            check_schedule(attn, spec.schedule(attn.name, target.name), target, b)
            out.append(b.name)
    return out


def line_state(line: str, target: Target) -> str:
    """`yes` if every backend of the target honours the line, else the name of the one that does; `native` if the hardware could
    but only a native backend would decide it, and this version has none that does; else `no`."""
    honour = line_backends(line, target)
    if honour:
        return "yes" if len(honour) == len(candidates(target)) else honour[0].replace("triton", "Triton")
    spec = line_spec(line, target)
    lacking = target_faults(spec.kernels[0], spec.schedule("attend", target.name), target)
    return "no" if lacking or target.vendor == "cpu" else "native"


def _table(head: str, rows: list[list[str]]) -> str:
    cells = [[head, *(t.name for t in all_targets())], *rows]
    widths = [max(len(r[i]) for r in cells) for i in range(len(cells[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) + " |" for r in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def feature_table() -> str:
    """Features by target, and the reason of each `no`, and of each `Triton` where there is a native backend."""
    rows = [[f.name, *(f.state(t) for t in all_targets())] for f in FEATURES]
    reasons: dict[str, list[str]] = {}
    for f in FEATURES:
        for t in all_targets():
            if (why := f.why_not(t)) is not None:
                reasons.setdefault(f"{f.name}: {why}", []).append(t.name)
            if (why := f.why_not_native(t)) is not None:
                reasons.setdefault(f"{f.name}, Triton alone: {why}", []).append(t.name)
    notes = [f"- {why} ({', '.join(names)})" for why, names in reasons.items()]
    return "\n".join([_table("feature", rows), "", *notes])


def line_table() -> str:
    """Schedule lines by target."""
    return _table("line", [[f"`{line}`", *(line_state(line, t) for t in all_targets())] for line in LINES])


def rewritten(text: str) -> str:
    """`text` with what stands between each pair of markers replaced by the table of that name."""
    for name, table in (("features", feature_table()), ("lines", line_table())):
        start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        if not after:
            raise ValueError(f"no {start} … {end}")
        text = f"{before}{start}\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
