"""A test that hangs ends its process, which says what it was; the marker counts the call alone."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HANGS = """
import time
import pytest

@pytest.fixture
def slow():
    time.sleep(0.3)

@pytest.mark.watchdog(0.2)
def test_a_slow_fixture_is_no_matter(slow):
    pass

@pytest.mark.watchdog(0.2)
@pytest.mark.parametrize("x", ["this one"])
def test_hangs(x):
    time.sleep(30)
"""


def test_what_hangs_is_named_and_ended(tmp_path):
    (tmp_path / "test_hangs.py").write_text(HANGS, encoding="utf-8")
    options = ["-v", "-p", "conftest", "-p", "no:cacheprovider", "test_hangs.py"]
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import pytest; pytest.main({options!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "slow_fixture_is_no_matter PASSED" in done.stdout
    assert "test_hangs[this one]: no end after 0.2 s" in done.stderr and "in test_hangs" in done.stderr
