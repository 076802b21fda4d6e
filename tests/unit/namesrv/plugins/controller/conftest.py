"""Fixtures of the controller plugin's tests."""

from pathlib import Path

import pytest

from tests.support.controller_fakes import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
