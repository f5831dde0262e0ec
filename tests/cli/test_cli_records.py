"""What the variables name is wrong: each command says so in a fault with the variable, the file and the name that is wrong."""

import pytest
from click.testing import CliRunner
from feature_specs import kernel

from tilec.cli import main

GOOD = 'width = 64\nwaves = 8\nrows = 128\nkeys = 64\nkeys_ahead = 0\nvalues_ahead = 16\nsource = "a model"\n'
POINT = 'width = 64\nwarpgroups = 2\nkeys = 112\nqueries = "shared"\nturns = true\nwait = 0.25\nstages = 3\nsource = "a clock"\n'
RECORDS = {
    "missing": (None, "No such file"),
    "broken": ("[[waves", "Expected"),
    "of another kind": ("[[entry]]\nq = 128\n", "`entry` is no table of a record"),
    "an unknown key": (f"[[waves]]\n{GOOD}chips = 2\n", "[[waves]] 1: chips is no field"),
    "rows that waves do not share": (f"[[waves]]\n{GOOD.replace('128', '100')}", "[[waves]] 1: rows is 100"),
    "a wait beyond the end": (f"[[point]]\n{POINT.replace('0.25', '7.0')}", "[[point]] 1: wait is 7"),
    "keys of no product": (f"[[point]]\n{POINT.replace('112', '120')}", "[[point]] 1: keys is 120"),
    "too many warpgroups": (f"[[point]]\n{POINT.replace('= 2', '= 5')}", "[[point]] 1: warpgroups is 5"),
    "another type": (f"[[waves]]\n{GOOD.replace('64', '64.5', 1)}", "[[waves]] 1: width is 64.5"),
}
COMMANDS = (
    ("compile", "--target", "gfx942", "--emit", "source"),
    ("explain", "--target", "gfx942"),
    ("tune", "--target", "gfx942", "--shape", "B=1,M=256,N=256"),
    ("compile", "--target", "sm90", "--emit", "source"),
)


@pytest.fixture
def said(tmp_path):
    def run(command, *words):
        path = tmp_path / "f.tile"
        path.write_text(kernel(d="d : 64", scale="scale 1 / 8", schedule=""))
        result = CliRunner().invoke(main, [command, str(path), *words])
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.output
        return result.stderr

    return run


@pytest.mark.parametrize("words", COMMANDS, ids=lambda w: f"{w[0]} {w[2]}")
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_none(said, name, words, tmp_path, monkeypatch):
    text, why = RECORDS[name]
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("TILEC_RECORD", str(path))
    found = said(*words)
    assert "error[E1060]: TILEC_RECORD" in found and str(path) in found and why in found


@pytest.mark.parametrize("words", COMMANDS, ids=lambda w: f"{w[0]} {w[2]}")
def test_a_rounding_that_is_none(said, words, monkeypatch):
    monkeypatch.setenv("TILEC_ROUNDING", "up")
    found = said(*words)
    assert "error[E1060]: TILEC_ROUNDING is `up`" in found and "nearest, away, zero" in found
