"""Fixtures for the tests of programs that use KeelMQ: a broker that is ready, there when KeelMQ is installed.

    def test_orders(keelmq_broker):
        with BlockingProducer(keelmq_broker.namesrv_addr) as producer:
            producer.send(Message("orders", b"1"))

Every pytest run of an environment with KeelMQ imports this module, so it imports nothing before it is used.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from keelmq.testing import TestBroker


@pytest.fixture
def keelmq_settings() -> Mapping[str, object]:
    """RocketMQ's keys for keelmq_broker: override it in a module, a class or conftest.py."""
    return {}


@pytest.fixture(scope="session")
def keelmq_session_settings() -> Mapping[str, object]:
    """The same for keelmq_session_broker."""
    return {}


@pytest.fixture
def keelmq_broker(tmp_path: Path, keelmq_settings: Mapping[str, object]) -> Iterator["TestBroker"]:
    """A name server and a broker of this test's own."""
    from keelmq.testing import TestBroker

    with TestBroker(tmp_path / "keelmq", keelmq_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def keelmq_session_broker(
    tmp_path_factory: pytest.TempPathFactory, keelmq_session_settings: Mapping[str, object]
) -> Iterator["TestBroker"]:
    """One for all tests of the session: let each test use topics and groups of its own."""
    from keelmq.testing import TestBroker

    with TestBroker(tmp_path_factory.mktemp("keelmq"), keelmq_session_settings) as broker:
        yield broker
