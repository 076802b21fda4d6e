"""A master's metadata and its replicas', over loopback: pushed, acknowledged, never from below."""

import asyncio
import contextlib
import logging
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from broker.admission.send_gate import SendGate
from broker.controller_mode.slave_sync import Leader, SlaveSync
from broker.metadata.core.table import Version
from broker.metadata.handlers import MetadataHandlers
from broker.metadata.service import Metadata
from broker.metadata.timers import READ_MS
from broker.metadata.wire import LARGE_ROWS, encode_updates
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import (
    Call,
    CommandError,
    Empty,
    Failed,
    Handler,
    LocalProtocolError,
    Operation,
    OperationTable,
    Reply,
    Wire,
)
from keelmq.remoting.operations.broker import (
    DELETE_TOPIC_IN_BROKER,
    GET_ALL_TOPIC_CONFIG,
    GET_BROKER_CONFIG,
    BrokerConfigResponse,
    TopicRequest,
)
from keelmq.remoting.operations.broker_admin import (
    DELETE_SUBSCRIPTION_GROUP_LIST,
    DELETE_TOPIC_IN_BROKER_LIST,
    GroupNames,
)
from keelmq.remoting.operations.broker_metadata import (
    DELETE_SUBSCRIPTIONGROUP,
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    PULL_METADATA,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsets,
    CreateTopicRequest,
    DelayOffsets,
    DeleteGroupRequest,
    MetadataVersions,
    PullMetadataRequest,
    PullMetadataResponse,
    SubscriptionGroupConfig,
    SubscriptionGroups,
    UpdateConsumerOffsetRequest,
)
from keelmq.remoting.operations.clients import TopicNames
from keelmq.remoting.operations.pop import GET_ALL_MESSAGE_REQUEST_MODE, RequestModeBody, RequestModes
from keelmq.remoting.operations.route import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from keelmq.remoting.operations.timers import GET_TIMER_CHECK_POINT
from keelmq.remoting.servers.tcp import TcpServer
from tests.support.metadata_parts import QueuesWithoutLog, ReplicasT, begin_term, open_metadata
from tests.support.server_parts import until
from tests.support.store_parts import open_store


def config(name: str, queues: int = 4) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)


NEW_TOPIC = CreateTopicRequest(
    topic="New", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
)
COMMIT = UpdateConsumerOffsetRequest(consumer_group="old", topic="Old", queue_id=0, commit_offset=0)


class Node:
    """One broker's metadata with its server, and what follows another's."""

    def __init__(self, path: Path, broker_id: int, *, waits: bool = True, timeout_ms: int = 3_000) -> None:
        self.broker_id = broker_id
        self.queues = QueuesWithoutLog()
        self.metadata: Metadata = open_metadata(path, waits=waits, timeout_ms=timeout_ms, queues=self.queues)
        self.members: set[int] = set()
        self.replicas = ReplicasT(lambda epoch: self.members)
        self.on_released: Callable[[], None] = lambda: None
        self._store = open_store(path)
        self._client = RemotingClient()
        self.sync = SlaveSync(self._client, self.metadata, cluster="C1", broker_name="b-a")
        self.table = table = OperationTable()
        MetadataHandlers(self.metadata, self._store).bind(table)
        self.server = TcpServer(table, host="127.0.0.1", port=0, name="test")
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)

    async def start(self) -> None:
        await self.server.start()
        self._tasks = [asyncio.create_task(run()) for run in (self.sync.run, self.metadata.check_offsets)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._client.close()
        await self.server.close()
        self.metadata.close()
        self._store.close()

    def lead(self, epoch: int) -> None:
        self.sync.follow(None)
        begin_term(self.metadata, epoch, self.replicas, lambda: self.on_released())

    def follow(self, master: "Node", epoch: int) -> None:
        self.metadata.end_term()
        self.sync.follow(Leader(master.address, epoch, self.broker_id))

    def same(self, other: "Node") -> bool:
        mine, theirs = self.metadata.stores, other.metadata.stores
        return all(mine[name].table.version == theirs[name].table.version for name in mine)


@asynccontextmanager
async def nodes(path: Path, count: int, **settings: int) -> AsyncIterator[list[Node]]:
    found = [Node(path / str(n), n, **settings) for n in range(1, count + 1)]  # type: ignore[arg-type]
    try:
        for node in found:
            await node.start()
        yield found
    finally:
        for node in found:
            await node.stop()


async def test_a_change_is_at_every_member_before_it_is_acknowledged(tmp_path: Path) -> None:
    """user-pain 37, 42: topics with attributes, at once."""
    async with nodes(tmp_path, 3) as (master, one, two):
        master.members = {2, 3}
        master.lead(1)
        one.follow(master, 1)
        two.follow(master, 1)
        topics, offsets = master.metadata.topics, master.metadata.offsets
        fifo = config("Fifo").model_copy(update={"attributes": {"message.type": "FIFO"}})
        topics.update(fifo)
        await master.metadata.replicated(topics, topics.table.version)
        for node in (one, two):
            found = node.metadata.topics.get("Fifo")
            assert found is not None and found.config == fifo
        master.metadata.groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=2))
        await master.metadata.replicated(master.metadata.groups, master.metadata.groups.table.version)
        offsets.commit("g", "Fifo", 0, 5)
        await master.metadata.replicated(offsets, offsets.commit_staged())
        for node in (one, two):
            group = node.metadata.groups.get("g")
            assert group is not None and group.retry_max_times == 2
            assert node.metadata.offsets.query("g", "Fifo", 0) == 5
        assert open_metadata(tmp_path / "2").offsets.query("g", "Fifo", 0) == 5  # and not only in memory


async def test_a_member_that_is_silent_costs_the_acknowledgement(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, timeout_ms=150) as (master, replica):
        master.members = {2, 9}
        master.lead(1)
        replica.follow(master, 1)
        topics = master.metadata.topics
        topics.update(config("T"))
        with pytest.raises(CommandError, match="not replicated within 150 ms") as caught:
            await master.metadata.replicated(topics, topics.table.version)
        assert caught.value.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert master.metadata.lag_ms(9, 1) > 0 and master.metadata.lag_ms(2, 1) == 0
        waiting = asyncio.create_task(master.metadata.replicated(topics, topics.table.version))
        await asyncio.sleep(0)
        master.members = {2}  # it left the set
        await waiting


@pytest.mark.parametrize(
    ("operation", "header", "body"),
    [
        (UPDATE_AND_CREATE_TOPIC, NEW_TOPIC, None),
        (DELETE_TOPIC_IN_BROKER, TopicRequest(topic="Old"), None),
        (UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Empty(), SubscriptionGroupConfig(group_name="new")),
        (DELETE_SUBSCRIPTIONGROUP, DeleteGroupRequest(group_name="old"), None),
        (DELETE_TOPIC_IN_BROKER_LIST, Empty(), TopicNames(topic_list=["Old"])),
        (DELETE_SUBSCRIPTION_GROUP_LIST, Empty(), GroupNames(group_name_list=["old"])),
        (UPDATE_CONSUMER_OFFSET, COMMIT, None),
    ],
)
async def test_every_change_waits_for_the_members(
    tmp_path: Path, operation: Operation[Any, Any], header: Wire, body: object
) -> None:
    """Code 12: it is here, and not known to be anywhere else."""
    async with nodes(tmp_path, 1, timeout_ms=60) as (master,):
        master.metadata.topics.update(config("Old"))
        master.metadata.groups.update(SubscriptionGroupConfig(group_name="old"))
        master.members = {9}
        master.lead(1)
        client = RemotingClient()
        outcome = await client.call(master.address, operation, header, body)
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.FLUSH_SLAVE_TIMEOUT, outcome
        assert "not known to be on every replica" in outcome.remark
        await client.close()


async def test_nobody_waits_without_all_ack(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, waits=False) as (master,):
        master.members = {9}
        master.lead(1)
        master.metadata.topics.update(config("T"))
        await master.metadata.replicated(master.metadata.topics, master.metadata.topics.table.version)


async def test_the_end_of_a_term_leaves_a_change_in_doubt(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (master,):
        master.members = {9}
        master.lead(1)
        topics = master.metadata.topics
        topics.update(config("T"))
        waiting = asyncio.create_task(master.metadata.replicated(topics, topics.table.version))
        await asyncio.sleep(0)
        master.metadata.end_term()
        with pytest.raises(CommandError, match="stopped being master"):
            await waiting
        master.lead(1)
        master.replicas.members = lambda epoch: None  # the HA service has begun another term already
        waiting = asyncio.create_task(master.metadata.replicated(topics, topics.table.version))
        await asyncio.sleep(0)
        assert not waiting.done()
        master.metadata.end_term()
        with pytest.raises(CommandError, match="stopped being master"):
            await waiting


async def test_a_master_that_is_cut_off_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path, 1) as (master,):
        master.lead(1)
        topics = master.metadata.topics
        topics.update(config("T"))
        await master.metadata.replicated(topics, topics.table.version)  # alone in its set
        with monkeypatch.context() as patch:
            patch.setattr(SendGate, "lease_is_over", property(lambda gate: True))
            waiting = asyncio.create_task(master.metadata.replicated(topics, topics.table.version))
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting


async def test_nobody_leads_below_the_epoch_of_a_table(tmp_path: Path) -> None:
    """A broker that restarts and gets an old role update first."""
    async with nodes(tmp_path, 1) as (node,):
        node.lead(4)
        with pytest.raises(LocalProtocolError, match="masterEpoch 3 is below epoch 4 of the topic table"):
            node.lead(3)
        assert node.metadata.epoch == 4


async def test_a_switch_takes_everything_along_and_the_old_master_follows(tmp_path: Path) -> None:
    """user-pain 38: "topic not found" at the new master."""
    async with nodes(tmp_path, 3) as (old, transfer_target, third):
        old.members = {2}
        old.lead(1)
        transfer_target.follow(old, 1)
        topics = old.metadata.topics
        topics.update(config("Kept"))
        topics.update(config("Gone"))
        topics.delete(["Gone"], 100)
        await old.metadata.replicated(topics, topics.table.version)
        transfer_target.sync.follow(None)
        await asyncio.sleep(0)
        topics.update(config("Unacknowledged"))
        old.metadata.offsets.commit("g", "Kept", 0, 3)  # staged only
        transfer_target.members = {1, 3}
        transfer_target.lead(2)
        old.follow(transfer_target, 2)
        third.follow(transfer_target, 2)
        assert transfer_target.metadata.topics.get("Kept") is not None
        await until(lambda: old.same(transfer_target) and third.same(transfer_target))
        for node in (old, transfer_target, third):
            assert node.metadata.topics.get("Kept") is not None
            assert node.metadata.topics.get("Gone") is None
            assert node.metadata.topics.ensure_replicated("Gone", 0, 99) is None
            assert node.metadata.topics.get("Unacknowledged") is None
            assert node.metadata.offsets.query("g", "Kept", 0) == -1


@pytest.mark.slow
async def test_a_topic_that_was_cut_is_cut_at_the_next_master_too(tmp_path: Path) -> None:
    """A new replica meets a record of a queue that the topic had once; its master knows nothing newer."""
    async with nodes(tmp_path, 3) as (master, transfer_target, third):
        master.members = {2}
        master.lead(1)
        topics = master.metadata.topics
        topics.update(config("T", 8))
        topics.update(config("T", 4))
        transfer_target.follow(master, 1)
        await until(lambda: transfer_target.same(master))
        assert transfer_target.metadata.topics.ensure_replicated("T", 7) is not None
        await until(lambda: not transfer_target.metadata.topics.guesses())
        transfer_target.members = {3}
        transfer_target.lead(2)
        third.follow(transfer_target, 2)
        await until(lambda: third.same(transfer_target))
        for node in (master, transfer_target, third):
            found = node.metadata.topics.get("T")
            assert found is not None and found.config == config("T", 4)
        alone = open_metadata(tmp_path / "3")
        alone.topics.ensure_replicated("T", 7)
        await alone.begin_alone()
        assert alone.topics.topics["T"].config == config("T", 4)


async def test_a_large_table_is_converted_by_threads(tmp_path: Path) -> None:
    """At the master and at the replica."""
    threads: dict[str, set[bool]] = {}

    def spy(node: Node, name: str) -> Any:
        store = node.metadata.offsets
        real = getattr(store, name)

        def call(*arguments: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return real(*arguments)

        return patch.object(store, name, call)

    async with nodes(tmp_path, 2) as (master, replica):
        for number in range(LARGE_ROWS + 1):
            master.metadata.offsets.commit(f"g{number}", "T", 0, number)
        master.metadata.offsets.commit_staged()
        with spy(master, "to_wire"), spy(replica, "from_wire"), spy(replica, "file_of"):
            master.lead(1)
            replica.metadata.offsets.table.version = Version(0, 7, 7)  # unknown to the master
            replica.follow(master, 1)
            await until(lambda: replica.same(master))
        assert replica.metadata.offsets.query(f"g{LARGE_ROWS}", "T", 0) == LARGE_ROWS
    assert threads == {"to_wire": {False}, "from_wire": {False}, "file_of": {False}}


async def test_a_deposed_master_is_not_listened_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """user-pain 39: a replica of epoch 2 takes nothing of epoch 1, and its acks do not count there."""
    caplog.set_level(logging.INFO)
    async with nodes(tmp_path, 2) as (deposed, replica):
        deposed.members = {2}
        deposed.lead(1)
        replica.metadata.topics.begin_term(2)
        replica.metadata.topics.update(config("T"))
        replica.follow(deposed, 2)
        request = PullMetadataRequest(broker_name="b-a", broker_id=2, master_epoch=2)
        with pytest.raises(CommandError, match="not master at masterEpoch 2: it is master at masterEpoch 1"):
            await deposed.metadata.pull(request, MetadataVersions())
        replica.follow(deposed, 1)  # even if it believed in it
        await until(lambda: "refused" in caplog.text)
        assert replica.metadata.topics.get("T") is not None
        assert deposed.metadata.lag_ms(2, 1) > 0


def in_another_group(table: OperationTable) -> list[Call]:
    """Whoever serves this table says so. The questions."""
    asked: list[Call] = []

    async def names(header: Empty, call: Call) -> Reply:
        asked.append(call)
        text = b"brokerClusterName=C1\nbrokerName=b-b\n"
        return Reply(header=BrokerConfigResponse(version="{}"), body=text)

    table.bind(GET_BROKER_CONFIG, names)
    return asked


async def test_tables_of_another_group_at_our_masters_address_are_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The address is used again, and both groups are at epoch 1."""
    caplog.set_level(logging.INFO)
    async with nodes(tmp_path, 2) as (other, replica):
        asked = in_another_group(other.table)
        replica.follow(other, 1)  # it has no term yet: the first poll fails
        await until(lambda: len(asked) == 1)
        other.lead(1)
        other.metadata.topics.update(config("Theirs"))
        await until(lambda: len(asked) == 3)
        assert "b-b" in caplog.text
        assert replica.metadata.topics.get("Theirs") is None


async def test_a_poll_waits_for_news_and_for_a_term(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (master,):
        request = PullMetadataRequest(broker_name="b-a", broker_id=2, master_epoch=1, wait_millis=60_000)
        versions = {name: store.data_version for name, store in master.metadata.stores.items()}
        early = asyncio.create_task(master.metadata.pull(request, MetadataVersions(versions=versions)))
        await asyncio.sleep(0)
        master.lead(1)
        updates = await early
        assert {update.store for update in updates} == set(master.metadata.stores)
        assert all(update.base is not None and not update.rows for update in updates)
        now = MetadataVersions(versions={update.store: update.version for update in updates})
        parked = asyncio.create_task(master.metadata.pull(request, now))
        await asyncio.sleep(0)
        assert not parked.done() and master.metadata.lag_ms(2, 1) == 0
        master.metadata.topics.update(config("T"))
        (update,) = await parked
        assert set(update.rows) == {"T"}
        parked = asyncio.create_task(master.metadata.pull(request, now))
        await parked
        brief = request.model_copy(update={"wait_millis": 0})
        latest = MetadataVersions(
            versions={name: store.data_version for name, store in master.metadata.stores.items()}
        )
        assert await master.metadata.pull(brief, latest) == []


async def test_a_topic_made_by_a_message_holds_its_acknowledgement(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (master, replica):
        released: list[int] = []
        master.members = {2}
        master.queues.log_end = lambda: 500
        master.on_released = lambda: released.append(master.metadata.hold_offset())
        master.lead(1)
        assert master.metadata.hold_offset() > 1 << 60
        master.metadata.topics.create_on_send("New", "TBW102", 4)
        assert master.metadata.hold_offset() == 500
        replica.follow(master, 1)
        await until(lambda: bool(released) and released[-1] > 1 << 60)
        assert replica.metadata.topics.get("New") is not None


async def test_offsets_beyond_the_log_are_set_back_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """broker-ha pitfall 61: an unclean election leaves offsets that point past the queues' ends."""
    async with nodes(tmp_path, 2) as (master, replica):
        offsets = master.metadata.offsets
        offsets.commit("billing", "T", 0, 90)
        offsets.commit("audit", "T", 0, 7)
        master.queues.queue_end = lambda topic, queue_id: 10
        master.metadata.log_truncated(5_000, 400)  # as a slave: told, not changed
        assert offsets.query("billing", "T", 0) == 90
        master.members = {2}
        master.lead(2)
        assert offsets.query("billing", "T", 0) == 10 and offsets.query("audit", "T", 0) == 7
        assert "affected groups: billing" in caplog.text
        truncations = tmp_path / "1" / "config" / "truncation.json"
        await until(lambda: truncations.exists() and truncations.read_text().count('"reason"') == 2)
        notes = truncations.read_text()
        assert '"the log was truncated from 5000 to 400"' in notes and '"queueEnd": 10' in notes
        assert "set back" in notes and notes.count('"was": 90') == 2
        replica.follow(master, 2)
        await until(lambda: replica.same(master))
        assert replica.metadata.offsets.query("billing", "T", 0) == 10


async def test_an_answer_of_another_epoch_is_not_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The address belongs to somebody else by now."""
    caplog.set_level(logging.INFO)
    async with nodes(tmp_path, 2) as (unverified_peer, replica):
        table = OperationTable()

        async def answer(header: PullMetadataRequest, call: Call) -> Reply:
            unverified_peer.metadata.topics.update(config("Strange"))
            update = unverified_peer.metadata.topics.updates_since(None)
            assert update is not None
            return Reply(header=PullMetadataResponse(master_epoch=7), body=encode_updates([update]))

        table.bind(PULL_METADATA, answer)
        server = TcpServer(table, host="127.0.0.1", port=0, name="another group")
        await server.start()
        replica.sync.follow(Leader("{}:{}".format(*server.address), 2, 2))
        await until(lambda: "masterEpoch 7" in caplog.text)
        assert replica.metadata.topics.get("Strange") is None
        await server.close()


POPS = RequestModeBody(topic="J", consumer_group="g", mode="POP")


class RocketMqMaster:
    """Answers the six polls, and 29001 with "not supported"."""

    def __init__(self) -> None:
        version = DataVersion(counter=4, state_version=3, timestamp=5)
        self.topics = TopicConfigSerializeWrapper(topic_config_table={"J": config("J")}, data_version=version)
        self.asked = 0
        table = OperationTable()
        for operation, body in (
            (GET_ALL_CONSUMER_OFFSET, ConsumerOffsets(offset_table={"J@g": {0: 3}})),
            (GET_ALL_DELAY_OFFSET, DelayOffsets(offset_table={1: 2})),
            (GET_ALL_MESSAGE_REQUEST_MODE, RequestModes(message_request_mode_map={"J": {"g": POPS}})),
            (GET_TIMER_CHECK_POINT, struct.pack(">7q", 5_000, 0, 4, 4, 3, 5, 4)),
            (
                GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                SubscriptionGroups(subscription_group_table={"g": SubscriptionGroupConfig(group_name="g")}),
            ),
        ):
            table.bind(operation, self._answers(body))
        table.bind(GET_ALL_TOPIC_CONFIG, self._topics)
        self.table = table
        self.server = TcpServer(table, host="127.0.0.1", port=0, name="java")

    def _answers(self, body: object) -> Handler:
        async def answer(header: Empty, call: Call) -> Reply:
            return Reply(body=body)

        return answer

    async def _topics(self, header: Empty, call: Call) -> Reply:
        self.asked += 1
        return Reply(body=self.topics)


async def test_a_rocketmq_master_is_polled(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (replica,):
        java = RocketMqMaster()
        await java.server.start()
        replica.metadata.groups.update(SubscriptionGroupConfig(group_name="ours"))
        replica.metadata.end_term()
        replica.sync.follow(Leader("{}:{}".format(*java.server.address), 3, 1))
        metadata = replica.metadata
        await until(lambda: metadata.groups.get("g") is not None)
        assert metadata.topics.get("J") is not None and metadata.topics.get("TBW102") is not None
        assert metadata.offsets.query("g", "J", 0) == 3 and metadata.delays.get(1) == 2
        await until(lambda: metadata.timers.get(READ_MS, -1) == 4_999)
        await until(lambda: metadata.request_modes.get("J", "g") == POPS)
        assert metadata.groups.get("ours") is None
        ours = (metadata.queue_ends, metadata.users, metadata.acls)
        theirs = [store for store in metadata.stores.values() if store not in ours]
        assert all(store.data_version.state_version == 3 for store in theirs)
        asked = java.asked
        replica.sync.unknown_topic()  # a record of a topic that we do not know: ask now
        await until(lambda: java.asked > asked)
        await java.server.close()


async def test_a_rocketmq_master_of_another_group_is_not_polled(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (replica,):
        java = RocketMqMaster()
        await java.server.start()
        asked = in_another_group(java.table)
        replica.metadata.end_term()
        replica.sync.follow(Leader("{}:{}".format(*java.server.address), 3, 1))
        await until(lambda: len(asked) == 1)
        replica.sync.unknown_topic()
        await until(lambda: len(asked) == 2)
        assert java.asked == 0
        assert replica.metadata.topics.get("J") is None
        await java.server.close()
