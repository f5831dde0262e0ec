"""The generated source as text: what a reviewer sees, and that there is nothing in it that is not used."""

import ast
from pathlib import Path

import emit_kit as kit
import feature_specs
import pytest

GOLDEN = Path(__file__).with_name("golden")
PINNED = "schedule causal_gqa on any { tile q = 128, k = 128  warps split_q(8)  stages 2 }"


@pytest.mark.parametrize(
    ("file", "target", "features"),
    [("causal_gqa_sm90_boxes.py.txt", "sm90", kit.FAST), ("causal_gqa_gfx942.py.txt", "gfx942", kit.GENERAL)],
)
def test_golden(file, target, features, request):
    """`pytest --update-golden` writes the files anew."""
    text = kit.source(kit.artifact(kit.CAUSAL_GQA + PINNED, target, features))
    path = GOLDEN / file
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def function(text):
    tree = ast.parse(text)
    return next(f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name.endswith("_forward"))


SOURCES = [
    pytest.param(f, target, features, id=f"{f.name} on {target}")
    for f in feature_specs.FEATURES
    for target, features in (("sm90", kit.FAST), ("gfx942", kit.GENERAL))
]


@pytest.mark.parametrize(("feature", "target", "features"), SOURCES)
def test_nothing_is_unused(feature, target, features):
    """Every parameter and every local is read, lines are short, branches depend on the call, loops are few."""
    text = kit.source(kit.artifact(feature.text, target, features, **feature.constants))
    f = function(text)
    names = [n for n in ast.walk(f) if isinstance(n, ast.Name)]
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    arguments = {a.arg for a in f.args.args}
    assert stored | arguments <= read
    assert not stored & {a.arg for a in f.args.args if a.arg.endswith(("_ptr", "_box"))}
    assert max(map(len, text.splitlines())) <= 120
    branches = [n.test for n in ast.walk(f) if isinstance(n, ast.If | ast.While)]
    assert not any(isinstance(t, ast.Constant) for t in branches)
    loops = [n for n in ast.walk(f) if isinstance(n, ast.For)]
    segments = [line for line in text.splitlines() if line.strip().startswith(("# left", "# full", "# right", "# all"))]
    assert len(loops) == len(segments) <= 3 * max(1, text.count("# full ("))
    for helper in ("floor_div", "floor_mod", "tanh", "uniform"):
        assert (f"def {helper}(" in text) == (text.count(f"{helper}(") > 1)


@pytest.mark.parametrize(("feature", "target", "features"), SOURCES)
def test_strides_multiply_wide_indices(feature, target, features):
    """Offsets are 64-bit: what a stride multiplies is cast to int64 first."""
    f = function(kit.source(kit.artifact(feature.text, target, features, **feature.constants)))
    strides = {a.arg for a in f.args.args if "_s" in a.arg and a.arg.rsplit("_s", 1)[1].rstrip("_").isdigit()}
    used = set()
    for n in ast.walk(f):
        if isinstance(n, ast.BinOp) and isinstance(n.right, ast.Name) and n.right.id in strides:
            assert isinstance(n.op, ast.Mult) and "tl.int64" in ast.unparse(n.left), ast.unparse(n)
            used.add(n.right.id)
    assert used == strides


def test_indices_that_python_or_triton_use_get_other_names():
    text = kit.source(kit.artifact(feature_specs.BY_NAME["more names of the program"].text, "sm90"))
    arguments = [a.arg for a in function(text).args.args]
    assert len(arguments) == len(set(arguments)) and not {"tl", "triton"} & set(arguments)
