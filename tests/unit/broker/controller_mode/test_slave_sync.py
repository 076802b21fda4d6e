"""SlaveSync: which HA address a slave believes, and whose log it copies when an address is used again."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.controller_mode.slave_sync import Leader, SlaveSync
from broker.ha.ports import MasterHaAddress
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Call, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG, BrokerConfigResponse
from keelmq.remoting.servers.tcp import TcpServer
from tests.support.metadata_parts import open_metadata
from tests.support.ports import free_port

OURS = "brokerClusterName=C1\nbrokerName=b-a\nhaListenPort=10912\nbrokerIP1=10.0.0.1\n"
OTHER_GROUP = OURS.replace("b-a", "b-b")
OTHER_CLUSTER = OURS.replace("C1", "C2")


class Master:
    """Answers 26, and counts how often."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, 0
        self.on_asked: Callable[[], None] = lambda: None
        table = OperationTable()
        table.bind(GET_BROKER_CONFIG, self._get)
        self.server = TcpServer(table, host="127.0.0.1", port=0, name="test")

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)

    async def _get(self, header: Empty, call: Call) -> Reply:
        self.asked += 1
        self.on_asked()
        return Reply(header=BrokerConfigResponse(version="{}"), body=self.text.encode())


@asynccontextmanager
async def slave_and_master(tmp_path: Path, text: str) -> AsyncIterator[tuple[SlaveSync, Master]]:
    """The slave has just been told of this master."""
    master, client = Master(text), RemotingClient()
    await master.server.start()
    sync = SlaveSync(client, open_metadata(tmp_path), cluster="C1", broker_name="b-a")
    sync.follow(Leader(master.address, 1, 2))
    try:
        yield sync, master
    finally:
        await client.close()
        await master.server.close()


async def test_what_a_name_server_says_counts_only_for_the_same_master(tmp_path: Path) -> None:
    """Namesrv pitfall 24: name servers may disagree; the controller says who is master."""
    master = f"127.0.0.1:{free_port()}"
    client = RemotingClient()
    sync = SlaveSync(client, open_metadata(tmp_path), cluster="C1", broker_name="b-a")
    sync.route_ha_address = ("10.0.0.9:10911", "10.0.0.9:10912")
    assert await sync.find_master(master) is None
    sync.route_ha_address = (master, "10.0.0.1:10912")
    assert await sync.find_master(master) == MasterHaAddress("10.0.0.1:10912")
    sync.follow(Leader(master, 1, 2))
    assert await sync.unverified_peer() is None, "nobody answers: it may be dialled"
    await client.close()


@pytest.mark.parametrize("text", [OTHER_GROUP, OTHER_CLUSTER])
async def test_an_address_that_another_group_has_now_is_not_followed(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing in a log tells two groups apart: both begin with epoch 1 at 0."""
    async with slave_and_master(tmp_path, text) as (sync, master):
        sync.route_ha_address = (master.address, "10.0.0.1:10912")
        for _ in range(3):
            assert await sync.find_master(master.address) is None
            assert "not of C1/b-a" in (await sync.unverified_peer() or "")
        lines = [line for line in caplog.messages if f"{master.address} is of C" in line]
        assert len(lines) == 1, "told once"
        master.text = OURS
        assert await sync.find_master(master.address) == MasterHaAddress("10.0.0.1:10912")
        assert await sync.unverified_peer() is None


@pytest.mark.parametrize("text", [OURS, "haListenPort=10912\nbrokerIP1=10.0.0.1\n", "listenPort=1\n", ""])
async def test_who_is_of_our_group_or_does_not_tell_is_dialled(tmp_path: Path, text: str) -> None:
    async with slave_and_master(tmp_path, text) as (sync, master):
        found = await sync.find_master(master.address)
        assert found == (MasterHaAddress("10.0.0.1:10912") if "haListenPort" in text else None)
        assert await sync.unverified_peer() is None


async def test_who_has_just_been_met_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that was just told its new master dials at once, until that one is ready."""
    async with slave_and_master(tmp_path, OURS) as (sync, master):
        await sync.find_master(master.address)
        for _ in range(5):
            assert await sync.unverified_peer() is None
        assert master.asked == 1
        monkeypatch.setattr("broker.controller_mode.slave_sync.VERIFIED_MS", 0)
        master.text = OTHER_GROUP
        assert await sync.unverified_peer() is not None
        assert master.asked == 2


async def test_a_connection_to_who_was_there_before_answers_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question ends it, as at a machine that does not know it; who is there now is asked."""
    monkeypatch.setattr("broker.controller_mode.slave_sync.VERIFIED_MS", 0)
    async with slave_and_master(tmp_path, OURS) as (sync, master):
        await sync.find_master(master.address)

        def gone() -> None:
            master.on_asked, master.text = lambda: None, OTHER_GROUP
            master.server.close_connections()

        master.on_asked = gone
        assert "not of C1/b-a" in (await sync.unverified_peer() or "")
        assert master.asked == 3


async def test_a_broker_without_controllers_asks_nobody(tmp_path: Path) -> None:
    async with slave_and_master(tmp_path, OTHER_GROUP) as (sync, master):
        sync.follow(None)
        assert await sync.unverified_peer() is None
        assert master.asked == 0
