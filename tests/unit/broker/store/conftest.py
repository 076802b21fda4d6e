"""Fixtures of the store's tests."""

import pytest


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scrub reads a small log in several slices and pieces."""
    monkeypatch.setattr("broker.store.scrub.SLICE_BYTES", 1_000)
    monkeypatch.setattr("broker.store.log_check.PIECE_BYTES", 500)
