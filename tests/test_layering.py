"""Who may import whom.  Read from the source with `ast`, so that a lazy import inside a function counts as well."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"compiler": "tilec", "dsl": "tilec.dsl", "backends": "tilec.backends", "targets": "tilec.targets"}
GPU_PACKAGES = ("torch.cuda", "torch.hip", "cuda", "hip", "pycuda")
HEAVY = ("torch", "triton", "numpy", "ml_dtypes", "jinja2", "rich")


def module_of(path):
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(p for p in rest if p != "__init__")])


@cache
def modules():
    return {module_of(p): p for f in FOLDERS for p in sorted((ROOT / f).rglob("*.py"))}


@cache
def tree(module):
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def within(name, *packages):
    return any(name == p or name.startswith(p + ".") for p in packages)


def resolve(module, node):
    """Absolute names that an import statement may bind, longest first."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    base = node.module or ""
    if node.level:
        package = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
        parts = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parts, base] if base else parts)
    return [f"{base}.{a.name}" if f"{base}.{a.name}" in modules() else base for a in node.names]


def imports(module, *, top_only=False):
    """Names imported by a module.  `top_only`: those that run when it is imported, `if TYPE_CHECKING` left out."""
    out = set()

    def visit(node):
        if isinstance(node, ast.Import | ast.ImportFrom):
            out.update(resolve(module, node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree(module))
    return out


def ours(module):
    return {n for n in imports(module) if within(n, "tilec")}


def closure(start):
    """Everything imported by importing `start`: packages on the way and, in turn, their top-level imports."""
    seen, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        parts = name.split(".")
        todo += [".".join(parts[:n]) for n in range(1, len(parts))]
        if name in modules():
            todo += imports(name, top_only=True)
    return seen


MAY = {
    "tilec.dsl": ("tilec.dsl",),
    "tilec.targets": ("tilec.targets", "tilec.dsl"),
    "tilec.ir": ("tilec.ir", "tilec.arith", "tilec.dsl"),
    "tilec.arith": ("tilec.ir", "tilec.arith", "tilec.dsl"),
    "tilec.oracle": ("tilec.oracle", "tilec.ir", "tilec.arith", "tilec.dsl", "tilec.targets"),
}


@pytest.mark.parametrize("layer", MAY)
def test_a_layer_imports_only_the_layers_below(layer):
    wrong = {(m, n) for m in modules() if within(m, layer) for n in ours(m) if not within(n, *MAY[layer])}
    assert not wrong


@pytest.mark.parametrize("layer", ["tilec.passes", "tilec.tune"])
def test_passes_know_no_backend(layer):
    assert not {(m, n) for m in modules() if within(m, layer) for n in ours(m) if within(n, "tilec.backends")}


def test_backends_never_import_each_other():
    common = ("tilec.backends.runtime", "tilec.backends.base", "tilec.backends.names", "tilec.backends.cpp")

    def owner(name):
        return ".".join(name.split(".")[:3])

    wrong = {
        (m, n)
        for m in modules()
        if within(m, "tilec.backends")
        for n in ours(m)
        if within(n, "tilec.backends") and n != "tilec.backends" and owner(n) != owner(m) and not within(n, *common)
    }
    assert not wrong


COMPILERS = {("tilec.backends.cuda.build", "cuda.bindings"), ("tilec.backends.cuda.build", "cuda.bindings.nvrtc")}


def test_only_runtime_and_launchers_touch_a_gpu():
    def allowed(path):
        parts = path.relative_to(ROOT).parts
        return parts[:2] == ("backends", "runtime") or (parts[0] == "backends" and parts[-1] == "launch.py")

    wrong = set()
    for module, path in modules().items():
        if allowed(path):
            continue
        wrong |= {(module, n) for n in imports(module) if within(n, *GPU_PACKAGES)}
        wrong |= {
            (module, ast.unparse(node))
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.cuda", "torch.hip")
        }
    assert not wrong - COMPILERS  # NVRTC compiles where there is no device


def test_a_generated_module_needs_neither_parser_nor_passes():
    heavy = ("tilec.frontend", "tilec.passes", "tilec.pipeline", "tilec.dsl.parse", "tilec.dsl.check", "tilec.arith")
    assert not {n for n in closure("tilec.backends.runtime") if within(n, *heavy, "lark")}


LIGHT = ["tilec", "tilec.cli", "tilec.frontend", "tilec.schedule", "tilec.legality", "tilec.targets.load"]
LIGHT += [f"tilec.ir.{m}" for m in ("expr", "build", "attention", "nodes", "print", "parse", "verify")]


@pytest.mark.parametrize("start", [*LIGHT, "tilec.dsl", "tilec.arith"])
def test_a_light_module_imports_nothing_heavy(start):
    members = [m for m in modules() if within(m, start)] if start in ("tilec.dsl", "tilec.arith") else [start]
    assert not {(m, n) for m in members for n in closure(m) if within(n, *HEAVY)}


def test_every_package_is_listed_for_the_wheel():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    found = {m for m, p in modules().items() if p.name == "__init__.py"}
    assert set(listed) == found
