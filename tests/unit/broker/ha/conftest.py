"""Fixtures of the tests of replication."""

from collections.abc import Iterator

import pytest

from broker.ha.catch_up import SendfileBatch
from broker.ha.core import master_link


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in production, with all sizes divided by 64."""
    for name in ("FAR_BYTES", "NEAR_BYTES", "SENDFILE_BYTES", "SENDFILE_BYTES_MIN"):
        monkeypatch.setattr(master_link, name, getattr(master_link, name) // 64)


@pytest.fixture
def sent(small_runs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SendfileBatch]]:
    """The runs that threads were given; each leaves no descriptor behind."""
    runs: list[SendfileBatch] = []
    original = SendfileBatch.send

    def send(run: SendfileBatch) -> None:
        runs.append(run)
        original(run)

    monkeypatch.setattr(SendfileBatch, "send", send)
    yield runs
    assert all(run.is_closed for run in runs)
