"""--rewrite puts what the code says now into the scenario files; read the diff before you commit it."""

import signal

import pytest


def pytest_configure() -> None:
    """A background shell ignores SIGINT, and every program that a test starts would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the actual output into the scenario files")
