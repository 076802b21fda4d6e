"""Fixtures of the clients' tests: `broker` is the master of TopicX."""

from collections.abc import AsyncIterator

import pytest

from keelmq.client.admin import AdminClient
from tests.support.fake_cluster import FakeBroker, FakeNameServer


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def name_server(broker: FakeBroker) -> AsyncIterator[FakeNameServer]:
    async with FakeNameServer() as server:
        server.routes["TopicX"] = {0: broker.address}
        yield server


@pytest.fixture
async def admin() -> AsyncIterator[AdminClient]:
    async with AdminClient() as client:
        yield client
