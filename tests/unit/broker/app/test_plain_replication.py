"""Master and slaves without controllers, whole brokers in this process with one name server."""

import asyncio
import json
import shutil
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from broker.admin import telemetry
from broker.admin.http_app import health_of
from broker.admin.metrics import scrape
from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.plain_ha.core.frames import HEADER_BYTES, REPORT, parse_header
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations.broker import (
    GET_BROKER_HA_STATUS,
    GET_BROKER_RUNTIME_INFO,
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    HaRuntimeInfo,
    PullMessageRequest,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker_metadata import UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequest
from keelmq.runtime.log_buckets import bucket_top
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig

FILE_BYTES = 65_536
TIMEOUT_S = 15


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        await asyncio.sleep(0.01)


def end_of_slave(master: Broker) -> int:
    """What the slave that is ahead has reported."""
    assert master.plain is not None
    return max(link.ack_offset for link in master.plain.ha.links.values())


class Group:
    """A name server, and brokers that are started and stopped one by one, each with a store of its own."""

    def __init__(self, directory: Path, namesrv_address: str, client: RemotingClient) -> None:
        self.directory, self.namesrv_address, self.client = directory, namesrv_address, client
        self._running: dict[Broker, AsyncExitStack] = {}

    def config(self, name: str, broker_id: int, **more: object) -> BrokerConfig:
        settings: dict[str, object] = {
            "brokerName": "group",
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": 0,
            "httpPort": -1,
            "namesrvAddr": self.namesrv_address,
            "telemetryEnable": False,
            "mappedFileSizeCommitLog": FILE_BYTES,
            "mappedFileSizeConsumeQueue": 2_000,
            "storePathRootDir": self.directory / name,
            **more,
        }
        return BrokerConfig.model_validate(settings)

    async def start(self, name: str, broker_id: int, **more: object) -> Broker:
        stack = AsyncExitStack()
        broker = await stack.enter_async_context(Broker(self.config(name, broker_id, **more)))
        self._running[broker] = stack
        return broker

    async def stop(self, broker: Broker) -> None:
        await self._running.pop(broker).aclose()

    async def close(self) -> None:
        for broker in list(self._running):
            await self.stop(broker)

    def log(self, name: str) -> bytes:
        files = sorted((self.directory / name / "commitlog").iterdir())
        return b"".join(file.read_bytes() for file in files)

    async def send(self, broker: Broker, body: bytes) -> Ok[object] | Failed:
        header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
        outcome = await self.client.call(broker.address, SEND_MESSAGE_V2, header, body)
        assert isinstance(outcome, Ok | Failed), outcome
        return outcome

    async def send_many(self, broker: Broker, count: int, size: int = 3_000) -> None:
        for number in range(count):
            outcome = await self.send(broker, struct.pack(">i", number) + bytes(size))
            assert isinstance(outcome, Ok), outcome

    async def pull(self, broker: Broker, offset: int = 0) -> Ok[object] | Failed:
        request = PullMessageRequest(
            consumer_group="g", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=32
        )
        outcome = await self.client.call(broker.address, PULL_MESSAGE, request)
        assert isinstance(outcome, Ok | Failed), outcome
        return outcome

    async def ha_status(self, broker: Broker) -> HaRuntimeInfo:
        outcome = await self.client.call(broker.address, GET_BROKER_HA_STATUS, Empty())
        assert isinstance(outcome, Ok) and isinstance(outcome.body, HaRuntimeInfo)
        return outcome.body


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with make_group(tmp_path) as made:
        yield made


@asynccontextmanager
async def make_group(directory: Path) -> AsyncIterator[Group]:
    config = NamesrvConfig(
        listen_port=0, http_port=-1, bind_address="127.0.0.1", kv_config_path=directory / "kv.json"
    )
    async with Namesrv(config) as namesrv:
        client = RemotingClient()
        made = Group(directory, ":".join(map(str, namesrv.address)), client)
        try:
            yield made
        finally:
            await made.close()
            await client.close()


def has_all(slave: Broker, master: Broker) -> bool:
    return end_of(slave) == end_of(master) == slave.store.dispatch_offset


def end_of(broker: Broker) -> int:
    return broker.store.commit_log.max_offset


def fault_of(broker: Broker) -> str:
    assert broker.plain is not None
    return broker.plain.ha.fault or ""


def connected(broker: Broker) -> bool:
    assert broker.plain is not None
    return broker.plain.ha.is_connected


async def test_a_slave_has_the_masters_log_and_metadata(group: Group) -> None:
    """Messages over several files, topics, consumer offsets; and what both tell about themselves."""
    slave = await group.start("s", 1)  # before its master: it waits
    master = await group.start("m", 0)
    await until(lambda: connected(slave), "the slave is linked")
    await group.send_many(master, 60)
    commit = UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=7)
    await group.client.call(master.address, UPDATE_CONSUMER_OFFSET, commit)
    await until(lambda: has_all(slave, master), "the slave has the log")
    await until(lambda: slave.metadata.offsets.query("g", "T", 0) == 7, "the slave has the offsets")
    assert "T" in slave.topics.topics and end_of(master) > 2 * FILE_BYTES
    assert group.log("s") == group.log("m")

    told = await group.ha_status(master)
    assert told.master and told.in_sync_slave_nums == 1 and told.ha_connection_info[0].in_sync
    assert told.ha_connection_info[0].slave_ack_offset == end_of(master)
    told = await group.ha_status(slave)
    assert not told.master and told.ha_client_runtime_info.activated and told.fault is None
    status = await group.client.call(slave.address, GET_BROKER_RUNTIME_INFO, Empty())
    assert isinstance(status, Ok) and json.loads(status.body.table["haStatus"])["connected"] is True
    assert slave.status.role_name == "slave" and slave.status.registered_id == 1
    health = health_of(slave.status.readiness, broker_name="group", broker_id=1, master_epoch=0)
    await until(lambda: slave.status.readiness.registered, "registered")
    assert health.role == "slave"
    values = {s.name: s.value for family in await scrape(master.metric_sources()) for s in family.samples}
    assert values["rocketmq_ha_replica_lag_bytes"] == 0 and values["rocketmq_ha_in_sync_copies"] == 2
    values = {s.name: s.value for family in await scrape(slave.metric_sources()) for s in family.samples}
    assert values["rocketmq_broker_role"] == 0 and values["rocketmq_ha_connected"] == 1


async def test_a_master_measures_how_long_appends_wait(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SYNC_FLUSH until they are on disk."""
    monkeypatch.setattr(telemetry, "SAMPLE_PERIOD_MS", 3_600_000)  # the test alone takes samples
    master = await group.start("m", 0, telemetryEnable=True, flushDiskType="SYNC_FLUSH")
    slave = await group.start("s", 1, telemetryEnable=True)
    await group.send_many(master, 3)
    await until(lambda: has_all(slave, master), "the slave has the log")
    assert master.telemetry is not None and slave.telemetry is not None
    seen, of_slave = master.telemetry.sample(), slave.telemetry.sample()
    assert seen is not None and of_slave is not None
    assert sum(count for _, count in seen.confirm_us) == 3 and seen.lag_us
    assert min(bucket_top(bucket) for bucket, _ in seen.confirm_us) > 10, "us of a sync to disk"
    assert (of_slave.role, of_slave.lag_us, of_slave.confirm_us) == ("slave", (), ())


async def test_a_slave_refuses_messages_and_serves_reads_while_its_master_is_away(group: Group) -> None:
    master = await group.start("m", 0)
    slave = await group.start("s", 1)
    await group.send_many(master, 3)
    await until(lambda: has_all(slave, master), "the slave has the log")
    refused = await group.send(slave, b"x")
    assert isinstance(refused, Failed) and refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert f"slave of {master.address}" in refused.remark
    await group.stop(master)
    await until(lambda: not connected(slave), "the link has ended")
    found = await group.pull(slave)
    assert isinstance(found, Ok) and found.header.max_offset == 3
    async with PullConsumer(group.namesrv_address, "g") as consumer:  # finds the slave by the route
        queue = (await consumer.fetch_queues("T"))[0]
        result = await consumer.pull(queue, 0)
        assert len(result.messages) == 3 and await consumer.max_offset(queue) == 3
    beyond = await group.pull(slave, 3)
    assert isinstance(beyond, Failed) and beyond.code != ResponseCode.PULL_OFFSET_MOVED
    refused = await group.send(slave, b"x")
    assert isinstance(refused, Failed) and refused.code == ResponseCode.SERVICE_NOT_AVAILABLE

    master = await group.start("m", 0)  # at another port
    await group.send_many(master, 2)
    await until(lambda: has_all(slave, master), "the slave goes on")
    assert group.log("s") == group.log("m")


async def test_a_sync_master_waits_for_copies(group: Group) -> None:
    sync = {
        "brokerRole": "SYNC_MASTER", "totalReplicas": 2, "inSyncReplicas": 2, "slaveTimeout": 300
    }  # fmt: skip
    master = await group.start("m", 0, **sync)
    lonely = await group.send(master, b"lonely")
    assert isinstance(lonely, Failed) and lonely.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    slave = await group.start("s", 1, inSyncReplicas=1, totalReplicas=2)
    await until(lambda: has_all(slave, master), "the slave has the log")
    assert isinstance(await group.send(master, b"copied"), Ok)
    assert end_of(slave) == end_of(master)


class RawSlave:
    """A connection to a master's HA port, with the reports that a slave would send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, master: Broker, end: int) -> "RawSlave":
        assert master.plain is not None
        slave = cls(*await asyncio.open_connection("127.0.0.1", master.plain.ha.port))
        before = len(master.plain.ha.links)
        slave.report(end)
        await until(lambda: master.plain is not None and len(master.plain.ha.links) > before, "a link")
        return slave

    def report(self, end: int) -> None:
        self.writer.write(REPORT.pack(end))

    async def receives(self, end: int) -> None:
        """Returns when the log up to `end` has arrived."""
        async with asyncio.timeout(TIMEOUT_S):
            received = 0
            while received < end:
                offset, size = parse_header(await self._reader.readexactly(HEADER_BYTES))
                received = offset + len(await self._reader.readexactly(size))


async def test_a_slave_that_connects_again_is_one_copy(group: Group) -> None:
    """RocketMQ counts its two links until the master notices that the older one is dead: a message was
    acknowledged with one copy less than inSyncReplicas."""
    sync = {
        "brokerRole": "SYNC_MASTER", "totalReplicas": 3, "inSyncReplicas": 3, "slaveTimeout": 1_000,
        "minInSyncReplicas": 1,
    }  # fmt: skip
    master = await group.start("m", 0, **sync)
    await group.send(master, b"the topic is created")
    older = await RawSlave.connect(master, end_of(master))
    sending = asyncio.create_task(group.send(master, b"one slave has it"))
    await until(lambda: master.store.commit_log.max_offset > end_of_slave(master), "it is stored")
    await older.receives(end_of(master))
    older.report(end_of(master))
    newer = await RawSlave.connect(master, end_of(master))
    assert master.gate.in_sync == 2
    outcome = await sending
    assert isinstance(outcome, Failed) and outcome.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    older.report(end_of(master))  # a second slave on that host, and no dead link
    await until(lambda: master.gate.in_sync == 3, "both count")
    sending = asyncio.create_task(group.send(master, b"two slaves have it"))
    await until(lambda: master.store.commit_log.max_offset > end_of_slave(master), "it is stored")
    for slave in (older, newer):
        await slave.receives(end_of(master))
        slave.report(end_of(master))
    assert isinstance(await sending, Ok)
    older.writer.close()
    newer.writer.close()


async def test_too_few_copies_and_enable_auto_in_sync_replicas(group: Group) -> None:
    settings = {"brokerRole": "SYNC_MASTER", "totalReplicas": 2, "inSyncReplicas": 2, "slaveTimeout": 2_000}
    auto = await group.start("auto", 0, **settings, enableAutoInSyncReplicas=True, brokerName="auto")
    assert isinstance(await group.send(auto, b"alone"), Ok)
    strict = await group.start("m", 0, **settings, minInSyncReplicas=2)
    refused = await group.send(strict, b"x")
    assert isinstance(refused, Failed) and "in-sync replicas not enough: 1 of at least 2" in refused.remark
    slave = await group.start("s", 1)
    await until(lambda: strict.gate.in_sync == 2, "the slave is in sync")
    assert isinstance(await group.send(strict, b"x"), Ok)
    await group.stop(slave)
    await until(lambda: strict.gate.in_sync == 1, "the slave is gone")
    refused = await group.send(strict, b"x")
    assert isinstance(refused, Failed) and refused.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.slow
async def test_swapped_roles_stop_a_slave_with_more_and_nothing_is_overwritten(group: Group) -> None:
    """The slave was behind, an operator makes it the master, and the old master its slave."""
    old = await group.start("a", 0)
    new = await group.start("b", 1)
    await group.send_many(old, 3)
    await until(lambda: has_all(new, old), "the slave has the log")
    await group.stop(new)
    await group.send_many(old, 4)
    await group.stop(old)
    before = group.log("a")

    new = await group.start("b", 0)
    old = await group.start("a", 1)
    await until(lambda: fault_of(old), "longer than its master's")
    assert "has bytes that the master does not have" in fault_of(old)
    assert (await group.ha_status(old)).fault == fault_of(old)
    await group.send_many(new, 8)  # now the master is ahead, with another history
    await until(lambda: "differs from its master's" in fault_of(old), "another history")
    assert "replication is stopped" in reasons(old)
    assert group.log("a") == before and not connected(old)

    await group.stop(old)
    shutil.rmtree(group.directory / "a")  # as the text says
    old = await group.start("a", 1)
    await until(lambda: has_all(old, new), "copied again")
    assert group.log("a") == group.log("b") and not fault_of(old)


def reasons(broker: Broker) -> list[str]:
    health = health_of(broker.status.readiness, broker_name="", broker_id=1, master_epoch=0)
    return [each.reason for each in health.reasons]


async def test_files_of_another_size_stop_a_slave(group: Group) -> None:
    master = await group.start("m", 0)
    await group.send_many(master, 2)
    slave = await group.start("s", 1, mappedFileSizeCommitLog=2 * FILE_BYTES)
    await until(lambda: "mappedFileSizeCommitLog" in fault_of(slave), "the size is compared")
    assert end_of(slave) == 0


async def test_members_prove_themselves_and_anonymous_clients_get_nothing(group: Group) -> None:
    secret = {
        "innerClientAuthenticationCredentials": '{"accessKey":"member","secretKey":"secret-of-members"}'
    }
    master = await group.start("m", 0, **secret)
    unauthenticated = await group.start("x", 2)
    slave = await group.start("s", 1, **secret)
    await group.send_many(master, 3)
    await until(lambda: has_all(slave, master), "the member has the log")
    assert master.plain is not None and list(master.plain.ha.links) == [1]
    assert (await group.ha_status(master)).ha_connection_info[0].broker_id == 1
    await until(lambda: sum(master.plain.ha.server.refused.values()), "the slave without a proof is refused")  # type: ignore[union-attr]
    assert end_of(unauthenticated) == 0


async def test_a_broker_whose_file_says_nothing_has_no_ha_port(group: Group) -> None:
    alone = group.config("m", 0)
    config = BrokerConfig.model_validate(
        {key: value for key, value in alone.model_dump(by_alias=True, exclude_unset=True).items()
         if key != "brokerRole"}
    )  # fmt: skip
    async with Broker(config) as broker:
        assert broker.plain is None and not broker.status.ha_address


async def test_a_slave_that_comes_late_has_the_last_file(group: Group) -> None:
    master = await group.start("m", 0)
    await group.send_many(master, 60)
    slave = await group.start("s", 1)
    await until(lambda: has_all(slave, master), "the slave has the last file")
    start = slave.store.commit_log.min_offset
    assert start == end_of(master) - end_of(master) % FILE_BYTES > FILE_BYTES
    assert group.log("m").endswith(group.log("s"))
    await group.stop(slave)
    await group.send_many(master, 5)
    slave = await group.start("s", 1)
    await until(lambda: has_all(slave, master), "it goes on where it was")
    assert slave.store.commit_log.min_offset == start and group.log("m").endswith(group.log("s"))


async def test_ha_master_address_without_name_servers(group: Group) -> None:
    """An empty slave copies. One with messages cannot compare them: nobody says where the broker port is."""
    master = await group.start("m", 0)
    there = {"haMasterAddress": master.status.ha_address, "namesrvAddr": ""}
    slave = await group.start("s", 1, **there)
    await group.send_many(master, 3)
    await until(lambda: has_all(slave, master), "the slave has the log")
    await group.stop(slave)
    slave = await group.start("s", 1, **there)
    assert slave.plain is not None and not fault_of(slave)
    ha = slave.plain.ha
    await until(lambda: ha.client is not None and "no name server" in ha.client.last_reason, "it says why")
    assert not connected(slave)


@pytest.mark.parametrize("key", ["authenticationEnabled", "aclEnable"])
async def test_where_clients_prove_who_they_are_slaves_must_too(group: Group, key: str) -> None:
    master = await group.start("m", 0, **{key: True, "aclPath": group.directory / "acl"})
    host, port = master.status.ha_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(bytes(8))
    async with asyncio.timeout(TIMEOUT_S):
        assert await reader.read() == b""
    writer.close()
    assert master.plain is not None and master.plain.ha.server.refused["no_credentials"] == 1
