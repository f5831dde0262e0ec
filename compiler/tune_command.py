"""What `tilec tune` does: measures on this machine's device, predicts for a chip of dies, or lists what compiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from tilec.dsl.faults import TargetFault
from tilec.frontend import Spec
from tilec.ir.attention import Attention
from tilec.targets import target as target_of
from tilec.terminal import bar, show_json, show_table
from tilec.tune.caches import dies_of
from tilec.tune_spec import Options, candidate_table, keep, list_candidates, tune_kernel, tuned_table


def tune(
    spec: Spec,
    attn: Attention,
    target: str,
    sizes: Mapping[str, int],
    options: Options,
    *,
    most: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Prints what was found.  `most`: how many candidates are to be listed, None to search.  Raises as `tune_kernel`,
    `list_candidates` and `predict_kernel`, and TargetFault E0914 for a record of what is predicted."""
    if most is None and dies_of(target_of(target)) is not None:
        _predicted(spec, attn, target, sizes, options.seconds, out, as_json)
        return
    with bar() as say:
        if most is not None:
            listed = list_candidates(spec, attn, target, sizes, say, options, most)
        else:
            tuned = tune_kernel(spec, attn, target, sizes, say, lambda t: keep(out, t.row) if out else None, options)
    if most is not None and as_json:
        show_json([c.to_data() for c in listed])
    elif most is not None:
        show_table(candidate_table(listed))
    elif as_json:
        show_json(tuned.to_data())
    else:
        show_table(tuned_table(tuned))
        click.echo(tuned.to_data()["row"])


def _predicted(
    spec: Spec, attn: Attention, target: str, sizes: Mapping[str, int], seconds: float, out: Path | None, as_json: bool
) -> None:
    from tilec.predict import predict_kernel, table

    if out is not None:
        message = f"what is tuned for {target} is predicted, and a record holds what was measured"
        raise TargetFault("E0914", message, hint="without `--out` its lines are printed, for the spec")
    with bar() as say:
        found = predict_kernel(spec, attn, target, sizes, say, seconds)
    if as_json:
        show_json(found.to_data())
    else:
        show_table(table(found))
        click.echo(found.to_data()["schedule"])
