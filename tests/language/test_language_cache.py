"""The parser's cache: used when sound, never needed, safe for many processes."""

import os
import resource
import subprocess
import sys

import pytest

from tilec.dsl import grammar

PARSE = "from tilec.dsl.grammar import parser; parser().parse('kernel f { mask k <= q }', start='file')"


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    grammar.parser.cache_clear()
    yield tmp_path / "tilec"
    grammar.parser.cache_clear()


def works():
    grammar.parser.cache_clear()
    return grammar.parser().parse("kernel f { mask k <= q }", start="file").data == "file"


def test_the_second_use_builds_nothing(directory, monkeypatch):
    assert works()
    assert len(list(directory.iterdir())) == 1
    monkeypatch.setattr(grammar, "build", lambda: pytest.fail("built again"))
    assert works()


@pytest.mark.parametrize("damage", [b"", b"junk" * 100, None])
def test_a_damaged_file_is_replaced(directory, damage):
    assert works()
    (file,) = directory.iterdir()
    sound = file.read_bytes()
    file.write_bytes(sound[: len(sound) // 2] if damage is None else damage)
    assert works()
    assert grammar._load(file) is not None
    assert list(directory.iterdir()) == [file]


def test_a_directory_that_cannot_be_made(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert works()


def test_no_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(grammar.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert works()


def test_many_processes_at_once(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", PARSE], env=env) for _ in range(6)]
    assert [p.wait() for p in running] == [0] * 6
    (file,) = (tmp_path / "tilec").iterdir()
    assert grammar._load(file) is not None


def test_reading_a_spec_is_quick_and_imports_nothing_heavy(tmp_path):
    code = (
        "import sys; from tilec.frontend import read_text\n"
        "try: read_text('kernel f { mask k }')\n"
        "except Exception: pass\n"
        "assert not {'torch', 'numpy', 'triton', 'rich'} & sys.modules.keys()"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    spent = []  # processor time: what the machine does besides does not count
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.5
