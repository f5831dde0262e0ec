"""Puts this folder on the path, so that every test can import `strategies`; adds `--update-golden` and the marker `watchdog`.

`watchdog(seconds)`: how long the call of a test may take, fixtures not counted.  After that the process says which test it is in,
and where, and ends: a kernel with a wrong barrier hangs for ever, in a driver call that no signal interrupts.
"""

import faulthandler
import os
from threading import Timer

import pytest

STDERR = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing with them")


def pytest_configure(config):
    config.stash[STDERR] = os.dup(2)  # of the process; later on, file descriptor 2 is what pytest captures
    config.addinivalue_line(
        "markers", "alone: takes times, which need the machine to themselves: left out beside other workers"
    )
    config.addinivalue_line("markers", "watchdog(seconds): the process ends if the call of the test takes longer")


def pytest_unconfigure(config):
    os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    marker = item.get_closest_marker("watchdog")
    if marker is None:
        return (yield)
    (seconds,) = marker.args
    to = item.config.stash[STDERR]
    name = Timer(seconds, os.write, (to, f"\n{item.nodeid}: no end after {seconds} s\n".encode()))
    name.daemon = True
    name.start()
    faulthandler.dump_traceback_later(seconds + 1, exit=True, file=to)  # in a thread of C: Python may be held up
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        name.cancel()
