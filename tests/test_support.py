"""The README's tables are the data, and every cell that says yes is exercised."""

import re
from pathlib import Path

import pytest

from tilec.backends import base
from tilec.backends.runtime import settings
from tilec.backends.runtime.cache import Store
from tilec.cli import main
from tilec.dsl.faults import Faults, TargetFault
from tilec.frontend import read_text
from tilec.jit import Compiler
from tilec.pipeline import routed
from tilec.route import candidates
from tilec.support import ALL, FEATURES, LINES, line_backends, line_spec, line_state, rewritten
from tilec.targets import NAMES, target
from tilec.verify_spec import verify_kernel

README = Path(__file__).parents[1] / "README.md"
CASES = [(f, t) for f in FEATURES for t in NAMES]


def test_the_readme_tables_are_up_to_date():
    text = README.read_text(encoding="utf-8")
    assert rewritten(text) == text, "run `python -m tilec.support README.md`"


def test_the_readme_specs_are_valid():
    text = README.read_text(encoding="utf-8")
    blocks = [b for b in text.split("\n\n") if b.lstrip().startswith(("kernel", "# causal.tile"))]
    indented = "\n\n".join(part for part in text.split("\n## ") if "kernel window" in part)
    start = indented.index("    kernel window")
    end = indented.index("\n\nPositions")
    assert read_text(indented[start:end]).kernels[0].name == "window"
    assert read_text(blocks[0]).kernels[0].name == "causal"


def test_the_readme_lists_every_environment_variable():
    said = set(re.findall(r"^    (TILEC_\w+)", README.read_text(encoding="utf-8"), re.M))
    read = set(re.findall(r"environ\.get\(\"(TILEC_\w+)", Path(settings.__file__).read_text(encoding="utf-8")))
    assert said == read


def test_the_readme_shows_every_command():
    text = README.read_text(encoding="utf-8")
    shown = set(re.findall(r"^    tilec (\w+)", text, re.M))
    assert shown == set(main.commands)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)
def test_a_feature_of_the_cpu_computes_what_the_oracle_computes(feature, tmp_path):
    path = tmp_path / "spec.tile"
    path.write_text(feature.spec, encoding="utf-8")
    spec = read_text(feature.spec, str(path))
    outcomes = list(verify_kernel(spec, spec.kernels[0], "cpu", shape={"B": 2, "M": 30, "N": 70}))
    assert outcomes
    for o in outcomes:
        assert o.ok, [str(r) for r in o.reports]
        assert not o.note
    names = {r.name for r in outcomes[0].reports}
    assert ({"dQ", "dK", "dV"} <= names) == (feature.name == "gradients")


@pytest.mark.parametrize(("feature", "name"), [c for c in CASES if c[1] != "cpu"], ids=lambda x: getattr(x, "name", x))
def test_a_feature_compiles_for_a_target_exactly_where_the_table_says(feature, name, tmp_path):
    spec = read_text(feature.spec)
    compiler = Compiler(spec, spec.kernels[0], None, Store(tmp_path))
    state = feature.state(target(name))
    if state != "no":
        artifact = compiler.artifact(name, base.Variant((), ALL))
        own = next((b.name for b in target(name).backends if b.prints), "")
        assert artifact.backend == {"yes": own, "Triton": "triton"}[state]
        assert bool(artifact.passed_over) == (feature.why_not_native(target(name)) is not None)
        assert state != "yes" or any(file.endswith((".cubin", ".hsaco")) for file in artifact.binaries)
        for file, text in artifact.sources.items():
            if file.endswith(".py"):
                compile(text, file, "exec")
    elif name not in feature.lacking:
        with pytest.raises((Faults, TargetFault)) as refused:
            compiler.artifact(name, base.Variant((), ALL))
        found = refused.value.faults if isinstance(refused.value, Faults) else [refused.value]
        assert {f.code for f in found} <= {"E0904", "E0914"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("line", LINES)
def test_a_line_lowers_exactly_where_the_table_says(line, name):
    machine = target(name)
    spec = line_spec(line, machine)
    attn, schedule = spec.kernels[0], spec.schedule("attend", name)
    honour = line_backends(line, machine)
    for b in candidates(machine):
        if b.name in honour:
            routed(attn, name, schedule, b.name, features=ALL)
        else:
            with pytest.raises(Faults):
                routed(attn, name, schedule, b.name, features=ALL)
    state = line_state(line, machine)
    assert (state in ("no", "native")) == (not honour)
    if honour:
        assert routed(attn, name, schedule, features=ALL).backend.name == honour[0]
