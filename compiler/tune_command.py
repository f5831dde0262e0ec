"""What `tilec tune` does: measures on this machine's device, predicts for a chip of dies, or lists what compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec
from tilec.ir.attention import Attention
from tilec.legality import choose_backend
from tilec.targets import target as target_of
from tilec.terminal import bar, show_json, show_table
from tilec.tune import cdna, hopper, tables
from tilec.tune.caches import dies_of
from tilec.tune_spec import Options, candidate_table, keep, list_candidates, replace_text, tune_kernel, tuned_table


@dataclass(frozen=True)
class Request:
    """What is tuned, and where the result goes.  `sizes`: every symbol of the call; `out`: a record, if one is kept."""

    spec: Spec
    attn: Attention
    target: str
    sizes: Mapping[str, int]
    options: Options
    backend: str | None
    out: Path | None
    as_json: bool


def tune(r: Request, most: int | None = None) -> None:
    """Prints what was found.  `most`: how many candidates are to be listed, None to search.  Raises as `tune_kernel`,
    `list_candidates` and `predict_kernel`, and TargetFault E0914 for a record of what is predicted beside what was measured, and
    for kernels of a backend that are not searched."""
    machine, out = target_of(r.target), r.out
    predicted = most is None and dies_of(machine) is not None
    if out is not None:
        _one_kind(out, predicted=predicted)
    if predicted:
        _predicted(r)
        return
    if r.backend is not None and choose_backend(machine, r.backend).name != "cuda":
        message = f"on {r.target} shapes of `cuda` are searched, not of `{r.backend}`"
        raise TargetFault("E0914", message, hint="`tile`, `warps` and `stages` lines say each")
    call = r.spec, r.attn, r.target, r.sizes
    if most is not None:
        with bar() as say:
            listed = list_candidates(*call, say, r.options, most)
        if r.as_json:
            show_json([c.to_data() for c in listed])
        else:
            show_table(candidate_table(listed))
        return
    with bar() as say:
        tuned = tune_kernel(*call, say, lambda t: keep(out, t.row) if out else None, r.options)
    if r.as_json:
        show_json(tuned.to_data())
    else:
        show_table(tuned_table(tuned))
        click.echo(tuned.to_data()["row"])


def _one_kind(out: Path, *, predicted: bool) -> None:
    """A record holds what was measured or what was predicted."""
    text = out.read_text(encoding="utf-8") if out.exists() else ""
    other = hopper.read_rows(text, str(out)) if predicted else cdna.read_rows(text, str(out))
    if other:
        kinds = ("predicted", "measured") if predicted else ("measured", "predicted")
        message = f"what this would keep is {kinds[0]}, and `{out}` holds what was {kinds[1]}"
        raise TargetFault("E0914", message, hint="another file")


def _predicted(r: Request) -> None:
    from tilec.predict import predict_kernel, table

    options, out = r.options, r.out
    with bar() as say:
        found = predict_kernel(
            r.spec,
            r.attn,
            r.target,
            r.sizes,
            say,
            options.seconds,
            backend=r.backend,
            workers=options.processes,
        )
    if r.as_json:
        show_json(found.to_data())
    else:
        for refusal in found.passed_over:
            click.echo(str(refusal))
        show_table(table(found))
        click.echo(found.to_data()["schedule"])
        if found.unsaid:
            click.echo(f"# no line says {', '.join(found.unsaid)}: the row that `--out` keeps does")
    if out is not None and found.row is None:
        message = f"no record has shapes of {found.backend}: the lines say all"
        raise TargetFault("E0914", message, hint="without `--out` they are printed, for the spec")
    if out is not None and found.row is not None:
        keep_predicted(out, found.row)


def keep_predicted(path: Path, row: cdna.Row) -> None:
    """Writes `row` into the record at `path`, beside its other rows.  ValueError if the file is no record."""
    rows = cdna.read_rows(path.read_text(encoding="utf-8"), str(path)) if path.exists() else ()
    replace_text(path, cdna.write_rows(tables.put(rows, row)))
