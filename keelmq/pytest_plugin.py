"""Fixtures for the tests of programs that use KeelMQ: a broker that is ready, there when KeelMQ is installed.

    def test_orders(keelmq_broker):
        with BlockingProducer(keelmq_broker.namesrv_addr) as producer:
            producer.send(Message("orders", b"1"))

Every pytest run of an environment with KeelMQ imports this module, so it imports nothing before it is used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from keelmq.testing import TestBroker


@pytest.fixture
def keelmq_broker(tmp_path: Path) -> Iterator["TestBroker"]:
    """A name server and a broker of this test's own."""
    from keelmq.testing import TestBroker

    with TestBroker(tmp_path / "keelmq") as broker:
        yield broker


@pytest.fixture(scope="session")
def keelmq_session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator["TestBroker"]:
    """One for all tests of the session: let each test use topics and groups of its own."""
    from keelmq.testing import TestBroker

    with TestBroker(tmp_path_factory.mktemp("keelmq")) as broker:
        yield broker
