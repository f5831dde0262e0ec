"""The `tilec` command.  Results go to stdout, everything else to stderr.

Exit codes: 0 done; 1 the spec, its schedule or a result is wrong; 2 the command line is wrong.

Nothing heavy is imported here: a command imports what it runs, so that `tilec check` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilec.cli_options import BACKEND, JSON, KERNEL, SET, SHAPE, SPEC, TARGET, destination, kinds, peers, record
from tilec.dsl.faults import Fault, Faults
from tilec.terminal import as_data, bar, faults_of, progress, report, show_json, show_table

if TYPE_CHECKING:
    from tilec.frontend import Spec
    from tilec.ir.attention import Attention


class Commands(click.Group):
    """Turns faults and unusable files into messages and exit code 1; prints faults as JSON where `--json` was given."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (Fault, Faults) as error:
            faults = faults_of(error)
            if ctx.meta.get("json"):
                show_json({"ok": False, "faults": [as_data(f) for f in faults]})
            else:
                report(faults)
            ctx.exit(1)
        except OSError as error:
            if error.filename is None:
                raise
            raise click.FileError(str(error.filename), error.strerror) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilec", prog_name="tilec")
def main() -> None:
    """Compiles .tile specs of attention variants into GPU kernels."""


def _kernels(spec: Spec, name: str | None) -> tuple[Attention, ...]:
    if name is None:
        return spec.kernels
    try:
        return (spec.kernel(name),)
    except KeyError:
        names = ", ".join(k.name for k in spec.kernels)
        raise click.UsageError(f"{spec.source.path} has no kernel `{name}`; it has {names}") from None


def _one(spec: Spec, name: str | None) -> Attention:
    found = _kernels(spec, name)
    if len(found) > 1:
        raise click.UsageError(f"choose one with --kernel: {', '.join(k.name for k in found)}")
    return found[0]


@main.command()
@SPEC
@click.option("--target", help="Also check that a backend of this target can honour the schedule.")
@BACKEND
@JSON
def check(path: Path, target: str | None, backend: str | None, as_json: bool) -> None:
    """Checks a spec: every mistake at once, each with its place."""
    from tilec.frontend import read_spec
    from tilec.lint import warnings_of
    from tilec.route import check_spec

    spec = read_spec(path)
    check_spec(spec, target, backend)
    warnings = [*spec.warnings, *(w for k in spec.kernels for w in warnings_of(k, spec.source))]
    if as_json:
        show_json({"ok": True, "kernels": [k.name for k in spec.kernels], "faults": [as_data(w) for w in warnings]})
        return
    if warnings:
        report(warnings)
    for kernel in spec.kernels:
        click.echo(f"{path}: {kernel.name}: ok")


@main.command()
@click.argument(
    "paths", metavar="SPEC…", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit 1 if something would change.")
def fmt(paths: tuple[Path, ...], only_check: bool) -> None:
    """Rewrites specs in the standard form."""
    from tilec.dsl.format import format_text

    stale = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        formatted = format_text(text, str(path))
        if formatted == text:
            continue
        stale += 1
        if only_check:
            click.echo(f"{path}: would be reformatted", err=True)
        else:
            path.write_text(formatted, encoding="utf-8")
            click.echo(f"{path}: reformatted", err=True)
    if only_check and stale:
        raise SystemExit(1)


@main.command("targets")
@click.argument("name", required=False)
@JSON
def list_targets(name: str | None, as_json: bool) -> None:
    """Lists the targets, or one target's numbers with their sources."""
    from tilec.targets import all_targets, target
    from tilec.targets.show import as_table, data_of, rows_of

    if name is None:
        if as_json:
            show_json([data_of(t) for t in all_targets()])
        else:
            show_table(as_table(all_targets()))
        return
    one = target(name)
    if as_json:
        show_json(data_of(one))
        return
    for field, value, source in rows_of(one):
        click.echo(f"{field:24} {value:>16}  {source}")


@main.command("compile")
@SPEC
@KERNEL
@TARGET
@BACKEND
@SET
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    callback=destination,
    help="Write a module into this folder.",
)
@click.option("--emit", callback=kinds, help="Print or, with -o, write: source, asm, binary (a list).")
@click.option("--dump-ir", is_flag=False, flag_value="", help="Print the program after each pass, or after =PASS.")
def compile_spec(
    path: Path,
    kernel: str | None,
    target: str | None,
    backend: str | None,
    constants: dict[str, int],
    output: Path | None,
    emit: tuple[str, ...],
    dump_ir: str | None,
) -> None:
    """Compiles a spec: to a Python module, or to what the backend printed."""
    from tilec.aot import compile_all, write_module
    from tilec.compile_spec import dump, emitted, print_files, write_files
    from tilec.frontend import bind, read_spec
    from tilec.route import check_spec

    spec = read_spec(path)
    with progress(f"compiling {path}"):
        name = target or _device_target()
        check_spec(spec, name, backend)
        for attn in _kernels(spec, kernel):
            if dump_ir is not None:
                click.echo(dump(spec, attn, name, constants, only=dump_ir or None, backend=backend))
            if dump_ir is not None and output is None and not emit:
                continue
            bound = bind(attn, constants, spec.source)
            artifacts = compile_all(spec, bound, name, backend)
            for line in artifacts[-1].passed_over:
                click.echo(f"{path}: {attn.name}: {line}", err=True)
            if output is not None and not emit:
                click.echo(str(write_module(bound, spec, artifacts, output)))
                continue
            files = emitted(artifacts[-1], emit or ("source",))
            if output is not None:
                write_files(files, output)
            elif emit:
                print_files(files)
            else:
                by = artifacts[-1].backend
                click.echo(f"{path}: {attn.name}: compiles for {name} with {by} ({', '.join(files)})")


@main.command("explain")
@SPEC
@KERNEL
@TARGET
@BACKEND
@SET
@SHAPE
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=destination,
    help="Write a native kernel's timeline here.",
)
@JSON
def explain_spec(
    path: Path,
    kernel: str | None,
    target: str | None,
    backend: str | None,
    constants: dict[str, int],
    shape: dict[str, int],
    svg: Path | None,
    as_json: bool,
) -> None:
    """Says which tiles are kept and why, what the budget is, who waits for whom and what bounds the speed."""
    from tilec.explain import explain_kernel, picture, to_data, to_text
    from tilec.frontend import read_spec

    spec = read_spec(path)
    if svg is not None:
        _one(spec, kernel)
    with progress("explaining"):
        name = target or _device_target()
        found = [explain_kernel(spec, attn, name, backend, constants, shape) for attn in _kernels(spec, kernel)]
    if svg is not None:
        svg.write_text(picture(found[0]), encoding="utf-8")
    if as_json:
        show_json([to_data(e) for e in found])
    else:
        click.echo("\n\n".join(to_text(e) for e in found))


@main.command("bench")
@SPEC
@KERNEL
@TARGET
@BACKEND
@SET
@SHAPE
@click.option(
    "--against", default="sdpa,cudnn,flex,fa3,fa4", show_default=True, callback=peers, help="Peers to measure."
)
@click.option("--rounds", default=6, show_default=True, help="Interleaved rounds of bursts; the median counts.")
@click.option("--sustained", default=0.3, show_default=True, help="Seconds of each kernel alone.")
@click.option("--graph/--no-graph", default=None, help="Replay CUDA graphs (default: where a call is short).")
@click.option("--watchdog", default=60.0, show_default=True, help="Seconds without progress that end a hung run.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=destination,
    help="Also write the JSON here.",
)
@JSON
def bench_spec(
    path: Path,
    kernel: str | None,
    target: str | None,
    backend: str | None,
    constants: dict[str, int],
    shape: dict[str, int],
    against: tuple[str, ...],
    rounds: int,
    sustained: float,
    graph: bool | None,
    watchdog: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measures a spec beside other implementations of the same attention."""
    from tilec.bench import Options, bench_kernel, table
    from tilec.frontend import read_spec
    from tilec.measure import Plan
    from tilec.route import check_spec

    spec = read_spec(path)
    attn = _one(spec, kernel)
    options = Options(Plan(rounds, sustained=sustained, graph=graph), watchdog)
    with progress("loading") as say:
        name = target or _device_target()
        check_spec(spec, name, backend)
        result = bench_kernel(spec, attn, name, backend, {**constants, **shape}, against, options, say)
    if output is not None:
        output.write_text(result.to_json() + "\n", encoding="utf-8")
    if as_json:
        click.echo(result.to_json())
    else:
        show_table(table(result))


@main.command("tune")
@SPEC
@KERNEL
@TARGET
@BACKEND
@SET
@SHAPE
@click.option("--compile-only", is_flag=True, help="List which candidates compile; needs no device.")
@click.option("--most", default=40, show_default=True, help="Candidates that --compile-only lists.")
@click.option("--limit", default=240.0, show_default=True, help="Seconds after which no race is begun.")
@click.option("--workers", default=0, help="Compiling processes (default: one for each core).")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=record,
    help="Keep the row in this record (TOML), beside its other rows.",
)
@JSON
def tune_spec(
    path: Path,
    kernel: str | None,
    target: str | None,
    backend: str | None,
    constants: dict[str, int],
    shape: dict[str, int],
    compile_only: bool,
    most: int,
    limit: float,
    workers: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Searches the schedules of a kernel for the fastest: of a native one on this machine, for a target of dies by models."""
    from tilec.frontend import read_spec
    from tilec.tune_command import Request, tune
    from tilec.tune_spec import Options

    spec = read_spec(path)
    attn, options = _one(spec, kernel), Options(seconds=limit, workers=workers)
    listed = most if compile_only else None
    name = target or _device_target()
    sizes = {**constants, **shape}
    tune(Request(spec, attn, name, sizes, options, backend, out, as_json), listed)


@main.command()
@SPEC
@KERNEL
@TARGET
@BACKEND
@SET
@SHAPE
@click.option("--seed", default=0, help="Of the random inputs.")
@click.option("--cycles", is_flag=True, help="Predict clocks of a key step from what the emulator ran.")
@JSON
def verify(
    path: Path,
    kernel: str | None,
    target: str | None,
    backend: str | None,
    constants: dict[str, int],
    shape: dict[str, int],
    seed: int,
    cycles: bool,
    as_json: bool,
) -> None:
    """Runs a spec on a target and compares with the float64 oracle; gfx942's machine code in an emulator where no such GPU is."""
    from tilec.frontend import read_spec
    from tilec.route import check_spec
    from tilec.verify_spec import as_table, verify_kernel

    spec = read_spec(path)
    with bar() as say:
        name = target or _device_target()
        check_spec(spec, name, backend)
        outcomes = [
            outcome
            for attn in _kernels(spec, kernel)
            for outcome in verify_kernel(
                spec,
                attn,
                name,
                backend=backend,
                constants=constants,
                shape=shape,
                seed=seed,
                cycles=cycles,
                progress=say,
            )
        ]
    if as_json:
        show_json([o.to_data() for o in outcomes])
    else:
        show_table(as_table(outcomes))
    if not all(o.ok for o in outcomes):
        raise SystemExit(1)


def _device_target() -> str:
    """The target of this machine's GPU, or cpu."""
    from tilec.backends.runtime.device import first, target_of

    return target_of(first())


if __name__ == "__main__":
    main()
