"""Compiled kernels on disk, by content: safe for many processes, and never a reason for a call to fail.

    root/ab/abcdef…/      one entry per key: its files and `manifest.json` (name -> size and SHA-256)
    root/stage/…          entries being written
    root/locks/….lock     held while a process compiles that key

*Complete or absent.*  An entry is written in `stage` and appears by one rename of its directory; readers check every file
against the manifest, and take an entry that does not match as absent, to be replaced.
*No lost lock.*  Locks are the kernel's (`filelock` on flock or LockFileEx), which die with their process; where one cannot be had
within `wait` seconds the kernel is compiled twice instead, and one of two equal entries wins.
*No failure.*  When the directory cannot be used at all (read-only, full, no home) entries live in memory, with one warning.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from time import time

from filelock import FileLock, Timeout

MANIFEST = "manifest.json"
ABANDONED = 3600.0  # seconds after which a staged entry has no writer any more
Files = dict[str, bytes]


class Store:
    """A directory of entries.  `root` None: in memory only."""

    def __init__(self, root: Path | None, wait: float = 120.0) -> None:
        self.root = root
        self.wait = wait
        self._memory: dict[str, Files] = {}
        self._warned = root is None
        self._mutex = Lock()

    def get(self, key: str) -> Files | None:
        """The entry's files, or None if there is none that is complete and unchanged."""
        if key in self._memory:
            return dict(self._memory[key])
        if self.root is None:
            return None
        try:
            return _read(self._entry(self.root, key))
        except (OSError, ValueError):
            return None

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Makes the entry be these files, on disk or else in memory."""
        if self.root is not None:
            try:
                _write(self.root, self._entry(self.root, key), files)
                return
            except OSError as problem:
                self._degrade(problem)
        self._memory[key] = dict(files)

    def get_or_build(self, key: str, build: Callable[[], Mapping[str, bytes]]) -> Files:
        """The entry, built by whichever process comes first while the others wait for it (at most `wait` seconds)."""
        found = self.get(key)
        if found is not None:
            return found
        lock = self._acquire(key)
        try:
            found = self.get(key) if lock else None
            if found is None:
                found = dict(build())
                self.put(key, found)
            return found
        finally:
            if lock:
                lock.release()

    def _acquire(self, key: str) -> FileLock | None:
        if self.root is None:
            return None
        try:
            folder = self.root / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{key}.lock")
            lock.acquire(timeout=self.wait)
            return lock
        except (OSError, NotImplementedError, Timeout):  # no directory, no locks on this file system, or a slow holder
            return None

    def _entry(self, root: Path, key: str) -> Path:
        return root / key[:2] / key

    def _degrade(self, problem: OSError) -> None:
        with self._mutex:
            if self._warned:
                return
            self._warned = True
        warnings.warn(
            f"tilec cannot keep compiled kernels in {self.root} ({problem.strerror or problem}); they stay in memory "
            "and are compiled again by the next process. TILEC_CACHE names another directory.",
            RuntimeWarning,
            stacklevel=2,
        )


def _read(entry: Path) -> Files | None:
    """The files of an entry; None, OSError or ValueError where it is not complete and unchanged."""
    text = (entry / MANIFEST).read_text("utf-8")
    manifest = json.loads(text)
    if not isinstance(manifest, dict):
        return None
    files = {name: (entry / name).read_bytes() for name in manifest}
    return files if _manifest(files) == text else None


def _manifest(files: Mapping[str, bytes]) -> str:
    return json.dumps({name: [len(data), sha256(data).hexdigest()] for name, data in files.items()})


def _write(root: Path, entry: Path, files: Mapping[str, bytes]) -> None:
    (root / "stage").mkdir(parents=True, exist_ok=True)
    _sweep(root / "stage")
    stage = Path(mkdtemp(dir=root / "stage"))
    try:
        for name, data in (*files.items(), (MANIFEST, _manifest(files).encode())):
            with (stage / name).open("wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
        _publish(stage, entry)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _sweep(stages: Path) -> None:
    """Removes what writers that were killed left behind."""
    for left in stages.iterdir():
        with suppress(OSError):
            if time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)


def _publish(stage: Path, entry: Path) -> None:
    """Renames `stage` to `entry`.  A sound entry that came first stays; a broken one is moved out of the way."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(8):
        try:
            stage.rename(entry)
            return
        except OSError:
            if not entry.exists():
                raise
        with suppress(OSError, ValueError):
            if _read(entry) is not None:
                return
        with suppress(OSError):
            entry.rename(stage.with_name(stage.name + ".broken"))
            shutil.rmtree(stage.with_name(stage.name + ".broken"), ignore_errors=True)
    raise OSError(f"cannot replace the broken entry {entry}")
