"""The store: many processes, killed writers, damage, and directories that cannot be used."""

import os
import signal
import time
import warnings
from multiprocessing import get_context
from pathlib import Path

import pytest

from tilec.backends.runtime import cache
from tilec.backends.runtime.cache import Store

FORK = get_context("fork")  # spawned interpreters would each import the test module again
FILES = {"a.txt": b"one", "b.bin": bytes(range(256)) * 64}
KEY = "ab" + "0" * 62


def test_what_was_put_comes_back(tmp_path):
    store = Store(tmp_path)
    assert store.get(KEY) is None
    store.put(KEY, FILES)
    assert store.get(KEY) == FILES == Store(tmp_path).get(KEY)


def test_without_a_directory_entries_live_in_memory():
    store = Store(None)
    assert store.get_or_build(KEY, lambda: FILES) == FILES
    assert store.get_or_build(KEY, lambda: pytest.fail("built twice")) == FILES


def _build_once(root, barrier, results):
    def build():
        with (root / "built").open("a") as f:
            f.write("x")
        time.sleep(0.05)
        return FILES

    barrier.wait()
    results.put(Store(root).get_or_build(KEY, build) == FILES)


def test_many_processes_build_one_entry_once(tmp_path):
    barrier, results = FORK.Barrier(32), FORK.Queue()
    workers = [FORK.Process(target=_build_once, args=(tmp_path, barrier, results)) for _ in range(32)]
    for w in workers:
        w.start()
    assert {results.get(timeout=60) for _ in workers} == {True}
    for w in workers:
        w.join()
    assert (tmp_path / "built").read_text() == "x"
    assert list((tmp_path / "stage").iterdir()) == []


def _put_many(root, barrier, results):
    barrier.wait()
    store = Store(root)
    for key in range(5):
        store.put(f"{key:064x}", FILES)
    results.put(all(store.get(f"{key:064x}") == FILES for key in range(5)))


def test_writers_without_a_lock_agree(tmp_path):
    barrier, results = FORK.Barrier(16), FORK.Queue()
    workers = [FORK.Process(target=_put_many, args=(tmp_path, barrier, results)) for _ in range(16)]
    for w in workers:
        w.start()
    assert {results.get(timeout=60) for _ in workers} == {True}
    for w in workers:
        w.join()


def _die_while_building(root, ready):
    def build():
        ready.set()
        time.sleep(60)
        return FILES

    Store(root).get_or_build(KEY, build)


def _die_while_writing(root, ready):
    def rename(self, target):
        ready.set()
        time.sleep(60)

    Path.rename = rename
    Store(root).get_or_build(KEY, lambda: FILES)


@pytest.mark.parametrize("victim", [_die_while_building, _die_while_writing])
def test_a_killed_process_blocks_nobody(tmp_path, victim):
    ready = FORK.Event()
    worker = FORK.Process(target=victim, args=(tmp_path, ready))
    worker.start()
    assert ready.wait(30)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    store = Store(tmp_path, wait=30)
    assert store.get(KEY) is None
    start = time.monotonic()
    assert store.get_or_build(KEY, lambda: FILES) == FILES
    assert time.monotonic() - start < 10 and Store(tmp_path).get(KEY) == FILES


def test_what_a_killed_writer_staged_is_removed_later(tmp_path, monkeypatch):
    left = tmp_path / "stage" / "left"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    os.utime(left, (0, 0))
    (tmp_path / "stage" / "young").mkdir()
    Store(tmp_path).put(KEY, FILES)
    assert [p.name for p in (tmp_path / "stage").iterdir()] == ["young"]


def test_a_slow_holder_is_not_waited_for_for_ever(tmp_path):
    holder = Store(tmp_path)._acquire(KEY)
    try:
        start = time.monotonic()
        assert Store(tmp_path, wait=0.1).get_or_build(KEY, lambda: FILES) == FILES
        assert time.monotonic() - start < 5
    finally:
        holder.release()


def truncate(entry):
    data = (entry / "b.bin").read_bytes()
    (entry / "b.bin").write_bytes(data[:-1])


def flip(entry):
    data = bytearray((entry / "b.bin").read_bytes())
    data[100] ^= 1
    (entry / "b.bin").write_bytes(data)


DAMAGE = {
    "truncated": truncate,
    "changed": flip,
    "a file gone": lambda e: (e / "a.txt").unlink(),
    "no manifest": lambda e: (e / "manifest.json").unlink(),
    "manifest cut short": lambda e: (e / "manifest.json").write_text('{"a.txt": [3'),
    "manifest of another shape": lambda e: (e / "manifest.json").write_text("[1, 2]"),
    "empty manifest file": lambda e: (e / "manifest.json").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_rebuilt(tmp_path, damage):
    store = Store(tmp_path)
    store.put(KEY, FILES)
    DAMAGE[damage](tmp_path / KEY[:2] / KEY)
    assert store.get(KEY) is None
    built = []
    assert store.get_or_build(KEY, lambda: built.append(1) or FILES) == FILES
    assert built == [1] and Store(tmp_path).get(KEY) == FILES


def full_disk(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("why", ["under a file", "no space", "read-only"])
def test_a_useless_directory_costs_one_warning(tmp_path, monkeypatch, why):
    root = tmp_path
    if why == "under a file":
        root = tmp_path / "file" / "cache"
        (tmp_path / "file").write_text("")
    elif why == "no space":
        monkeypatch.setattr(cache.os, "fsync", full_disk)
    else:
        monkeypatch.setattr(
            Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
    store = Store(root)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for key in (KEY, "cd" + KEY[2:]):
            assert store.get_or_build(key, lambda: FILES) == FILES
            assert store.get_or_build(key, lambda: pytest.fail("built twice")) == FILES
    assert len(seen) == 1 and str(root) in str(seen[0].message) and "TILEC_CACHE" in str(seen[0].message)
    assert not any(p.name == KEY for p in tmp_path.rglob("*"))


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        Store(tmp_path).get_or_build(KEY, lambda: 1 // 0)
    assert Store(tmp_path).get_or_build(KEY, lambda: FILES) == FILES
