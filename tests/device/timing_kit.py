"""What tests that take times share."""

import os

import pytest

alone = pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="times need the machine to themselves")
