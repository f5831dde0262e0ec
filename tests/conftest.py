"""Puts this folder on the path, so that every test can import `strategies`; adds `--update-golden`."""


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing with them")
