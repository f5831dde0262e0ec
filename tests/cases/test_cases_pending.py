"""Every report of `cases.toml` is tested or waits for a named feature; the README shows what waits."""

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))["case"]
PENDING = {c["id"]: c["why"] for c in CASES if c["state"] == "pending"}
LATER = {c["id"]: c["later"] for c in CASES if "later" in c}
README = (HERE / "README.md").read_text(encoding="utf-8")


def table():
    """The README's table of what waits."""
    rows = [
        f"| [{c['id']}]({c['url']}) | {c['class']} | {c.get('why') or c['later']} |"
        for c in CASES
        if "why" in c or "later" in c
    ]
    return "\n".join(["| case | about | waits for |", "|---|---|---|", *rows])


def cited(path):
    """Docstrings of the test functions of a file."""
    functions = [x for x in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(x, ast.FunctionDef)]
    return [ast.get_docstring(f) or "" for f in functions if f.name.startswith("test_")]


def test_the_table_has_every_case_once():
    assert len(CASES) == 39
    for field in ("id", "url"):
        assert max(Counter(c[field] for c in CASES).values()) == 1
    assert {c["state"] for c in CASES} == {"tested", "pending"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_a_case_is_tested_or_waits_for_a_reason(case):
    if case["state"] == "tested":
        path = HERE / case["file"]
        assert path.is_file()
        docs = [d for d in cited(path) if case["url"] in d]
        assert docs, f"no test of {case['file']} names {case['url']}"
    else:
        assert len(case["why"]) > 20 and "file" not in case
        assert not any(case["url"] in d for p in HERE.glob("test_*.py") for d in cited(p))


def test_every_test_here_names_a_report_of_the_table():
    urls = [c["url"] for c in CASES]
    for path in sorted(HERE.glob("test_cases_*.py")):
        if path != Path(__file__):
            for doc in cited(path):
                assert any(u in doc for u in urls), f"{path.name}: {doc!r}"


def test_the_readme_shows_what_waits():
    assert PENDING and LATER and table() in README
