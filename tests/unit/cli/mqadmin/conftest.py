"""Fixtures of mqadmin's tests. A file with another World has a fixture of its own."""

from collections.abc import Iterator

import pytest

from tests.unit.cli.mqadmin.test_mqadmin_broker import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("broker")).running() as world:
        yield world
