"""What a reviewer should never have to say: short files, no leftovers, no absolute paths, no salesmanship."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("compiler", "dsl", "backends", "targets", "examples", "tests")
SUFFIXES = (".py", ".lark", ".j2", ".toml", ".tile", ".md")
FILES = sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.suffix in SUFFIXES and p != Path(__file__))
SOURCES = [p for p in FILES if p.suffix == ".py"]
LIMIT = 400

LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
ABSOLUTE = re.compile(r"[\"'\s](/(?:home|root|work|Users)/\w+)")
SALES = re.compile(
    r"\b(blazing(ly)?|seamless(ly)?|cutting[- ]edge|state[- ]of[- ]the[- ]art|effortless(ly)?|powerful)\b", re.I
)


def name(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LIMIT


@pytest.mark.parametrize("path", [*FILES, ROOT / "README.md", ROOT / "Makefile"], ids=name)
def test_no_leftover_words(path):
    text = path.read_text(encoding="utf-8")
    for rule in (LEFTOVER, ABSOLUTE, SALES):
        found = rule.search(text)
        assert found is None, f"{name(path)}:{text[: found.start()].count(chr(10)) + 1}: {found.group()}"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.stat().st_size], ids=name)
def test_a_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_no_two_tests_share_a_file_name():
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
