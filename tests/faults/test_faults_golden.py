"""Every error code has a rejected spec here, `CODE_what.tile`, and the whole message, `CODE_what.txt`.

A first comment may say more than "read the spec":

    # set: D=128              binds symbols after reading
    # target: gfx942          checks dtypes and the schedule against a target …
    # backend: triton         … and this backend of it instead of the target's first
    # encoding: latin-1       the file is in this encoding when it is read

`pytest tests/faults --update-golden` rewrites the messages.
"""

import re
from pathlib import Path

import pytest

from tilec.dsl.codes import CODES
from tilec.dsl.faults import Faults
from tilec.frontend import bind, read_spec
from tilec.legality import check_schedule, check_target, choose_backend
from tilec.targets import target as load_target

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SPECS = sorted(HERE.glob("*.tile"))
# Codes of machines, calls and explanations: reading a spec does not show them, the tests of their layers do.
ELSEWHERE = ("E09", "E10", "W")


@pytest.fixture
def faults_of(tmp_path, monkeypatch):
    """What reading a spec, and doing what its first comment asks for, says."""
    monkeypatch.chdir(tmp_path)

    def read(path):
        text = path.read_text(encoding="utf-8")
        asked = dict(re.findall(r"^# (set|target|backend|encoding): (.*)$", text, re.M))
        Path(path.name).write_text(text, encoding=asked.pop("encoding", "utf-8"))
        with pytest.raises(Faults) as caught:
            run(path.name, **asked)
        return caught.value

    return read


def run(path, set="", target=None, backend=None):
    spec = read_spec(path)
    values = {n: int(v) for n, v in (pair.split("=") for pair in set.split())}
    for kernel in spec.kernels:
        bound = bind(kernel, values, spec.source)
        if target is not None:
            machine = load_target(target)
            check_target(bound, machine, spec.source)
            schedule = spec.schedule(kernel.name, target)
            check_schedule(bound, schedule, machine, choose_backend(machine, backend), spec.source)


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_the_message(path, request, faults_of):
    said = f"{faults_of(path)}\n"
    golden = path.with_suffix(".txt")
    if request.config.getoption("--update-golden"):
        golden.write_text(said, encoding="utf-8")
    assert said == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [p for p in SPECS if p.stem[0] == "E"], ids=lambda p: p.stem)
def test_one_mistake_gives_faults_of_its_code_alone(path, faults_of):
    assert {f.code for f in faults_of(path).faults} == {path.stem[:5]}


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_a_spec(code):
    if code.startswith(ELSEWHERE):
        assert any(code in p.read_text(encoding="utf-8") for p in HERE.parent.rglob("*.py")), "named by no test"
    else:
        assert list(HERE.glob(f"{code}_*.tile"))


def test_no_golden_message_is_left_over():
    assert {p.stem for p in HERE.glob("*.txt")} == {p.stem for p in SPECS}


def test_every_code_that_is_raised_is_in_the_table():
    raised = {}
    for folder in ("dsl", "compiler", "backends", "targets"):
        for path in (ROOT / folder).rglob("*.py"):
            for code in re.findall(r"[\"']([EW]\d{4})[\"']", path.read_text(encoding="utf-8")):
                raised.setdefault(code, path.relative_to(ROOT).as_posix())
    assert {c: p for c, p in raised.items() if c not in CODES} == {}
    assert [c for c in CODES if c not in raised] == []
