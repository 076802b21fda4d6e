"""Topics and groups that clients of a real broker create by using them, until a limit."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from broker.metadata.topics import TopicTable
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.runtime.clock import wall_ms
from tests.support.server_parts import RawPeer
from tests.unit.broker.naming.test_vip_port import config


class Client:
    def __init__(self, peer: RawPeer) -> None:
        self.peer, self.opaque = peer, 0

    async def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        self.opaque += 1
        texts = {name: str(value) for name, value in fields.items()}
        answer = await self.peer.ask(RemotingCommand(code, self.opaque, ext_fields=texts, body=body))
        assert answer.opaque == self.opaque
        return answer

    async def send(self, topic: str, **more: object) -> RemotingCommand:
        fields = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": wall_ms(), "h": 0, **more}
        return await self.ask(RequestCode.SEND_MESSAGE_V2, fields, b"body")

    async def pull(self, group: str, topic: str) -> RemotingCommand:
        fields = {
            "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
            "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        return await self.ask(RequestCode.PULL_MESSAGE, fields)

    async def commit(self, group: str, topic: str) -> RemotingCommand:
        fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 0}
        return await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def heartbeat(self, *groups: str) -> RemotingCommand:
        data = [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [],
            }
            for group in groups
        ]
        body = json.dumps({"clientID": "c", "consumerDataSet": data}).encode()
        return await self.ask(RequestCode.HEART_BEAT, {}, body)

    async def create_topic(self, topic: str) -> RemotingCommand:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


@asynccontextmanager
async def served(path: Path, **settings: object) -> AsyncIterator[tuple[Broker, Client]]:
    async with Broker(config(path, listenPort=0, haListenPort=0, **settings)) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(broker.address.rpartition(":")[2]))
        try:
            yield broker, Client(RawPeer(reader, writer))
        finally:
            writer.close()


async def test_topics_of_sends_are_bounded(tmp_path: Path) -> None:
    """Also retry topics of groups that nobody knows, and names that RocketMQ gives a meaning."""
    async with served(tmp_path) as (broker, _):
        built_in = len(broker.topics.topics)
    names = ["T0", "%RETRY%nobody", "%LMQ%queue", "%RETRY%g_T", "%RETRY%g+T", "%DLQ%g", "T1"]
    async with served(tmp_path, autoCreateTopicMax=built_in + 3) as (broker, client):
        answers = {name: await client.send(name) for name in names}
        created = broker.topics.topics.keys() & set(names)
        assert len(created) == 3
        for name in names[3:]:
            assert name not in broker.topics.topics
            if name != "%RETRY%g+T":  # no legal name
                assert answers[name].code == ResponseCode.TOPIC_NOT_EXIST
                assert "autoCreateTopicMax is" in (answers[name].remark or "")
                assert "create it with mqadmin updateTopic" in (answers[name].remark or "")
        assert (await client.send("T0")).code == 0, "who is there stays"
        assert (await client.create_topic("T1")).code == 0, "an administrator may"
        assert (await client.send("T1")).code == 0
        groups = len(broker.metadata.groups.table.rows)
        assert (await client.heartbeat("g1", "g2")).code == 0
        assert len(broker.metadata.groups.table.rows) == groups + 2
        assert "%RETRY%g1" not in broker.topics.topics, "it is created when a message needs it"


async def test_an_address_has_so_many_per_minute(tmp_path: Path) -> None:
    async with served(tmp_path, autoCreatePerMinute=3) as (broker, client):
        codes = [(await client.send(f"T{n}")).code for n in range(6)]
        assert codes == [0, 0, 0] + [ResponseCode.TOPIC_NOT_EXIST] * 3
        last = await client.send("T9")
        assert "its address has created 3 topics within a minute" in (last.remark or "")
        pulls = [await client.pull(f"g{n}", "T0") for n in range(5)]
        assert [each.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST for each in pulls] == [
            False, False, False, True, True,
        ]  # fmt: skip
        assert "create it with mqadmin updateSubGroup" in (pulls[-1].remark or "")
        committed = await client.commit("g7", "T0")
        assert committed.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "autoCreatePerMinute" in (committed.remark or "")
        assert (await client.heartbeat("g8", "g0")).code == 0
        rows = broker.metadata.groups.table.rows
        assert "g0" in rows and not rows.keys() & {"g3", "g4", "g7", "g8"}
        assert broker.topics.creation.refused == 4
        assert broker.metadata.groups.creation.refused == 4


async def test_groups_are_bounded(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, _):
        built_in = len(broker.metadata.groups.table.rows)
    async with served(tmp_path, autoCreateSubscriptionGroupMax=built_in + 1) as (broker, client):
        assert (await client.send("T")).code == 0
        assert (await client.heartbeat("g0", "g1", "g2")).code == 0
        assert len(broker.metadata.groups.table.rows) == built_in + 1
        refused = await client.pull("g1", "T")
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert refused.remark == (
            f"group g1 is not created automatically: the broker has {built_in + 1} groups, and "
            f"autoCreateSubscriptionGroupMax is {built_in + 1}; create it with mqadmin updateSubGroup"
        )


async def test_a_full_table_takes_no_dead_letter_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What consumers make the broker create is bounded by the table itself."""
    async with served(tmp_path) as (broker, client):
        assert (await client.heartbeat("g")).code == 0
        assert (await client.send("%RETRY%g", j=0)).code == 0
        monkeypatch.setattr(TopicTable, "rows_max", len(broker.topics.topics))
        dead = await client.send("%RETRY%g", j=100)
        assert dead.code == ResponseCode.SYSTEM_ERROR
        assert dead.remark is not None and "%DLQ%g" in dead.remark and "delete some" in dead.remark
        assert broker.topics.ensure("TRANS_CHECK_MAX_TIME_TOPIC", 1), "the broker's own ones are not refused"
