"""Progress is shown where somebody watches and it takes long, and nowhere else."""

import io
import json
import time

from tilec import terminal
from tilec.dsl.faults import Faults, ScheduleFault, Source
from tilec.dsl.spans import Span


class Stream(io.StringIO):
    def __init__(self, tty):
        super().__init__()
        self.tty = tty

    def isatty(self):
        return self.tty


def shown(monkeypatch, *, tty, quiet, work):
    stream = Stream(tty)
    monkeypatch.setattr(terminal, "QUIET_SECONDS", quiet)
    monkeypatch.setattr("sys.stderr", stream)
    with terminal.progress("loading") as say:
        say("compiling causal")
        time.sleep(work)
    return stream.getvalue()


def test_long_work_is_announced_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert "compiling causal" in shown(monkeypatch, tty=True, quiet=0.05, work=0.6)


def test_short_work_says_nothing(monkeypatch):
    assert shown(monkeypatch, tty=True, quiet=5.0, work=0.0) == ""


def test_nobody_watches_a_pipe(monkeypatch):
    assert shown(monkeypatch, tty=False, quiet=0.0, work=0.1) == ""


def test_a_fault_as_data():
    fault = ScheduleFault("E0811", "no", Span(4, 8, 2, 3), note="why", hint="else", source=Source("a.tile", "x\n  y"))
    data = terminal.as_data(fault)
    assert json.loads(json.dumps(data)) == {
        "code": "E0811",
        "severity": "error",
        "message": "no",
        "path": "a.tile",
        "line": 2,
        "column": 3,
        "note": "why",
        "hint": "else",
    }
    assert terminal.faults_of(Faults([fault, fault])) == [fault, fault]
    assert terminal.faults_of(fault) == [fault]
